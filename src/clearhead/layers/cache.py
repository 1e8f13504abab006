"""The decoder's caches: keys and values of earlier steps, one cache for each kind of attention."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.equations.masks import Mask


class SelfAttentionCache:
    """The keys and values of self-attention for all tokens so far; each step appends those of its new tokens.

    Source: Section 3.2.3 of "Attention Is All You Need": a position attends to itself and those before it, so that
        later tokens never change its keys and values

    Storage grows by doubling: appending a step copies nothing that is already stored.

    >>> import torch; from clearhead import SelfAttentionCache
    >>> cache = SelfAttentionCache(); k, v = cache.append(torch.rand(2, 8, 1, 64), torch.rand(2, 8, 1, 64))
    >>> cache.length
    1
    """

    def __init__(self) -> None:
        self.num_slots = 0
        self._storage: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """Number of tokens stored for each row."""
        return self.num_slots

    @property
    def keys(self) -> Float[Tensor, "B H M K"] | None:
        """The stored keys; None before the first step."""
        return None if self._storage is None else self._storage[0][:, :, : self.num_slots]

    @property
    def values(self) -> Float[Tensor, "B H M V"] | None:
        """The stored values; None before the first step."""
        return None if self._storage is None else self._storage[1][:, :, : self.num_slots]

    def sizes_after(self, rows: int, new: int) -> tuple[int, int, int]:
        """Return batch size, queries and keys of attention in a step of `new` tokens in each of `rows` rows."""
        return rows, new, self.num_slots + new

    def to_slots(self, x: Float[Tensor, "N H L K"]) -> Float[Tensor, "B H M K"]:
        """Return the keys or values of a step in the cache's rows and slots."""
        return x

    def append(
        self, k: Float[Tensor, "N H L K"], v: Float[Tensor, "N H L V"]
    ) -> tuple[Float[Tensor, "B H M K"], Float[Tensor, "B H M V"]]:
        """Append the keys and values of L new tokens; return those of all slots, the new ones last.

        Raises:
            ValueError: the batch size differs from earlier steps.
        """
        k, v = self.to_slots(k), self.to_slots(v)
        start, stop = self.num_slots, self.num_slots + k.shape[2]
        if self._storage is None or self._storage[0].shape[2] < stop:
            self._storage = _allocate(k, self.keys, 2 * stop), _allocate(v, self.values, 2 * stop)
        if k.shape[0] != self._storage[0].shape[0]:
            raise ValueError(f"the cache holds {self._storage[0].shape[0]} rows, but the step has {k.shape[0]}")
        for stored, new in zip(self._storage, (k, v), strict=True):
            stored[:, :, start:stop] = new
        self.num_slots = stop
        return self._storage[0][:, :, :stop], self._storage[1][:, :, :stop]

    def reorder(self, rows: Int[Tensor, "S"]) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        if self._storage is not None:
            stop = self.num_slots
            self._storage = self._storage[0][rows, :, :stop], self._storage[1][rows, :, :stop]

    def compact(self, slots_BC: Int[Tensor, "B C"]) -> None:
        """Keep these slots of each row, in this order, and drop the others."""
        if self._storage is None:
            return
        for stored in self._storage:
            rows, heads, capacity, width = stored.shape
            first_BH1 = torch.arange(rows * heads, device=stored.device).view(rows, heads, 1) * capacity
            kept = stored.view(-1, width).index_select(0, (first_BH1 + slots_BC[:, None]).flatten())
            stored[:, :, : slots_BC.shape[1]] = kept.view(rows, heads, -1, width)
        self.num_slots = slots_BC.shape[1]


class CrossAttentionCache:
    """The keys and values of cross-attention, computed at the first step and reused at all others.

    Equation: K⁽ᵗ⁾ = K⁽¹⁾, V⁽ᵗ⁾ = V⁽¹⁾: computed at the first step, then reused
    Source: Section 3.2.3 of "Attention Is All You Need": they come from the encoder's output, which does not change

    >>> import torch; from clearhead import CrossAttentionCache
    >>> cache = CrossAttentionCache()
    >>> k, v = cache.get_or_compute(lambda: (torch.rand(2, 8, 5, 64), torch.rand(2, 8, 5, 64)))
    >>> cache.get_or_compute(lambda: None)[0] is k
    True
    """

    def __init__(self) -> None:
        self.key_value: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """Number of tokens of the memory; 0 before the first step."""
        return 0 if self.key_value is None else self.key_value[0].shape[2]

    def get_or_compute(self, compute: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the stored keys and values; compute and store them at the first call."""
        if self.key_value is None:
            self.key_value = compute()
        return self.key_value

    def reorder(self, rows: Int[Tensor, "N"]) -> None:
        """Keep these rows of the memory, in this order."""
        if self.key_value is not None:
            self.key_value = self.key_value[0][rows], self.key_value[1][rows]


class LayerCache(NamedTuple):
    """The two caches of one decoder layer."""

    attention: SelfAttentionCache
    cross_attention: CrossAttentionCache


class DecoderCache:
    """The caches of all layers of a decoder.

    Args:
        num_layers: number of layers.

    >>> from clearhead import DecoderCache
    >>> DecoderCache(6).length
    0
    """

    def __init__(self, num_layers: int) -> None:
        self.layers: Sequence[LayerCache] = [
            LayerCache(SelfAttentionCache(), CrossAttentionCache()) for _ in range(num_layers)
        ]

    @property
    def length(self) -> int:
        """Number of target tokens stored for each row."""
        return self.layers[0].attention.length

    def step_mask(self, mask: Mask | None, rows: int, new: int, device: torch.device) -> Mask | None:
        """Return the mask of a step over all slots that the caches hold after it.

        Args:
            mask: mask over the tokens of each row, those of the step included.
            rows: number of rows of the step.
            new: number of its tokens.
            device: device of the step.
        """
        return mask

    def reorder(self, rows: Int[Tensor, "N"], memory_rows: Int[Tensor, "S"] | None = None) -> None:
        """Keep these rows of the target and, where given, these rows of the memory."""
        for layer in self.layers:
            layer.attention.reorder(rows)
            if memory_rows is not None:
                layer.cross_attention.reorder(memory_rows)


def _allocate(x: Tensor, stored: Tensor | None, size: int) -> Tensor:
    """Return uninitialized storage for `size` slots like x's, with the stored slots copied to its start."""
    storage = x.new_empty(*x.shape[:2], size, x.shape[3])
    if stored is not None and stored.shape[0] == x.shape[0]:
        storage[:, :, : stored.shape[2]] = stored
    return storage
