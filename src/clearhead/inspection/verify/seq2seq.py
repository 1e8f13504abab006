"""The checks of encoder–decoders: the vectors are the logits after each token of drawn targets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import checkpoints
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.equations import masks
from clearhead.generation.beam import beam_search
from clearhead.generation.config import GenerationConfig
from clearhead.generation.greedy import greedy_search
from clearhead.generation.state import DecodingState
from clearhead.inspection.verify.certificate import Check
from clearhead.inspection.verify.checks import (
    LEAST_COSINE,
    OUTPUTS,
    TOKENS,
    Checks,
    Measure,
    Rows,
    from_cosines,
    padded,
    random_ids,
    run_check,
)
from clearhead.models.seq2seq import Seq2Seq

_TARGET = 20
"""Tokens of a target: T5's decoder tells the last 16 apart, and has buckets for those further back."""


def _centred(rows: Rows) -> Rows:
    return [row - row.mean(dim=-1, keepdim=True) for row in rows]


class Seq2SeqChecks(Checks):
    """Those of an encoder–decoder."""

    model: Seq2Seq
    # each token is chosen by the scores of one place alone, and what all scores have in common changes no probability
    low = Measure(
        "1 − smallest cosine of a token's logits less their mean",
        1 - LEAST_COSINE,
        lambda found, expected: from_cosines(_centred(found), _centred(expected)),
    )

    def __init__(self, folder: Path, model: Seq2Seq, family: Seq2SeqFamily) -> None:
        super().__init__(folder, model)
        self.family, self.config = family, model.config
        special = {self.config.pad_id, self.config.start_id, *self.config.eos_ids}
        self.rows = random_ids(self.config.vocab_size, special, self.config.max_len)
        vocabulary = self.config.target_vocab_size or self.config.vocab_size
        targets = random_ids(vocabulary, special, self.config.max_len, length=_TARGET)
        self.targets = {
            tuple(row.tolist()): torch.cat([torch.tensor([self.config.start_id]), target])
            for row, target in zip(self.rows, targets, strict=True)
        }

    def _targets(self, rows: Sequence[Tensor]) -> Tensor:
        return torch.stack([self.targets[tuple(row.tolist())] for row in rows])

    def states(
        self, model: Any, rows: Sequence[Tensor], left: int = 0, right: int = 0, *, packed: bool = False
    ) -> Rows:
        if packed:
            lengths = [len(row) for row in rows]
            memory = model.encode(torch.cat(list(rows))[None], masks.packed(lengths))[0].split(lengths)
            return [model.decode(self._targets([row]), part[None])[0] for row, part in zip(rows, memory, strict=True)]
        ids, keep = padded(rows, self.config.pad_id, left, right)
        return list(model(ids, self._targets(rows), masks.padding(keep)))

    def foreign(self) -> Rows:
        from transformers import AutoModelForSeq2SeqLM

        theirs = AutoModelForSeq2SeqLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        ids, keep = padded(self.rows, self.config.pad_id)
        targets = self._targets(self.rows)
        return list(theirs(input_ids=ids, attention_mask=keep.long(), decoder_input_ids=targets).logits)

    def saved(self, folder: Path) -> Seq2Seq:
        self.family.save(self.model, folder)
        return checkpoints.load_seq2seq(folder)[0]

    def own(self) -> list[Check]:
        return [
            *self.near("cached = uncached", self._cached, TOKENS),
            *run_check("one beam = greedy", self._one_beam, OUTPUTS),
        ]

    def _cached(self) -> Rows:
        ids, keep = padded(self.rows, self.config.pad_id)
        mask, targets = masks.padding(keep), self._targets(self.rows)
        memory, cache = self.model.encode(ids, mask), self.model.cache()
        steps = [self.model.decode(new, memory, None, mask, cache) for new in torch.split(targets, 1, dim=1)]
        return list(torch.cat(steps, dim=1))

    def _one_beam(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        ids, keep = padded(self.rows, self.config.pad_id)
        prompt, ends = torch.full((len(ids), 1), self.config.start_id), self.config.eos_ids
        greedy = greedy_search(DecodingState(self.model, ids, keep, prompt), (), 12, ends, 1.0)
        beams = beam_search(DecodingState(self.model, ids, keep, prompt), (), GenerationConfig(beam_size=1), 12, ends)
        return [best.ids for (best, *_) in beams], [one.ids for one in greedy]
