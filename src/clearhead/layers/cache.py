"""What a decoder remembers between two steps: keys and values, one cache for each kind of attention."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class GrowingCache:
    """Self-attention's keys and values of the tokens so far; each step adds those of its own tokens.

    Source: Section 3.2.3 of "Attention Is All You Need": a position attends to itself and those before it, whose keys
        and values no later token changes

    >>> import torch; from clearhead import GrowingCache
    >>> cache = GrowingCache(); k, v = cache.append(torch.rand(2, 8, 1, 64), torch.rand(2, 8, 1, 64))
    >>> cache.length
    1
    """

    def __init__(self) -> None:
        self.k_BHMK: Tensor | None = None
        self.v_BHMK: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of tokens held."""
        return 0 if self.k_BHMK is None else self.k_BHMK.shape[2]

    def append(
        self, k: Float[Tensor, "B H L K"], v: Float[Tensor, "B H L V"]
    ) -> tuple[Float[Tensor, "B H M K"], Float[Tensor, "B H M V"]]:
        """Adds the keys and values of L new tokens; gives those of all tokens, the new ones last.

        Raises:
            ValueError: another batch size than before.
        """
        if self.k_BHMK is None or self.v_BHMK is None:
            self.k_BHMK, self.v_BHMK = k, v
        else:
            if k.shape[0] != self.k_BHMK.shape[0]:
                raise ValueError(f"the cache holds {self.k_BHMK.shape[0]} rows, but the step has {k.shape[0]}")
            self.k_BHMK = torch.cat([self.k_BHMK, k], dim=2)
            self.v_BHMK = torch.cat([self.v_BHMK, v], dim=2)
        return self.k_BHMK, self.v_BHMK

    def select(self, rows: Int[Tensor, "N"]) -> None:
        """Keeps these rows, in this order: beams that go on, several times those that branch."""
        if self.k_BHMK is not None and self.v_BHMK is not None:
            self.k_BHMK, self.v_BHMK = self.k_BHMK[rows], self.v_BHMK[rows]


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

    >>> from clearhead import DecoderCache
    >>> DecoderCache(6).length
    0
    """

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache(GrowingCache(), FixedCache()) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Number of target tokens held."""
        return self.layers[0].attention.length

    def select(self, rows: Int[Tensor, "N"], sentences: Int[Tensor, "S"] | None = None) -> None:
        """Keeps these rows of the target, and, where given, these rows of the memory."""
        for layer in self.layers:
            layer.attention.select(rows)
            if sentences is not None:
                layer.cross_attention.select(sentences)
