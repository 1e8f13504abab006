"""Checks of encoder–decoders, which compare the logits of random targets."""

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
from clearhead.inspection.verify.checks import Checks, padded, random_ids, run_check
from clearhead.inspection.verify.measures import LEAST_COSINE, OUTPUTS, TOKENS, Measure, Rows, cosine_error
from clearhead.models.seq2seq import Seq2Seq

_TARGET_LENGTH = 20
"""Tokens of a target; T5's decoder has one bucket for each of the last 16 distances, and wider ones beyond."""
_MAX_NEW_TOKENS = 12


def _centered(rows: Rows) -> Rows:
    return [row - row.mean(dim=-1, keepdim=True) for row in rows]


class Seq2SeqChecks(Checks):
    """Checks of an encoder–decoder.

    Args:
        folder, model: as in `Checks`.
        family: architecture of the checkpoint.
    """

    model: Seq2Seq
    # a token is chosen by the logits of one position, and a constant added to all of them changes no probability
    bfloat16_measure = Measure(
        "1 − smallest cosine of a token's logits less their mean",
        1 - LEAST_COSINE,
        lambda result, expected: cosine_error(_centered(result), _centered(expected)),
    )

    def __init__(self, folder: Path, model: Seq2Seq, family: Seq2SeqFamily) -> None:
        super().__init__(folder, model)
        self.family, self.config = family, model.config
        special = {self.config.pad_id, self.config.start_id, *self.config.eos_ids}
        self.rows = random_ids(self.config.vocab_size, special, self.config.max_len)
        vocab_size = self.config.target_vocab_size or self.config.vocab_size
        targets = random_ids(vocab_size, special, self.config.max_len, length=_TARGET_LENGTH)
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
            return [
                model.decode(self._targets([row]), states[None])[0] for row, states in zip(rows, memory, strict=True)
            ]
        ids, keep = padded(rows, self.config.pad_id, left, right)
        return list(model(ids, self._targets(rows), masks.padding(keep)))

    def reference_states(self) -> Rows:
        from transformers import AutoModelForSeq2SeqLM

        reference = AutoModelForSeq2SeqLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        ids, keep = padded(self.rows, self.config.pad_id)
        targets = self._targets(self.rows)
        return list(reference(input_ids=ids, attention_mask=keep.long(), decoder_input_ids=targets).logits)

    def save_and_load(self, folder: Path) -> Seq2Seq:
        self.family.save(self.model, folder)
        return checkpoints.load_seq2seq(folder)[0]

    def extra(self) -> list[Check]:
        return [
            *self.compare("cached = uncached", self._cached, TOKENS),
            *run_check("one beam = greedy", self._one_beam_and_greedy, OUTPUTS),
        ]

    def _cached(self) -> Rows:
        ids, keep = padded(self.rows, self.config.pad_id)
        mask, targets = masks.padding(keep), self._targets(self.rows)
        memory, cache = self.model.encode(ids, mask), self.model.cache()
        steps = [self.model.decode(new, memory, None, mask, cache) for new in torch.split(targets, 1, dim=1)]
        return list(torch.cat(steps, dim=1))

    def _one_beam_and_greedy(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        ids, keep = padded(self.rows, self.config.pad_id)
        prompt, ends = torch.full((len(ids), 1), self.config.start_id), self.config.eos_ids
        greedy = greedy_search(DecodingState(self.model, ids, keep, prompt), (), _MAX_NEW_TOKENS, ends, 1.0)
        settings = GenerationConfig(beam_size=1)
        beams = beam_search(DecodingState(self.model, ids, keep, prompt), (), settings, _MAX_NEW_TOKENS, ends)
        return [best.ids for (best, *_) in beams], [hypothesis.ids for hypothesis in greedy]
