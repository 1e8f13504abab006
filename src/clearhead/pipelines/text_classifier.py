"""What people ask of a trained encoder beside vectors."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.finite import check_finite, naming
from clearhead.io import hub
from clearhead.models.heads import EncoderClassifier
from clearhead.runtime.packed_batch import packed_batches
from clearhead.runtime.precision import Precision, device_named, dtype_for, inference_copy
from clearhead.runtime.streaming import WINDOW_TEXTS, chunked, prefetch
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import Tokens, check_texts
from clearhead.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Classification:
    """What a classifier says of one text.

    Args:
        label: the most probable label.
        probability: its probability.
        probabilities: of all labels, in the model's order; they sum to 1 where exactly one label is right.
    """

    label: str
    probability: float
    probabilities: dict[str, float]


class TextClassifier:
    """An encoder with a classification head, from a checkpoint.

    Equation: p = softmax(y), or σ(y) where each label is judged for itself
    Source: Devlin et al. 2018, "BERT", Section 4.1

    Args:
        model: the encoder with its head, in float32.
        tokenizer: its tokenizer.
        family: the checkpoint family that `save_pretrained` writes.
        precision: "float32", "bfloat16", or "auto": bfloat16 where the processor multiplies it fast.
        device: "auto", "cpu", "cuda" ...

    >>> from clearhead import TextClassifier
    >>> TextClassifier.from_pretrained("my-model").classify(["What a film!"])[0].label  # doctest: +SKIP
    'positive'
    """

    def __init__(
        self,
        model: EncoderClassifier,
        tokenizer: Tokenizer,
        family: EncoderFamily,
        *,
        precision: Precision = "auto",
        device: str = "auto",
    ) -> None:
        if model.head_config.problem == "regression":
            raise ValueError("this model gives numbers (problem_type is regression), not probabilities of labels")
        self.model, self.tokenizer, self.family = model, tokenizer, family
        self.name = f"of type {family.model_type}"
        self.device = device_named(device)
        self.dtype = dtype_for(precision, self.device)
        self._runner = inference_copy(model, self.dtype, self.device)
        config = model.encoder.config
        self.max_length = min(tokenizer.max_length or config.max_len, config.max_len)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        precision: Precision = "auto",
        device: str = "auto",
        revision: str | None = None,
    ) -> "TextClassifier":
        """The classifier in a local folder or on the Hugging Face Hub.

        Args:
            name: a folder or a Hub id.
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.

        Raises:
            ValueError: no such model, files that are missing or broken, or a model without a classification head.
        """
        folder = hub.resolve_model(name, revision)
        model, family = checkpoints.load_classifier(folder)
        tokenizer = check_vocabulary(Tokenizer.from_folder(folder), folder, model.encoder.config.vocab_size)
        classifier = cls(model, tokenizer, family, precision=precision, device=device)
        classifier.name = str(name)
        return classifier

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that transformers opens, with the weights in float32."""
        folder = Path(folder)
        self.family.save_with_head(self.model, folder)
        self.tokenizer.save(folder, self.max_length)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the model's order."""
        return self.model.head_config.labels

    def classify(self, texts: Sequence[str], *, batch_tokens: int | None = None) -> list[Classification]:
        """What the model says of each text, in the order of the texts.

        Args:
            texts: the texts; what is longer than the model is cut.
            batch_tokens: tokens in a batch; None for what keeps the device busy.

        Raises:
            ValueError: a text that is no Unicode string.
            NonFiniteError: the logits of a text hold NaN or infinity.
        """
        texts = check_texts(texts)
        return self._classified(texts, self.tokenizer.encode(texts, self.max_length), batch_tokens)

    def stream(self, texts: Iterable[str], *, batch_tokens: int | None = None) -> Iterator[Classification]:
        """The same for texts without end; the input is never held whole."""

        def prepared() -> Iterator[tuple[list[str], list[Tokens]]]:
            for some in chunked(texts, WINDOW_TEXTS):
                yield some, self.tokenizer.encode(some, self.max_length)

        before = 0
        for some, tokens in prefetch(prepared()):
            with naming(index=before.__add__):
                found = self._classified(some, tokens, batch_tokens)
            yield from found
            before += len(some)

    def _classified(
        self, texts: Sequence[str], tokens: Sequence[Tokens], batch_tokens: int | None
    ) -> list[Classification]:
        precision = str(self.dtype).removeprefix("torch.")
        with naming(text=texts.__getitem__, model=self.name, precision=precision):
            rows = self._probabilities(tokens, batch_tokens)
        return [self._said(row) for row in rows.tolist()]

    def _probabilities(self, tokens: Sequence[Tokens], batch_tokens: int | None) -> Tensor:
        rows = torch.empty(len(tokens), len(self.labels))
        one_right = self.model.head_config.problem == "single_label_classification" and len(self.labels) > 1
        self._runner.eval()
        for batch in packed_batches(tokens, batch_tokens, self.model.encoder.config, self.device):
            with torch.inference_mode():
                hidden, keep = batch.unpack(self._runner.encoder(batch.ids, batch.mask))
                logits = self._runner.logits(hidden, keep).float().cpu()
            check_finite(logits.numpy(), "logits", batch.indices)  # a sigmoid of infinity would be finite
            rows[batch.indices] = logits.softmax(dim=-1) if one_right else logits.sigmoid()
        return rows

    def _said(self, row: list[float]) -> Classification:
        best = max(range(len(row)), key=row.__getitem__)
        return Classification(self.labels[best], row[best], dict(zip(self.labels, row, strict=True)))
