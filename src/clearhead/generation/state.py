"""Sentences that are decoded together, step by step; those that are finished leave."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.generation.beam_cache import as_beam_cache
from clearhead.models.config import Seq2SeqConfig


@dataclass(frozen=True)
class Hypothesis:
    """One output for a source.

    Args:
        ids: the new token ids, with the end token where there is one; without start token and prefix.
        log_probs: the log-probability of each, after what the settings do to the scores.
        score: their sum, divided by their number to the power of the length penalty.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float


@runtime_checkable
class GenerationModel(Protocol):
    """What a search asks of a model: a `Seq2Seq` answers, and so does an exported one."""

    @property
    def config(self) -> Seq2SeqConfig:
        """The plan."""

    @property
    def device(self) -> torch.device:
        """Where ids are wanted, and where scores are."""

    def encode(self, ids: Tensor, mask: Any) -> Tensor:
        """As `Seq2Seq.encode`."""

    def decode(self, target_ids: Tensor, memory: Tensor, mask: Any, memory_mask: Any, cache: Any) -> Tensor:
        """As `Seq2Seq.decode`."""

    def cache(self) -> Any:
        """Return an empty cache: that of `Seq2Seq.cache`, or a `BeamCache` of another kind."""


class DecodingState:
    """The state of a search: the targets so far, the memory and the caches.

    Args:
        model: the model, in evaluation mode.
        source_ids: (B, M), padded.
        keep: bool (B, M), True at real tokens.
        prompt: (B, P) target ids that are given: the start token, and what is forced after it.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: GenerationModel,
        source_ids: Int[Tensor, "B M"],
        keep: Bool[Tensor, "B M"],
        prompt: Int[Tensor, "B P"],
    ) -> None:
        self.model, self.num_beams = model, 1
        self.source_ids, self.keep = source_ids, keep
        self._parts = list(model.modules()) if isinstance(model, nn.Module) else []
        self.memory = self._encoded()
        self.ids, self.prompt = prompt, prompt.shape[1]
        self.sentences = list(range(len(source_ids)))
        self._cache = as_beam_cache(model.cache())

    @property
    def length(self) -> int:
        """Tokens that each target has so far, its prompt included."""
        return self.ids.shape[1]

    @torch.no_grad()
    def logits(self) -> Float[Tensor, "N V"]:
        """The scores of the next token of each target, in float32; the caller's own, to write into."""
        new = self.ids[:, self._cache.length :]
        logits = self.model.decode(new, self.memory, None, masks.padding(self.keep), self._cache)[:, -1].float()
        return logits.clone() if self._looked_at() else logits

    def _looked_at(self) -> bool:
        """Whether somebody may hold what the model's parts gave: a trace does."""
        return any(part._forward_hooks for part in self._parts)

    def _encoded(self) -> Float[Tensor, "B M D"]:
        """The memory; of sources of several lengths packed, so that no product is spent on padding."""
        if not self._parts or bool(self.keep.all()):  # an exported encoder takes rows
            return self.model.encode(self.source_ids, masks.padding(self.keep))
        packed = self.model.encode(self.source_ids[self.keep][None], masks.packed(self.keep.sum(dim=1).tolist()))
        memory = packed.new_zeros(*self.keep.shape, packed.shape[2])
        memory[self.keep] = packed[0]
        return memory

    def sources(self) -> Int[Tensor, "N M"]:
        """The source of each target."""
        return self.source_ids.repeat_interleave(self.num_beams, dim=0)

    def expand_beams(self, num_beams: int) -> None:
        """Make each target `num_beams` consecutive rows: its beams."""
        self.num_beams = num_beams
        self.ids = self.ids.repeat_interleave(num_beams, dim=0)
        self._cache.expand_beams(num_beams)

    def append(self, tokens: Int[Tensor, "N"], rows: Int[Tensor, "N"] | None = None) -> None:
        """Adds a token to each target.

        Args:
            tokens: the tokens.
            rows: which of the targets each goes on from; None where each goes on from itself.
        """
        if rows is not None:
            self.ids = self.ids[rows]
            self._cache.reorder(rows)
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)

    def leave(self, staying: list[int]) -> Int[Tensor, "N"]:
        """Lets all sentences go but those at these places; gives the rows of the targets that stay."""
        kept = torch.tensor(staying, dtype=torch.long, device=self.ids.device)
        rows = (kept[:, None] * self.num_beams + torch.arange(self.num_beams, device=kept.device)).flatten()
        self.sentences = [self.sentences[place] for place in staying]
        self.source_ids, self.keep, self.memory = self.source_ids[kept], self.keep[kept], self.memory[kept]
        self.ids = self.ids[rows]
        self._cache.reorder(rows, kept)
        return rows
