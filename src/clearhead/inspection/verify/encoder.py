"""The checks of encoders: the vectors are the hidden states of the tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.equations import masks
from clearhead.inspection.verify.certificate import HEAD, Check
from clearhead.inspection.verify.checks import (
    CPU,
    LEAST_COSINE,
    LOGITS,
    MEANS,
    TOKENS,
    Checks,
    Measure,
    Rows,
    from_cosines,
    means,
    padded,
    random_ids,
    run_check,
    skip_check,
)
from clearhead.models.encoder import EncoderModel
from clearhead.runtime.packed_batch import packed_batches
from clearhead.tokenizers.base import Tokens


class EncoderChecks(Checks):
    """Those of an encoder."""

    model: EncoderModel
    # what `encode` gives: a vector for a text
    low = Measure(
        "1 − smallest cosine of a text's mean vector",
        1 - LEAST_COSINE,
        lambda found, expected: from_cosines(means(found), means(expected)),
    )

    def __init__(self, folder: Path, model: EncoderModel, family: EncoderFamily) -> None:
        super().__init__(folder, model)
        self.family = family
        self.rows = random_ids(model.config.vocab_size, {model.config.pad_id}, model.config.max_len)

    def states(
        self, model: Any, rows: Sequence[Tensor], left: int = 0, right: int = 0, *, packed: bool = False
    ) -> Rows:
        if packed:
            return self._packed(model, rows)
        ids, keep = padded(rows, self.model.config.pad_id, left, right)
        return _real(model(ids, masks.padding(keep)), keep)

    def _packed(self, model: Any, rows: Sequence[Tensor]) -> Rows:
        """As `encode` does."""
        tokens = [Tokens(row.tolist(), False) for row in rows]
        vectors: dict[int, Tensor] = {}
        for batch in packed_batches(tokens, 10**6, self.model.config, CPU):
            vectors.update(zip(batch.indices, _real(*batch.unpack(model(batch.ids, batch.mask))), strict=True))
        return [vectors[place] for place in range(len(rows))]

    def alone(self) -> list[Check]:
        """As `encode` computes it: there a text's vector does not depend on its batch."""

        def both() -> tuple[Rows, Rows]:
            each = [self._packed(self.model, [row])[0] for row in self.rows]
            return each, self._packed(self.model, self.rows)

        return run_check("each text alone", both, TOKENS, MEANS)

    def own(self) -> list[Check]:
        named = checkpoints.architecture(self.folder)
        known = checkpoints.checkpoint_type(self.folder) in ("classification", "span") or "For" not in named
        return [] if known else skip_check(HEAD, LOGITS, f"that of a {named} is not looked at")

    def foreign(self) -> Rows:
        from transformers import AutoModel

        theirs = AutoModel.from_pretrained(self.folder, dtype=torch.float32).eval()
        ids, keep = padded(self.rows, self.model.config.pad_id)
        return _real(theirs(input_ids=ids, attention_mask=keep.long()).last_hidden_state, keep)

    def saved(self, folder: Path) -> nn.Module:
        self.family.save(self.model, folder)
        return checkpoints.load_encoder(folder)[0]


def _real(states: Tensor, keep: Tensor) -> Rows:
    return [row[kept] for row, kept in zip(states, keep, strict=True)]
