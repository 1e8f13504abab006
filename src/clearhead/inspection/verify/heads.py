"""The checks of encoders with a head: those of the encoder, and the head's own results beside them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.equations import masks
from clearhead.inspection.verify.certificate import HEAD, PARITY, Check
from clearhead.inspection.verify.checks import ABSENT, LOGITS, Rows, padded, run_check, skip_check
from clearhead.inspection.verify.encoder import EncoderChecks
from clearhead.models.heads import EncoderClassifier, SpanClassifier


class HeadChecks(EncoderChecks):
    """Those of an encoder with a head that classifies, or that finds spans."""

    whole: EncoderClassifier | SpanClassifier

    def __init__(self, folder: Path, whole: EncoderClassifier | SpanClassifier, family: EncoderFamily) -> None:
        super().__init__(folder, whole.body, family)
        self.whole = whole

    @torch.inference_mode()
    def all(self, there: bool) -> list[Check]:
        """Every check of the encoder, then those of its head."""
        rows, parity = self.rows, f"{HEAD}: {PARITY}"
        return [
            *super().all(there),
            *self._same("padding on the right", lambda: self.logits(rows, right=7)),
            *self._same("padding on the left", lambda: self.logits(rows, left=5)),
            *self._same("each text alone", lambda: [self.logits([row])[0] for row in rows]),
            *self._same("another order of the batch", lambda: self.logits(rows[::-1])[::-1]),
            *(self._same(PARITY, self._foreign_logits) if there else skip_check(parity, LOGITS, ABSENT)),
        ]

    def _same(self, name: str, compute: Callable[[], Rows]) -> list[Check]:
        return run_check(f"{HEAD}: {name}", lambda: (compute(), self.logits(self.rows)), LOGITS)

    def logits(self, rows: Sequence[Tensor], left: int = 0, right: int = 0) -> Rows:
        """The head's numbers for each of the rows of ids, as `states` gives the encoder's vectors."""
        ids, keep = padded(rows, self.model.config.pad_id, left, right)
        return _of_texts(self.whole(ids, masks.padding(keep)), keep)

    def _foreign_logits(self) -> Rows:
        import transformers

        ids, keep = padded(self.rows, self.model.config.pad_id)
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": keep.long()}
        if isinstance(self.whole, EncoderClassifier):
            opened = transformers.AutoModelForSequenceClassification
            return _of_texts(opened.from_pretrained(self.folder, dtype=torch.float32).eval()(**given).logits, keep)
        reader = transformers.AutoModelForQuestionAnswering.from_pretrained(self.folder, dtype=torch.float32).eval()
        found = reader(**given)
        return _of_texts((found.start_logits, found.end_logits), keep)

    def saved(self, folder: Path) -> nn.Module:
        self.family.save_with_head(self.whole, folder)
        if isinstance(self.whole, EncoderClassifier):
            return checkpoints.load_classifier(folder)[0]
        return checkpoints.load_span_classifier(folder)[0]


def _of_texts(found: Tensor | tuple[Tensor, Tensor], keep: Tensor) -> Rows:
    """The logits (B, C), or beginnings and ends, each (B, L), of each text's real tokens."""
    if isinstance(found, Tensor):
        return list(found)
    return [torch.cat([begin[kept], end[kept]]) for begin, end, kept in zip(*found, keep, strict=True)]
