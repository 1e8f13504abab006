"""Keys that each query of an attention reaches, compared with the keys that it should reach."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool
from torch import Tensor


@dataclass(frozen=True)
class AttentionPattern:
    """Dependence of the queries of one attention on its keys.

    Args:
        name: the attention, such as "the encoder's self-attention".
        reached_BLM: whether the result of query i depends on key j.
        query_BL: real queries whose results were tested.
        keep_BM: real keys.
        causal: whether a query may reach only keys up to its own position; None if both are valid.
        same: whether queries and keys are the same tokens. The dependence of a token on itself then proves nothing.
        other_keep_BM: real tokens of the other sequence, to recognize swapped masks.
    """

    name: str
    reached_BLM: Bool[Tensor, "B L M"]
    query_BL: Bool[Tensor, "B L"]
    keep_BM: Bool[Tensor, "B M"]
    causal: bool | None = False
    same: bool = True
    other_keep_BM: Bool[Tensor, "B M"] | None = None

    @cached_property
    def pairs(self) -> "Pairs":
        """The pairs that are allowed, forbidden or required."""
        return _pairs(self)

    @cached_property
    def reaches_nothing(self) -> bool:
        """Whether no allowed pair is reached, although there are some."""
        allowed_BLM = self.pairs.allowed_BLM
        return bool(allowed_BLM.any()) and not bool((self.reached_BLM & allowed_BLM).any())

    @cached_property
    def ignored_keys(self) -> Bool[Tensor, "B M"]:
        """Real keys that no query reaches although one must."""
        pairs = self.pairs
        return self.keep_BM & pairs.required_BLM.any(dim=1) & ~(self.reached_BLM & pairs.allowed_BLM).any(dim=1)

    def first(self, pairs_BLM: Tensor, between: str = "and") -> str:
        """Return the position of the first of some pairs: attention, row, query and key."""
        row, query, key = pairs_BLM.nonzero()[0].tolist()
        return f"{self.name}, row {row}, position {query} {between} {key}"


@dataclass(frozen=True)
class Pairs:
    """Pairs of a tested query and a key, each (B, L, M).

    Args:
        allowed_BLM: pairs that the query may reach.
        padding_BLM: pairs with padding as the key.
        required_BLM: pairs that the query must reach.
        later_BLM, earlier_BLM: pairs with a real key after or before the query.
        causal: whether the pattern should be causal.
    """

    allowed_BLM: Tensor
    padding_BLM: Tensor
    required_BLM: Tensor
    later_BLM: Tensor
    earlier_BLM: Tensor
    causal: bool


def _pairs(pattern: AttentionPattern) -> Pairs:
    reached_BLM, keep_BM, causal = pattern.reached_BLM, pattern.keep_BM, pattern.causal
    _, length, keys = reached_BLM.shape
    position_L, position_M = torch.arange(length) + (keys - length if pattern.same else 0), torch.arange(keys)
    distance_LM = position_M[None, :] - position_L[:, None]
    other_LM = distance_LM != 0 if pattern.same else torch.ones(length, keys, dtype=torch.bool)
    pairs_BLM = pattern.query_BL[:, :, None] & other_LM
    allowed_BLM, padding_BLM = pairs_BLM & keep_BM[:, None, :], pairs_BLM & ~keep_BM[:, None, :]
    later_BLM, earlier_BLM = allowed_BLM & (distance_LM > 0), allowed_BLM & (distance_LM < 0)
    if causal is None:  # a triangle is taken for a causal mask, in either direction
        causal = not (bool((reached_BLM & later_BLM).any()) and bool((reached_BLM & earlier_BLM).any()))
    if causal:
        allowed_BLM = allowed_BLM & (distance_LM <= 0)
    if pattern.causal:
        padding_BLM = padding_BLM & (distance_LM <= 0)
    required_BLM = allowed_BLM
    if pattern.same:
        required_BLM = allowed_BLM & _within_window(reached_BLM, allowed_BLM, later_BLM, earlier_BLM, distance_LM)
    return Pairs(allowed_BLM, padding_BLM, required_BLM, later_BLM, earlier_BLM, causal)


def _within_window(
    reached_BLM: Tensor, allowed_BLM: Tensor, later_BLM: Tensor, earlier_BLM: Tensor, distance_LM: Tensor
) -> Tensor:
    """Return the pairs that no attention window hides: neighbors, and pairs between two reached keys."""
    reached_allowed_BLM = (reached_BLM & allowed_BLM).int()
    after_first_BLM = reached_allowed_BLM.cumsum(dim=2) > 0
    before_last_BLM = reached_allowed_BLM.flip(2).cumsum(dim=2).flip(2) > 0
    # a key that only later queries reach marks a partly causal mask, whose last token no other query reaches
    by_later_BM, by_earlier_BM = ((reached_BLM & side_BLM).any(dim=1) for side_BLM in (earlier_BLM, later_BLM))
    partly_causal_B = (by_later_BM & ~by_earlier_BM & later_BLM.any(dim=1)).any(dim=1)
    neighbor_BLM = (distance_LM == -1) | ((distance_LM == 1) & ~partly_causal_B[:, None, None])
    return neighbor_BLM | (after_first_BLM & before_last_BLM)
