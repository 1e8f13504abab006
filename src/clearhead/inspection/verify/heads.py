"""Checks of encoders with a head: those of the encoder, and the same for the logits of the head."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.equations import masks
from clearhead.inspection.verify.certificate import HEAD, PARITY, Check
from clearhead.inspection.verify.checks import (
    LEFT_PADDING,
    RIGHT_PADDING,
    padded,
    run_check,
    skip_check,
)
from clearhead.inspection.verify.encoder import EncoderChecks
from clearhead.inspection.verify.measures import LOGITS, Rows
from clearhead.models.heads import EncoderClassifier, SpanClassifier


class HeadChecks(EncoderChecks):
    """Checks of an encoder with a head for sequence classification or for spans.

    Args:
        folder, family: as in `EncoderChecks`.
        model: the encoder with its head.
    """

    full_model: EncoderClassifier | SpanClassifier

    def __init__(self, folder: Path, model: EncoderClassifier | SpanClassifier, family: EncoderFamily) -> None:
        super().__init__(folder, model.encoder, family)
        self.full_model = model

    def run(self, no_parity: str | None = None) -> Iterator[Check]:
        """Run all checks of the encoder, then those of its head; yield the results of each when it is done."""
        rows = self.rows
        yield from super().run(no_parity)
        yield from self._compare_logits("padding on the right", lambda: self.logits(rows, right=RIGHT_PADDING))
        yield from self._compare_logits("padding on the left", lambda: self.logits(rows, left=LEFT_PADDING))
        yield from self._compare_logits("unbatched", lambda: [self.logits([row])[0] for row in rows])
        yield from self._compare_logits("reversed batch", lambda: self.logits(rows[::-1])[::-1])
        if no_parity is None:
            yield from self._compare_logits(PARITY, self._reference_logits)
        else:
            yield from skip_check(f"{HEAD}: {PARITY}", LOGITS, no_parity)

    def _compare_logits(self, name: str, compute: Callable[[], Rows]) -> list[Check]:
        return run_check(f"{HEAD}: {name}", lambda: (compute(), self.logits(self.rows)), LOGITS)

    def logits(self, rows: Sequence[Tensor], left: int = 0, right: int = 0) -> Rows:
        """Return the logits of the head for rows of ids, with arguments as in `states`."""
        ids, keep = padded(rows, self.model.config.pad_id, left, right)
        return _text_logits(self.full_model(ids, masks.padding(keep)), keep)

    def _reference_logits(self) -> Rows:
        import transformers

        ids, keep = padded(self.rows, self.model.config.pad_id)
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": keep.long()}
        if isinstance(self.full_model, EncoderClassifier):
            reference = self.reference(transformers.AutoModelForSequenceClassification)
            return _text_logits(reference(**batch).logits, keep)
        output = self.reference(transformers.AutoModelForQuestionAnswering)(**batch)
        return _text_logits((output.start_logits, output.end_logits), keep)

    def save(self, folder: Path) -> None:
        self.family.save_with_head(self.full_model, folder)

    def save_and_load(self, folder: Path) -> nn.Module:
        self.save(folder)
        if isinstance(self.full_model, EncoderClassifier):
            return checkpoints.load_classifier(folder)[0]
        return checkpoints.load_span_classifier(folder)[0]


def _text_logits(logits: Tensor | tuple[Tensor, Tensor], keep: Tensor) -> Rows:
    """Return the logits of each text: (B, C), or start and end logits, each (B, L), of its real tokens."""
    if isinstance(logits, Tensor):
        return list(logits)
    return [torch.cat([start[real], end[real]]) for start, end, real in zip(*logits, keep, strict=True)]
