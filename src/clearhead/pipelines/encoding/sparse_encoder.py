"""Encode texts as sparse vectors over the vocabulary (SPLADE)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.sentence_transformers import SentenceSettings
from clearhead.finite import check_finite, error_context
from clearhead.io import hub
from clearhead.models.heads import MaskedLanguageModel
from clearhead.pipelines.base import Pipeline, check_room, prepare_inference, warn_truncated
from clearhead.pipelines.encoding.prompts import prompted_tokens
from clearhead.pipelines.encoding.sparse_settings import read_sparse_settings, write_sparse_settings
from clearhead.runtime.packed_batch import hidden_states
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import as_texts
from clearhead.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class SparseVector:
    """A sparse vector over the vocabulary.

    Args:
        ids: the ids of the tokens with a weight above 0, ascending.
        weights: their weights.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]


def splade(logits: Float[Tensor, "L V"]) -> Float[Tensor, "V"]:
    """Pool the logits of a masked language model to one weight for each token of the vocabulary.

    Equation: w_v = max_i ln(1 + ReLU(logits_iv))
    Source: Formal et al. 2021, "SPLADE v2", equation 2

    >>> import torch
    >>> splade(torch.tensor([[1.718282, -1.0], [0.0, -2.0]]))
    tensor([1., 0.])
    """
    # the function grows with the logit: it is applied to the maximum
    return torch.log1p(torch.relu(logits.amax(dim=0)))


class SparseEncoder(Pipeline[MaskedLanguageModel]):
    """A masked language model as a text encoder: each text becomes weights of tokens, for an inverted index.

    Args:
        model: the masked language model, in float32.
        tokenizer: its tokenizer.
        settings: maximum length and prompts.
        family: the checkpoint family for `save_pretrained`.
        precision, device: as in `TextEncoder`. The head and the logits are in float32, except with 8 bits.

    Raises:
        ValueError: a device that is not available, or an unknown precision.

    >>> from clearhead import SparseEncoder
    >>> encoder = SparseEncoder.from_pretrained("my-splade")  # doctest: +SKIP
    >>> list(encoder.decode(encoder.encode("How do I reset my password?"), top_k=2))  # doctest: +SKIP
    ['password', 'reset']
    """

    def __init__(
        self,
        model: MaskedLanguageModel,
        tokenizer: Tokenizer,
        settings: SentenceSettings,
        family: EncoderFamily,
        *,
        precision: str = "auto",
        device: str = "auto",
    ) -> None:
        self.model, self.tokenizer, self.family, self.settings = model, tokenizer, family, settings
        self.name = f"of type {family.model_type}"
        limits = [settings.max_length, tokenizer.max_length, model.encoder.config.max_len]
        self.max_length = min(limit for limit in limits if limit is not None)
        self.device, self.precision, self.int8, self.inference_model = prepare_inference(
            model.encoder, tokenizer, self.max_length, precision=precision, device=device
        )
        self._head, self._output = model.head.to(self.device), model.output.to(self.device)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, precision: str = "auto", device: str = "auto", revision: str | None = None
    ) -> "SparseEncoder":
        """Load a sparse encoder: a SparseEncoder folder of sentence-transformers, or any masked language model.

        Args:
            name: a folder or a Hub id.
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.

        Raises:
            ValueError: no such model, missing or broken files, or a module or option that is not supported.
        """
        folder = hub.resolve_model(name, revision)
        settings = read_sparse_settings(folder)
        model, family = checkpoints.load_masked_lm(folder)
        tokenizer = check_vocabulary(Tokenizer.from_folder(folder), folder, model.encoder.config.vocab_size)
        with error_context(model=str(name)):
            encoder = cls(model, tokenizer, settings, family, precision=precision, device=device)
        check_room(folder, tokenizer, encoder.max_length)
        encoder.name = str(name)
        return encoder

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that transformers and sentence-transformers open, with the weights in float32."""
        folder = Path(folder)
        checkpoints.save_masked_lm(self.model, self.family, folder)
        self.tokenizer.save(folder, self.max_length)
        write_sparse_settings(folder, self.settings)

    @overload
    def encode(  # type: ignore[overload-overlap]  # a string is an iterable of strings, too
        self, texts: str, *, prompt: str | None = None, batch_tokens: int | None = None
    ) -> SparseVector: ...
    @overload
    def encode(
        self, texts: Iterable[str], *, prompt: str | None = None, batch_tokens: int | None = None
    ) -> list[SparseVector]: ...
    def encode(
        self, texts: str | Iterable[str], *, prompt: str | None = None, batch_tokens: int | None = None
    ) -> SparseVector | list[SparseVector]:
        """Encode each text as a sparse vector, in the order of the texts.

        Args:
            texts: a text, or texts in a list or another iterable.
            prompt: name of one of the model's prompts, or a text that is put before each text; None for the default.
            batch_tokens: number of tokens in a batch; None for the default of the device.

        Raises:
            ValueError: a text that is not a Unicode string, or a prompt that leaves no room for a text.
            NonFiniteError: a weight is NaN or infinite.
        """
        listed, single = as_texts(texts)
        tokens = prompted_tokens(self.tokenizer, listed, self.settings.prompt_text(prompt), self.max_length)
        warn_truncated([text.truncated for text in tokens], self.max_length, "Split them")
        vectors: dict[int, SparseVector] = {}
        config = self.model.encoder.config
        with error_context(text=listed.__getitem__, model=self.name, precision=self.precision.name):
            for indices, hidden, keep in hidden_states(self.inference_model, tokens, batch_tokens, config, self.device):
                for index, states, real in zip(indices, hidden, keep, strict=True):
                    vectors[index] = self._vector(states[real], index)
        result = [vectors[index] for index in range(len(listed))]
        return result[0] if single else result

    def similarity(self, first: Sequence[SparseVector], second: Sequence[SparseVector]) -> NDArray[np.float32]:
        """Return the dot product of each vector of one list with each vector of the other, float32 (n, m)."""
        size = self.model.encoder.config.vocab_size
        result = np.zeros((len(first), len(second)), dtype=np.float32)
        dense = np.zeros(size, dtype=np.float32)
        for row, one in enumerate(first):
            dense[one.ids] = one.weights
            result[row] = [dense[other.ids] @ other.weights for other in second]
            dense[one.ids] = 0.0
        return result

    def decode(self, vector: SparseVector, top_k: int = 10) -> dict[str, float]:
        """Return the tokens with the largest weights of a vector, largest first."""
        best = np.argsort(-vector.weights, kind="stable")[:top_k]
        names = self.tokenizer.ids_to_tokens(vector.ids[best].tolist())
        return dict(zip(names, vector.weights[best].tolist(), strict=True))

    @torch.inference_mode()
    def _vector(self, states: Tensor, index: int) -> SparseVector:
        weights = splade(self._output(self._head(states.float()))).cpu().numpy()
        check_finite(weights[None], "weights", [index])
        ids = np.flatnonzero(weights)
        return SparseVector(ids, weights[ids])
