"""Texts to vectors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, overload

import numpy as np
import torch
from torch import Tensor

from clearhead import checkpoints
from clearhead.checkpoints import sentence_transformers
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.sentence_transformers import SentenceSettings
from clearhead.choices import check_choice
from clearhead.finite import naming
from clearhead.io import hub
from clearhead.models.config import POOLINGS, Pooling
from clearhead.models.encoder import EncoderModel
from clearhead.pipelines.vectors import HiddenStates, Vectors, normalized, pooled_vectors, token_vectors
from clearhead.runtime.packed_batch import packed_batches
from clearhead.runtime.precision import Precision, device_named, dtype_for, inference_copy, trim_memory
from clearhead.runtime.progress import token_progress
from clearhead.runtime.streaming import WINDOW_TEXTS, chunked, prefetch
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import Tokens, check_texts
from clearhead.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodeOptions:
    """What `TextEncoder.encode` takes beside the texts, as a value; the meanings are told there."""

    pooling: Pooling | Literal["tokens"] | None = None
    normalize: bool | None = None
    max_length: int | None = None
    batch_tokens: int | None = None
    prompt: str | None = None
    truncate_dim: int | None = None


@dataclass(frozen=True)
class EncodedBatch:
    """Some texts of a stream, with their vectors (n, d).

    Args:
        texts: the texts.
        vectors: one each, float32.
        tokens: how many tokens they have, special ones included.
        truncated: how many of them have been cut.
    """

    texts: list[str]
    vectors: Vectors
    tokens: int
    truncated: int


class TextEncoder:
    """A model that turns texts into vectors.

    Args:
        model: the encoder, in float32.
        tokenizer: its tokenizer.
        settings: pooling, normalisation, longest text, prompts.
        family: the checkpoint family that `save_pretrained` writes.
        precision: "float32", "bfloat16", or "auto": bfloat16 where the processor multiplies it fast.
        device: "auto", "cpu", "cuda", "cuda:1", "mps" ...
        compiles: whether PyTorch's compiler writes a part of each layer anew. The first texts wait for it, and where it
            was measured the others gained nothing; `benchmarks/alternatives.py` tells of your processor.

    Raises:
        ValueError: a device that is not there, an unknown precision, or no C++ compiler for `compiles`.

    >>> from clearhead import TextEncoder
    >>> TextEncoder.from_pretrained().encode(["Hello, world"]).shape  # doctest: +SKIP
    (1, 384)
    """

    def __init__(
        self,
        model: EncoderModel,
        tokenizer: Tokenizer,
        settings: SentenceSettings,
        family: EncoderFamily,
        *,
        precision: Precision = "auto",
        device: str = "auto",
        compiles: bool = False,
    ) -> None:
        longest = [length for length in (settings.max_length, tokenizer.max_length) if length is not None][:1]
        self.model, self.tokenizer, self.family = model, tokenizer, family
        self.name = f"of type {family.model_type}"
        self.settings = replace(settings, max_length=min([*longest, model.config.max_len]))
        self.device = device_named(device)
        self.dtype = dtype_for(precision, self.device)
        self.compiles = compiles
        self._runner = inference_copy(model, self.dtype, self.device, compiles=compiles)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path = hub.DEFAULT_MODEL,
        *,
        precision: Precision = "auto",
        device: str = "auto",
        compiles: bool = False,
        revision: str | None = None,
    ) -> "TextEncoder":
        """The text encoder in a local folder or on the Hugging Face Hub.

        Args:
            name: a folder, a Hub id, or "all-MiniLM-L6-v2", the default.
            precision, device, compiles: as in the class.
            revision: branch, tag or commit, for a Hub id.

        Raises:
            ValueError: no such model, files that are missing or broken, an architecture or option that is not
                understood; the message says which.
        """
        folder = hub.resolve_model(name, revision)
        model, family = checkpoints.load_encoder(folder)
        encoder = cls(
            model,
            check_vocabulary(Tokenizer.from_folder(folder), folder, model.config.vocab_size),
            sentence_transformers.read_settings(folder),
            family,
            precision=precision,
            device=device,
            compiles=compiles,
        )
        encoder.name = str(name)
        return encoder

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that transformers and sentence-transformers open, with the weights in float32."""
        folder = Path(folder)
        self.family.save(self.model, folder)
        self.tokenizer.save(folder, self.settings.max_length)
        sentence_transformers.write_settings(folder, self.settings, self.model.config.d_model)

    def width(self, truncate_dim: int | None = None) -> int:
        """Return the number of columns of a vector.

        Raises:
            ValueError: truncate_dim is below 1 or above the model's width.
        """
        d_model = self.model.config.d_model
        if truncate_dim is None:
            return d_model
        if truncate_dim < 1:
            raise ValueError(f"truncate_dim must be at least 1; got {truncate_dim}")
        if truncate_dim > d_model:
            raise ValueError(
                f"truncate_dim is {truncate_dim}, but this model's vectors have {d_model} columns; give {d_model} or "
                "less"
            )
        return truncate_dim

    def tokenize(
        self, texts: Sequence[str], *, max_length: int | None = None, prompt: str | None = None
    ) -> list[Tokens]:
        """The texts as this model sees them; arguments as in `encode`."""
        texts = check_texts(texts)
        limit = cast(int, self.settings.max_length) if max_length is None else max_length
        if limit > self.model.config.max_len:
            raise ValueError(f"max_length is {limit}, but this model takes at most {self.model.config.max_len} tokens")
        before = self._prompt(prompt)
        if before:
            self._check_prompt(before, limit)
        return self.tokenizer.encode([before + text for text in texts] if before else texts, limit)

    @overload
    def encode(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        show_progress: bool = False,
    ) -> Vectors: ...
    @overload
    def encode(
        self,
        texts: Sequence[str],
        *,
        pooling: Literal["tokens"],
        normalize: bool | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        show_progress: bool = False,
    ) -> list[Vectors]: ...
    def encode(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | Literal["tokens"] | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        show_progress: bool = False,
    ) -> Vectors | list[Vectors]:
        """One vector for each text, in the order of the texts.

        Args:
            texts: the texts; an empty one gives a vector as well.
            pooling: "mean", "cls", "max", or "tokens" for one vector a token; None for what the model says.
            normalize: whether vectors are brought to length 1; None for what the model says, of one
                vector a text; vectors of tokens stay as they are.
            max_length: tokens after which a text is cut, special tokens included; None for what the model says.
            batch_tokens: tokens in a batch; None for what keeps the device busy: more is not faster.
            prompt: the name of one of the model's prompts, or a text that is put before each text;
                None for the model's default prompt.
            truncate_dim: keep the first columns only, before normalising (for models trained to be cut).
            show_progress: a progress bar on standard error.

        Returns:
            float32, (n, d); for "tokens" a list of (length, d).

        Raises:
            ValueError: an option out of range, a prompt that leaves no room for a text, or a text that is no Unicode
                string.
            NonFiniteError: a vector holds NaN or infinity, or its norm overflows.
        """
        texts = check_texts(texts)
        options = EncodeOptions(pooling, normalize, max_length, batch_tokens, prompt, truncate_dim)
        tokens = self.tokenize(texts, max_length=max_length, prompt=prompt)
        total = sum(len(text.ids) for text in tokens)
        with token_progress(total, show_progress) as advance, naming(text=texts.__getitem__):
            return self.encode_tokens(tokens, options, lambda count: advance(count, count))

    def stream(
        self, texts: Iterable[str], options: "EncodeOptions | None" = None, *, window: int = WINDOW_TEXTS
    ) -> Iterator["EncodedBatch"]:
        """Vectors of texts without end: the input is never held whole.

        Texts are taken in windows; while one is computed, the next is read and tokenised. A text's window follows from
        its place in the input alone.

        Args:
            texts: any iterable of strings.
            options: as the arguments of `encode` (pooling "tokens" is not possible here).
            window: texts in a window.

        Yields:
            A window with its vectors, in the order of the texts.

        Raises:
            NonFiniteError: as in `encode`.
        """
        options = options or EncodeOptions()
        if options.pooling == "tokens":
            raise ValueError("a stream has one vector a text; pooling by tokens is for encode()")

        def prepared() -> Iterator[tuple[list[str], list[Tokens]]]:
            for some in chunked(texts, window):
                yield some, self.tokenize(some, max_length=options.max_length, prompt=options.prompt)

        before = 0
        for some, tokens in prefetch(prepared()):
            with naming(index=before.__add__, text=some.__getitem__):
                vectors = cast(Vectors, self.encode_tokens(tokens, options))
            before += len(some)
            trim_memory()
            yield EncodedBatch(
                some, vectors, sum(len(text.ids) for text in tokens), sum(text.truncated for text in tokens)
            )

    def encode_tokens(
        self,
        tokens: Sequence[Tokens],
        options: "EncodeOptions | None" = None,
        advance: Callable[[int], None] = lambda tokens: None,
    ) -> Vectors | list[Vectors]:
        """As `encode`, of texts that are tokens already.

        Args:
            tokens: what `tokenize` gives.
            options: as the arguments of `encode`.
            advance: told how many tokens were computed, batch by batch.

        Raises:
            NonFiniteError: as in `encode`.
        """
        options, settings = options or EncodeOptions(), self.settings
        pooling = settings.pooling if options.pooling is None else options.pooling
        check_choice("pooling", pooling, (*POOLINGS, "tokens"))
        # a model that normalises its vectors does not normalise its tokens'
        says = settings.normalize and pooling != "tokens"
        normalize = says if options.normalize is None else options.normalize
        width = self.width(options.truncate_dim)
        skip = 0 if settings.pool_prompt or pooling == "tokens" else self._prompt_tokens(options.prompt)

        def finish(vectors: Tensor) -> Tensor:
            cut = vectors[..., :width].float()
            return normalized(cut) if normalize else cut

        def decoded(index: int) -> str:
            return self.tokenizer.decode(tokens[index].ids)

        runs = self._hidden_states(tokens, options.batch_tokens, advance)
        with naming(text=decoded, model=self.name, precision=str(self.dtype).removeprefix("torch.")):
            if pooling == "tokens":
                return token_vectors(runs, len(tokens), width, finish)
            return pooled_vectors(runs, np.empty((len(tokens), width), np.float32), skip, pooling, finish)

    def _hidden_states(
        self, tokens: Sequence[Tokens], batch_tokens: int | None, advance: Callable[[int], None]
    ) -> Iterator[HiddenStates]:
        """Batches of hidden states (B, L, D), with the indices of their texts and the (B, L) mask of real tokens."""
        self._runner.eval()
        for batch in packed_batches(tokens, batch_tokens, self.model.config, self.device):
            with torch.inference_mode():
                hidden, keep = batch.unpack(self._runner(batch.ids, batch.mask))
            yield batch.indices, hidden, keep
            advance(batch.tokens)

    def _prompt(self, prompt: str | None) -> str:
        prompts = self.settings.prompts
        if prompt is None:
            return prompts.get(self.settings.default_prompt or "", "")
        return prompts.get(prompt, prompt)

    def _check_prompt(self, before: str, limit: int) -> None:
        """Raise a ValueError for a prompt that fills the limit: all texts would get the same vector."""
        (alone,) = self.tokenizer.encode([before])
        if len(alone.ids) >= limit:
            raise ValueError(
                f"the prompt takes {len(alone.ids)} tokens with the special ones, and texts are truncated to {limit}: "
                "no token of a text would be left. Give a shorter prompt or a greater max_length"
            )

    def _prompt_tokens(self, prompt: str | None) -> int:
        """How many tokens the prompt takes at the start of each text, the first special ones included."""
        before = self._prompt(prompt)
        if not before:
            return 0
        (alone,) = self.tokenizer.encode([before])
        (nothing,) = self.tokenizer.encode([""])
        closing = 1 if nothing.ids and alone.ids[-1] == nothing.ids[-1] else 0
        return len(alone.ids) - closing
