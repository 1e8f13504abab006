"""What a decoder remembers between two steps: keys and values, one cache for each kind of attention."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.equations import masks


class SelfAttentionCache:
    """Self-attention's keys and values of the tokens so far; each step adds those of its own tokens.

    Source: Section 3.2.3 of "Attention Is All You Need": a position attends to itself and those before it, whose keys
        and values no later token changes

    Memory is taken in doubling steps, and nothing that is held is copied when a step is added.

    After `branch` rows that stand one after another belong together: the beams of a sentence. What all of them find
    stands in one row, slot by slot: of each token those of all beams. The beams attend together, as queries of one row,
    and which slots a beam descends from is a mask (`DecoderCache.grown`): so beams go on from each other without a
    copy. Slots that none descends from any more are left behind (`keep`).

    >>> import torch; from clearhead import SelfAttentionCache
    >>> cache = SelfAttentionCache(); k, v = cache.append(torch.rand(2, 8, 1, 64), torch.rand(2, 8, 1, 64))
    >>> cache.length
    1
    """

    def __init__(self) -> None:
        self.each, self.length, self.filled = 1, 0, 0
        self._held: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> Float[Tensor, "B H M K"] | None:
        """The keys held, slot by slot; None before the first step."""
        return None if self._held is None else self._held[0][:, :, : self.filled]

    @property
    def values(self) -> Float[Tensor, "B H M V"] | None:
        """The values held."""
        return None if self._held is None else self._held[1][:, :, : self.filled]

    def append(
        self, k: Float[Tensor, "B H L K"], v: Float[Tensor, "B H L V"]
    ) -> tuple[Float[Tensor, "S H M K"], Float[Tensor, "S H M V"]]:
        """Adds the keys and values of L new tokens; gives those of all slots, the new ones last.

        Raises:
            ValueError: another batch size than before.
        """
        k, v = self.slots(k), self.slots(v)
        start, stop = self.filled, self.filled + k.shape[2]
        if self._held is None or self._held[0].shape[2] < stop:
            self._held = _allocate(k, self.keys, 2 * stop), _allocate(v, self.values, 2 * stop)
        if k.shape[0] != self._held[0].shape[0]:
            raise ValueError(
                f"the cache holds {self._held[0].shape[0] * self.each} rows, but the step has {k.shape[0] * self.each}"
            )
        for held, new in zip(self._held, (k, v), strict=True):
            held[:, :, start:stop] = new
        self.length, self.filled = self.length + k.shape[2] // self.each, stop
        return self._held[0][:, :, :stop], self._held[1][:, :, :stop]

    def select(self, rows: Int[Tensor, "S"]) -> None:
        """Keeps these rows, in this order: beams that go on, several times those that branch; or, where several belong
        together, the sentences that go on."""
        if self._held is not None:
            stop = self.filled
            self._held = self._held[0][rows, :, :stop], self._held[1][rows, :, :stop]

    def branch(self, each: int) -> None:
        """From now on each row is that of so many, to which what it holds is common."""
        self.each = each

    def keep(self, slots_SC: Int[Tensor, "S C"]) -> None:
        """Keeps these slots of each row, in this order, in the room that is there."""
        if self._held is None:
            return
        for held in self._held:
            rows, heads, room, width = held.shape
            first_SH1 = torch.arange(rows * heads, device=held.device).view(rows, heads, 1) * room
            places = (first_SH1 + slots_SC[:, None]).flatten()
            kept = held.view(-1, width).index_select(0, places)
            held[:, :, : slots_SC.shape[1]] = kept.view(rows, heads, -1, width)
        self.filled = slots_SC.shape[1]

    def slots(self, x: Float[Tensor, "B H L K"]) -> Float[Tensor, "S H M K"]:
        """The new keys or values of each row as they are held: of each token those of all beams."""
        return x if self.each == 1 else _apart(x, self.each).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def queries(self, q: Float[Tensor, "B H L K"]) -> Float[Tensor, "S H M K"]:
        """The queries of rows that belong together as those of one row: of each beam those of all tokens."""
        return q if self.each == 1 else _apart(q, self.each).transpose(1, 2).flatten(2, 3)


class CrossAttentionCache:
    """Cross-attention's keys and values of the memory: computed at the first step, the same at all others.

    Equation: K⁽ᵗ⁾ = K⁽¹⁾, V⁽ᵗ⁾ = V⁽¹⁾: computed at the first step, read at the others
    Source: Section 3.2.3 of "Attention Is All You Need": they come from the encoder's output, which does not change

    >>> import torch; from clearhead import CrossAttentionCache
    >>> cache = CrossAttentionCache(); k, v = cache.filled(lambda: (torch.rand(2, 8, 5, 64), torch.rand(2, 8, 5, 64)))
    >>> cache.filled(lambda: None)[0] is k
    True
    """

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """Number of the memory's tokens; 0 before the first step."""
        return 0 if self.held is None else self.held[0].shape[2]

    def filled(self, compute: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The keys and values, computed where they are not held yet."""
        if self.held is None:
            self.held = compute()
        return self.held

    def select(self, rows: Int[Tensor, "N"]) -> None:
        """Keeps these rows of the memory: those of the sentences that go on."""
        if self.held is not None:
            self.held = self.held[0][rows], self.held[1][rows]


class LayerCache(NamedTuple):
    """One decoder layer's two caches."""

    attention: SelfAttentionCache
    cross_attention: CrossAttentionCache


class DecoderCache:
    """The caches of all layers of a decoder.

    Args:
        num_layers: how many layers it has.

    >>> from clearhead import DecoderCache
    >>> DecoderCache(6).length
    0
    """

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache(SelfAttentionCache(), CrossAttentionCache()) for _ in range(num_layers)]
        self.each = 1
        self._descent_NM: Tensor | None = None  # which slots of its sentence each beam descends from
        self._token_SM: Tensor | None = None  # the token that stands in each slot, by its place

    @property
    def length(self) -> int:
        """Number of target tokens held."""
        return self.layers[0].attention.length

    def grown(self, mask: masks.Mask | None, rows: int, new: int, device: torch.device) -> masks.Mask | None:
        """The mask of a step over all that will be held then: over slots, where several rows belong together.

        Args:
            mask: over each row's own tokens, those of the step included.
            rows: rows of the step.
            new: its tokens.
            device: where they are.
        """
        if self.each == 1:
            return mask
        own_NM = torch.eye(self.each, dtype=torch.bool, device=device).repeat(rows // self.each, new)
        tokens_M = torch.arange(self.length, self.length + new, device=device).repeat_interleave(self.each)
        token_SM = tokens_M.expand(rows // self.each, -1)
        if self._descent_NM is not None and self._token_SM is not None:
            own_NM = torch.cat([self._descent_NM, own_NM], dim=1)
            token_SM = torch.cat([self._token_SM, token_SM], dim=1)
        self._descent_NM, self._token_SM = own_NM, token_SM
        allowed_NLM = self._descent_NM[:, None].expand(-1, new, -1)
        allowed = allowed_NLM.reshape(-1, 1, self.each * new, allowed_NLM.shape[2])
        scores: Tensor = allowed
        if mask is not None and not (mask.only_causal and new == 1):
            dense = masks.additive(mask, new, torch.float32)
            dense = dense.expand(rows, dense.shape[1] if dense.ndim == 4 else 1, new, mask.length)
            dense = _apart(dense, self.each).transpose(1, 2).flatten(2, 3)
            scores = dense.take_along_dim(token_SM[:, None, None], dim=-1).masked_fill(~allowed, -math.inf)
        return masks.Mask(length=allowed.shape[-1], scores=scores)

    def branch(self, each: int) -> None:
        """From now on each row of the target is so many, its beams, which are alike so far."""
        self.each = each
        for layer in self.layers:
            layer.attention.branch(each)
        held = self.layers[0].attention.keys
        if held is not None:
            sentences, filled = held.shape[0], held.shape[2]
            self._descent_NM = torch.ones(sentences * each, filled, dtype=torch.bool, device=held.device)
            self._token_SM = torch.arange(filled, device=held.device).expand(sentences, -1)

    def select(self, rows: Int[Tensor, "N"], sentences: Int[Tensor, "S"] | None = None) -> None:
        """Keeps these rows of the target, and, where given, these rows of the memory.

        Where several rows belong together, each goes on from one of its own sentence.
        """
        for layer in self.layers:
            if self.each == 1:
                layer.attention.select(rows)
            elif sentences is not None:
                layer.attention.select(sentences)
            if sentences is not None:
                layer.cross_attention.select(sentences)
        if self._descent_NM is not None and self._token_SM is not None:
            token_SM = self._token_SM if sentences is None else self._token_SM[sentences]
            self._leave_behind(self._descent_NM[rows], token_SM)

    def _leave_behind(self, descent_NM: Tensor, token_SM: Tensor) -> None:
        """Beams go on from few of those before them, so that soon most slots are nobody's."""
        live_SM = _apart(descent_NM, self.each).any(dim=1)
        most = int(live_SM.sum(dim=1).max())
        if 3 * most <= 2 * live_SM.shape[1]:
            # a sentence with fewer keeps some that are nobody's
            slots_SC = live_SM.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
            for layer in self.layers:
                layer.attention.keep(slots_SC)
            descent_NM = descent_NM.gather(1, slots_SC.repeat_interleave(self.each, dim=0))
            token_SM = token_SM.gather(1, slots_SC)
        self._descent_NM, self._token_SM = descent_NM, token_SM


def _apart(x: Tensor, each: int) -> Tensor:
    """Rows that belong together as a dimension of their own."""
    return x.reshape(-1, each, *x.shape[1:])


def _allocate(x: Tensor, held: Tensor | None, size: int) -> Tensor:
    """Memory for `size` slots like x's, with what is held at its start."""
    room = x.new_empty(*x.shape[:2], size, x.shape[3])
    if held is not None and held.shape[0] == x.shape[0]:
        room[:, :, : held.shape[2]] = held
    return room
