"""What a decoder remembers between two steps: keys and values, one cache for each kind of attention."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.equations import masks


class GrowingCache:
    """Self-attention's keys and values of the tokens so far; each step adds those of its own tokens.

    Source: Section 3.2.3 of "Attention Is All You Need": a position attends to itself and those before it, whose keys
        and values no later token changes

    Args:
        each: rows, one after another, that belong together: the beams of a sentence. What all of them found stands in
            one row, slot by slot: of each token those of all beams. The beams attend together, as queries of one row,
            and which slots a beam descends from is a mask (`DecoderCache.grown`): so beams go on from each other
            without a copy.

    Memory is taken in doubling steps, and nothing that is held is copied when a step is added.

    >>> import torch; from clearhead import GrowingCache
    >>> cache = GrowingCache(); k, v = cache.append(torch.rand(2, 8, 1, 64), torch.rand(2, 8, 1, 64))
    >>> cache.length
    1
    """

    def __init__(self, each: int = 1) -> None:
        self.each, self.length = each, 0
        self._held: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> Float[Tensor, "B H M K"] | None:
        """The keys held, of each token those of all beams; None before the first step."""
        return None if self._held is None else self._held[0][:, :, : self.length * self.each]

    @property
    def values(self) -> Float[Tensor, "B H M V"] | None:
        """The values held."""
        return None if self._held is None else self._held[1][:, :, : self.length * self.each]

    def append(
        self, k: Float[Tensor, "B H L K"], v: Float[Tensor, "B H L V"]
    ) -> tuple[Float[Tensor, "S H M K"], Float[Tensor, "S H M V"]]:
        """Adds the keys and values of L new tokens; gives those of all tokens, the new ones last.

        Raises:
            ValueError: another batch size than before.
        """
        k, v = self.slots(k), self.slots(v)
        start, stop = self.length * self.each, self.length * self.each + k.shape[2]
        if self._held is None or self._held[0].shape[2] < stop:
            self._held = _room(k, self.keys, 2 * stop), _room(v, self.values, 2 * stop)
        if k.shape[0] != self._held[0].shape[0]:
            raise ValueError(
                f"the cache holds {self._held[0].shape[0] * self.each} rows, but the step has {k.shape[0] * self.each}"
            )
        for held, new in zip(self._held, (k, v), strict=True):
            held[:, :, start:stop] = new
        self.length = stop // self.each
        return self._held[0][:, :, :stop], self._held[1][:, :, :stop]

    def select(self, rows: Int[Tensor, "S"]) -> None:
        """Keeps these rows, in this order: beams that go on, several times those that branch; or, where several belong
        together, the sentences that go on."""
        if self._held is not None:
            stop = self.length * self.each
            self._held = self._held[0][rows, :, :stop], self._held[1][rows, :, :stop]

    def slots(self, x: Float[Tensor, "B H L K"]) -> Float[Tensor, "S H M K"]:
        """The new keys or values of each row as they are held: of each token those of all beams."""
        return x if self.each == 1 else _apart(x, self.each).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def queries(self, q: Float[Tensor, "B H L K"]) -> Float[Tensor, "S H M K"]:
        """The queries of rows that belong together as those of one row: of each beam those of all tokens."""
        return q if self.each == 1 else _apart(q, self.each).transpose(1, 2).flatten(2, 3)


class FixedCache:
    """Cross-attention's keys and values of the memory: computed at the first step, the same at all others.

    Equation: K⁽ᵗ⁾ = K⁽¹⁾, V⁽ᵗ⁾ = V⁽¹⁾: computed at the first step, read at the others
    Source: Section 3.2.3 of "Attention Is All You Need": they come from the encoder's output, which does not change

    >>> import torch; from clearhead import FixedCache
    >>> cache = FixedCache(); k, v = cache.filled(lambda: (torch.rand(2, 8, 5, 64), torch.rand(2, 8, 5, 64)))
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

    attention: GrowingCache
    cross_attention: FixedCache


class DecoderCache:
    """The caches of all layers of a decoder.

    Args:
        num_layers: how many layers it has.
        each: as in `GrowingCache`.

    >>> from clearhead import DecoderCache
    >>> DecoderCache(6).length
    0
    """

    def __init__(self, num_layers: int, each: int = 1) -> None:
        self.layers = [LayerCache(GrowingCache(each), FixedCache()) for _ in range(num_layers)]
        self.each = each
        self._descent_NM: Tensor | None = None  # which slots of its sentence each beam descends from

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
        held_NM = own_NM[:, :0] if self._descent_NM is None else self._descent_NM
        self._descent_NM = torch.cat([held_NM, own_NM], dim=1)
        allowed_NLM = self._descent_NM[:, None].expand(-1, new, -1)
        allowed = allowed_NLM.reshape(-1, 1, self.each * new, allowed_NLM.shape[2])
        scores: Tensor = allowed
        if mask is not None and not (mask.only_causal and new == 1):
            dense = masks.additive(mask, new, torch.float32)
            dense = dense.expand(rows, dense.shape[1] if dense.ndim == 4 else 1, new, mask.length)
            dense = _apart(dense, self.each).transpose(1, 2).flatten(2, 3)
            scores = dense.repeat_interleave(self.each, dim=-1).masked_fill(~allowed, -math.inf)
        return masks.Mask(length=allowed.shape[-1], scores=scores)

    def select(self, rows: Int[Tensor, "N"], sentences: Int[Tensor, "S"] | None = None) -> None:
        """Keeps these rows of the target, and, where given, these rows of the memory.

        Where several rows belong together, each goes on from one of its own sentence.
        """
        if self._descent_NM is not None:
            self._descent_NM = self._descent_NM[rows]
        for layer in self.layers:
            if self.each == 1:
                layer.attention.select(rows)
            elif sentences is not None:
                layer.attention.select(sentences)
            if sentences is not None:
                layer.cross_attention.select(sentences)


def _apart(x: Tensor, each: int) -> Tensor:
    """Rows that belong together as a dimension of their own."""
    return x.reshape(-1, each, *x.shape[1:])


def _room(x: Tensor, held: Tensor | None, size: int) -> Tensor:
    """Memory for `size` slots like x's, with what is held at its start."""
    room = x.new_empty(*x.shape[:2], size, x.shape[3])
    if held is not None and held.shape[0] == x.shape[0]:
        room[:, :, : held.shape[2]] = held
    return room
