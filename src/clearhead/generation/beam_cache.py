"""Decoder caches for beam search: the beams of a sentence share one cache row.

The row holds, for each token, one slot for every beam. The queries of all beams attend together, as queries of one
row, and a mask selects the slots in the ancestry of each beam. Beams that continue from each other therefore need no
copy of keys and values. Slots outside of every ancestry are dropped from time to time.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.equations import masks
from clearhead.layers.cache import CrossAttentionCache, DecoderCache, LayerCache, SelfAttentionCache

Cache = TypeVar("Cache")


def as_beam_cache(cache: Cache) -> "Cache | BeamDecoderCache":
    """Return an empty model cache as a `BeamDecoderCache`.

    A cache of another kind, which has the methods of a `BeamDecoderCache` already, is returned unchanged.
    """
    return BeamDecoderCache(len(cache.layers)) if isinstance(cache, DecoderCache) else cache


class BeamSelfAttentionCache(SelfAttentionCache):
    """A self-attention cache with one row for all beams of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.num_beams, self._length = 1, 0

    @property
    def length(self) -> int:
        """Number of tokens stored for each beam."""
        return self._length

    def sizes_after(self, rows: int, new: int) -> tuple[int, int, int]:
        queries = self.num_beams * new
        return rows // self.num_beams, queries, self.num_slots + queries

    def to_slots(self, x: Float[Tensor, "N H L K"]) -> Float[Tensor, "S H M K"]:
        return interleave_beams(x, self.num_beams)

    def append(
        self, k: Float[Tensor, "N H L K"], v: Float[Tensor, "N H L V"]
    ) -> tuple[Float[Tensor, "S H M K"], Float[Tensor, "S H M V"]]:
        stored = super().append(k, v)
        self._length += k.shape[2]
        return stored


class BeamDecoderCache(DecoderCache):
    """The caches of all layers of a decoder, for beam search.

    Args:
        num_layers: number of layers.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(num_layers)
        self.num_beams = 1
        self._beam_layers = [BeamSelfAttentionCache() for _ in range(num_layers)]
        self.layers: Sequence[LayerCache] = [LayerCache(layer, CrossAttentionCache()) for layer in self._beam_layers]
        self._ancestry_NM: Tensor | None = None  # slots of its sentence that each beam continues from
        self._position_SM: Tensor | None = None  # position of the token in each slot

    def expand_beams(self, num_beams: int) -> None:
        """Make each row of the target `num_beams` beams, which share all tokens so far."""
        self.num_beams = num_beams
        for layer in self._beam_layers:
            layer.num_beams = num_beams
        keys = self._beam_layers[0].keys
        if keys is not None:
            sentences, slots = keys.shape[0], keys.shape[2]
            self._ancestry_NM = torch.ones(sentences * num_beams, slots, dtype=torch.bool, device=keys.device)
            self._position_SM = torch.arange(slots, device=keys.device).expand(sentences, -1)

    def step_mask(self, mask: masks.Mask | None, rows: int, new: int, device: torch.device) -> masks.Mask | None:
        """Return the mask over slots: each beam attends to its ancestry, as far as its own mask allows."""
        return mask if self.num_beams == 1 else self._beam_mask(mask, rows, new, device)

    def _beam_mask(self, mask: masks.Mask | None, rows: int, new: int, device: torch.device) -> masks.Mask:
        beams = self.num_beams
        ancestry_NM = torch.eye(beams, dtype=torch.bool, device=device).repeat(rows // beams, new)
        positions_M = torch.arange(self.length, self.length + new, device=device).repeat_interleave(beams)
        position_SM = positions_M.expand(rows // beams, -1)
        if self._ancestry_NM is not None and self._position_SM is not None:
            ancestry_NM = torch.cat([self._ancestry_NM, ancestry_NM], dim=1)
            position_SM = torch.cat([self._position_SM, position_SM], dim=1)
        self._ancestry_NM, self._position_SM = ancestry_NM, position_SM
        allowed_NLM = ancestry_NM[:, None].expand(-1, new, -1)
        allowed = allowed_NLM.reshape(-1, 1, beams * new, allowed_NLM.shape[2])
        bias: Tensor = allowed
        if mask is not None and not (mask.only_causal and new == 1):
            dense = masks.additive(mask, new, torch.float32)
            dense = dense.expand(rows, dense.shape[1] if dense.ndim == 4 else 1, new, mask.length)
            dense = _split_beams(dense, beams).transpose(1, 2).flatten(2, 3)
            bias = dense.take_along_dim(position_SM[:, None, None], dim=-1).masked_fill(~allowed, -math.inf)
        return masks.Mask(length=allowed.shape[-1], bias=bias)

    def reorder(self, rows: Int[Tensor, "N"], memory_rows: Int[Tensor, "S"] | None = None) -> None:
        """Keep these beams and, where given, these sentences; each beam continues from a beam of the same sentence."""
        for layer in self.layers:
            if self.num_beams == 1:
                layer.attention.reorder(rows)
            elif memory_rows is not None:
                layer.attention.reorder(memory_rows)
            if memory_rows is not None:
                layer.cross_attention.reorder(memory_rows)
        if self._ancestry_NM is not None and self._position_SM is not None:
            position_SM = self._position_SM if memory_rows is None else self._position_SM[memory_rows]
            self._ancestry_NM, self._position_SM = self._compact(self._ancestry_NM[rows], position_SM)

    def _compact(self, ancestry_NM: Tensor, position_SM: Tensor) -> tuple[Tensor, Tensor]:
        """Drop the slots outside of every ancestry once they are a third of all."""
        live_SM = _split_beams(ancestry_NM, self.num_beams).any(dim=1)
        most = int(live_SM.sum(dim=1).max())
        if 3 * most > 2 * live_SM.shape[1]:
            return ancestry_NM, position_SM
        # sentences with fewer live slots keep some dead ones: all rows have the same number
        slots_SC = live_SM.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
        for layer in self._beam_layers:
            layer.compact(slots_SC)
        return ancestry_NM.gather(1, slots_SC.repeat_interleave(self.num_beams, dim=0)), position_SM.gather(1, slots_SC)


def interleave_beams(x: Float[Tensor, "N H L K"], num_beams: int) -> Float[Tensor, "S H M K"]:
    """Return the keys or values of a step in the rows of sentences: for each token, those of all beams."""
    return x if num_beams == 1 else _split_beams(x, num_beams).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _split_beams(x: Tensor, num_beams: int) -> Tensor:
    """Split the rows (S · beams, ...) into (S, beams, ...)."""
    return x.reshape(-1, num_beams, *x.shape[1:])
