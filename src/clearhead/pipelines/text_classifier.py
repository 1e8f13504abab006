"""Classify texts with a trained encoder."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.finite import check_finite, error_context
from clearhead.io import hub
from clearhead.models.heads import EncoderClassifier
from clearhead.pipelines.base import Pipeline, check_room, prepare_inference, warn_truncated
from clearhead.runtime.int8.files import int8_file
from clearhead.runtime.packed_batch import check_not_empty, packed_batches
from clearhead.runtime.streaming import WINDOW_TEXTS, chunked, prefetch
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import Tokens, as_texts
from clearhead.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Classification:
    """The predicted label of a text.

    Args:
        label: the most probable label.
        probability: its probability.
        probabilities: probability of each label, in the model's order; they sum to 1 if labels exclude each other.
        truncated: whether the text was longer than the model's limit and was truncated.
    """

    label: str
    probability: float
    probabilities: dict[str, float]
    truncated: bool = False


class TextClassifier(Pipeline[EncoderClassifier]):
    """An encoder with a classification head, from texts to labels.

    Equation: p = softmax(y), or σ(y) where each label is judged for itself
    Source: Devlin et al. 2018, "BERT", Section 4.1

    Args:
        model: the encoder with its head, in float32.
        tokenizer: its tokenizer.
        family: the checkpoint family for `save_pretrained`.
        precision: "float32", "bfloat16", "int8", or "auto", the fastest accurate one on this processor.
        device: "auto", "cpu", "cuda" ...
        int8_weights: as in `TextEncoder`.

    >>> from clearhead import TextClassifier
    >>> TextClassifier.from_pretrained("my-model").classify("What a film!").label  # doctest: +SKIP
    'positive'
    """

    def __init__(
        self,
        model: EncoderClassifier,
        tokenizer: Tokenizer,
        family: EncoderFamily,
        *,
        precision: str = "auto",
        device: str = "auto",
        int8_weights: Path | None = None,
    ) -> None:
        if model.head_config.problem == "regression":
            raise ValueError(
                "this is a regression model (problem_type in config.json), which has no probabilities of labels. Score "
                "pairs of texts with Reranker"
            )
        self.model, self.tokenizer, self.family = model, tokenizer, family
        self.name = f"of type {family.model_type}"
        config = model.encoder.config
        self.max_length = min(tokenizer.max_length or config.max_len, config.max_len)
        self.device, self.precision, self.int8, self.inference_model = prepare_inference(
            model, tokenizer, self.max_length, precision=precision, device=device, int8_weights=int8_weights
        )

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        precision: str = "auto",
        device: str = "auto",
        revision: str | None = None,
    ) -> "TextClassifier":
        """Load a classifier from a local folder or the Hugging Face Hub.

        Args:
            name: a folder or a Hub id.
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.

        Raises:
            ValueError: no such model, missing or broken files, or a model without a classification head.
        """
        folder = hub.resolve_model(name, revision)
        model, family = checkpoints.load_classifier(folder)
        tokenizer = check_vocabulary(Tokenizer.from_folder(folder), folder, model.encoder.config.vocab_size)
        with error_context(model=str(name)):
            classifier = cls(
                model, tokenizer, family, precision=precision, device=device, int8_weights=int8_file(folder)
            )
        check_room(folder, tokenizer, classifier.max_length)
        classifier.name = str(name)
        return classifier

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that transformers opens, with the weights in float32."""
        folder = Path(folder)
        self.family.save_with_head(self.model, folder)
        self.tokenizer.save(folder, self.max_length)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the model's order."""
        return self.model.head_config.labels

    @property
    def exclusive(self) -> bool:
        """Whether exactly one label applies, so that the probabilities sum to 1."""
        return self.model.head_config.problem == "single_label_classification" and len(self.labels) > 1

    def probabilities(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the probability of each label for logits."""
        return logits.softmax(dim=-1) if self.exclusive else logits.sigmoid()

    @overload
    def classify(  # type: ignore[overload-overlap]  # a string is an iterable of strings, too
        self, texts: str, *, batch_tokens: int | None = None
    ) -> Classification: ...
    @overload
    def classify(self, texts: Iterable[str], *, batch_tokens: int | None = None) -> list[Classification]: ...
    def classify(
        self, texts: str | Iterable[str], *, batch_tokens: int | None = None
    ) -> Classification | list[Classification]:
        """Classify each text, in the order of the texts.

        Args:
            texts: a text, or texts in a list, tuple, NumPy array, pandas Series, generator ... A text that is longer
                than the model's limit is truncated, and a warning counts them.
            batch_tokens: number of tokens in a batch; None for the default of the device.

        Returns:
            A list with one result per text; for a single text, its result.

        Raises:
            ValueError: a text that is not a Unicode string.
            NonFiniteError: the logits of a text hold NaN or infinity.
        """
        listed, single = as_texts(texts)
        tokens = self.tokenizer.encode(listed, self.max_length)
        warn_truncated([text.truncated for text in tokens], self.max_length, "Split them")
        results = self._classify(listed, tokens, batch_tokens)
        return results[0] if single else results

    def stream(
        self,
        texts: Iterable[str],
        *,
        batch_tokens: int | None = None,
        window: int = WINDOW_TEXTS,
        on_batch: Callable[[int, int], object] = lambda texts, tokens: None,
    ) -> Iterator[Classification]:
        """Classify a stream of texts, which is never held in memory as a whole.

        Args:
            texts, batch_tokens: as in `classify`.
            window: number of texts that are read and computed together.
            on_batch: called after each batch with the number of its texts and tokens.
        """

        def tokenized() -> Iterator[tuple[list[str], list[Tokens]]]:
            for chunk in chunked(texts, window):
                yield chunk, self.tokenizer.encode(chunk, self.max_length)

        done = 0
        for chunk, tokens in prefetch(tokenized()):
            with error_context(index=done.__add__):
                classifications = self._classify(chunk, tokens, batch_tokens, on_batch)
            yield from classifications
            done += len(chunk)

    def _classify(
        self,
        texts: Sequence[str],
        tokens: Sequence[Tokens],
        batch_tokens: int | None,
        on_batch: Callable[[int, int], object] = lambda texts, tokens: None,
    ) -> list[Classification]:
        with error_context(text=texts.__getitem__, model=self.name, precision=self.precision.name):
            rows = self._probabilities(tokens, batch_tokens, on_batch)
        return [self._classification(row, text.truncated) for row, text in zip(rows.tolist(), tokens, strict=True)]

    def _probabilities(
        self, tokens: Sequence[Tokens], batch_tokens: int | None, on_batch: Callable[[int, int], object]
    ) -> Tensor:
        """Return the probabilities (n, number of labels) of texts."""
        rows = torch.empty(len(tokens), len(self.labels))
        self.inference_model.eval()
        check_not_empty(tokens)
        for batch in packed_batches(tokens, batch_tokens, self.model.encoder.config, self.device):
            with torch.inference_mode():
                hidden, keep = batch.unpack(self.inference_model.encoder(batch.ids, batch.mask))
                logits = self.inference_model.logits(hidden, keep).float().cpu()
            check_finite(logits.numpy(), "logits", batch.indices)  # the sigmoid of infinity is finite
            rows[batch.indices] = self.probabilities(logits)
            on_batch(len(batch.indices), batch.num_tokens)
        return rows

    def _classification(self, row: list[float], truncated: bool) -> Classification:
        best = max(range(len(row)), key=row.__getitem__)
        return Classification(self.labels[best], row[best], dict(zip(self.labels, row, strict=True)), truncated)
