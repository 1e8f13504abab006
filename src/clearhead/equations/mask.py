"""The mask as a value: a set of conditions for a query to attend to a key."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Sizes = tuple[int, int, int, int]
"""Sizes of the scores: batch, heads, queries and keys."""


@dataclass(frozen=True, eq=False)
class Mask:
    """Conditions that must all hold for a query to attend to a key.

    Equation: M_ij = 0 where query i may attend to key j, −∞ where not
    Source: Section 3.2.3 of "Attention Is All You Need"

    Args:
        length: number of keys M.
        keep_BM: bool, True at keys that are real tokens; None if all are.
        causal: a query attends to no later key. With fewer queries than keys the last query is at the last key.
        window: a query attends only to keys at most this far away, on both sides.
        bias: a bool (True = may attend) or float (added to the scores) tensor, broadcastable to (B, H, L, M).
        lengths: lengths of sequences packed into a batch of one row; none attends to another. Causality, window and
            bias apply within each sequence: bias is then (1, H, L, M) for the longest.

    Raises:
        ValueError: fields that contradict each other.

    >>> from clearhead import Mask
    >>> Mask(3, causal=True)
    Mask(length=3, keep_BM=None, causal=True, window=None, bias=None, lengths=None)
    """

    length: int
    keep_BM: Tensor | None = None
    causal: bool = False
    window: int | None = None
    bias: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    _checked_for: Sizes | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        keep_BM, bias = self.keep_BM, self.bias
        if keep_BM is not None and (
            keep_BM.dtype != torch.bool or keep_BM.ndim != 2 or keep_BM.shape[1] != self.length
        ):
            raise ValueError(
                f"Expected keep_BM as bool of shape (batch, {self.length}), True at real tokens, got "
                f"{describe(keep_BM)}."
            )
        if bias is not None:
            check_dtype(bias)
        if self.lengths is not None and (sum(self.lengths) != self.length or keep_BM is not None):
            raise ValueError(
                f"packed sequences of {sum(self.lengths)} tokens do not fill {self.length} keys, or have padding"
            )

    def __and__(self, other: "Mask") -> "Mask":
        """Return a mask with the conditions of both; float biases add."""
        if not isinstance(other, Mask):
            return NotImplemented
        if self.length != other.length or (self.lengths and other.lengths and self.lengths != other.lengths):
            raise ValueError(
                f"masks over {self.length} and over {other.length} keys cannot be joined: "
                "both must be for the same keys and packed sequences"
            )
        windows = [window for window in (self.window, other.window) if window is not None]
        return Mask(
            length=self.length,
            keep_BM=_join(self.keep_BM, other.keep_BM),
            causal=self.causal or other.causal,
            window=min(windows, default=None),
            bias=_join(self.bias, other.bias),
            lengths=self.lengths or other.lengths,
        )

    @property
    def allows_all(self) -> bool:
        """Whether every query may attend to every key."""
        rest = (self.keep_BM, self.window, self.bias, self.lengths)
        return not self.causal and all(part is None for part in rest)

    @property
    def only_causal(self) -> bool:
        """Whether causality is the only condition: a kernel may then use its own causal path."""
        rest = (self.keep_BM, self.window, self.bias, self.lengths)
        return self.causal and all(part is None for part in rest)

    @property
    def only_padding(self) -> bool:
        """Whether no condition depends on the query."""
        return not self.causal and all(part is None for part in (self.window, self.bias, self.lengths))

    def with_window(self, radius: int) -> "Mask":
        """Return the mask with a window; the narrower one if it already has one."""
        mask = replace(self, window=radius if self.window is None else min(radius, self.window))
        if not torch.compiler.is_compiling():  # reading the attribute would make torch.compile depend on it
            mask._mark_checked(self._checked_for)
        return mask

    def to_padded(self, longest: int) -> "Mask":
        """Return a packed mask for its sequences as rows of a batch, padded to `longest`."""
        assert self.lengths is not None
        bias = self.bias
        device = bias.device if bias is not None else None
        lengths_B = torch.tensor(self.lengths, device=device)
        keep_BM = torch.arange(longest, device=device) < lengths_B[:, None]
        if bias is not None and bias.shape[-1] < longest:
            missing = longest - bias.shape[-1]
            bias = torch.nn.functional.pad(bias, (0, missing, 0, missing), value=0)
        return Mask(length=longest, keep_BM=keep_BM, causal=self.causal, window=self.window, bias=bias)

    def allowed(self, queries: int, device: torch.device | None = None) -> Bool[Tensor, "..."] | None:
        """Return all conditions without the float bias, broadcastable to (B, H, L, M); None if all may attend."""
        allowed: Tensor | None = None
        if self.keep_BM is not None:
            allowed = self.keep_BM[:, None, None, :]
        if self.bias is not None and self.bias.dtype == torch.bool:
            allowed = _join(allowed, self.bias)
        if self.causal or self.window is not None:
            near = self._near((self.length - queries, self.length), (0, self.length), device)
            allowed = _join(allowed, near)
        return allowed

    def key_range(self, queries: range) -> range:
        """Return the keys that queries at these positions can reach under causality and window."""
        first = 0 if self.window is None else max(0, queries.start - self.window)
        end = self.length if self.window is None else queries.stop + self.window
        return range(first, min(queries.stop if self.causal else end, self.length))

    def block(self, queries: range, keys: range, device: torch.device | None = None) -> Bool[Tensor, "..."] | None:
        """Return padding, causality and window for a block of queries and keys, given by their positions.

        None if all may attend.
        """
        kept = None if self.keep_BM is None else self.keep_BM[:, None, None, keys.start : keys.stop]
        limited = self.causal or self.window is not None
        near = self._near((queries.start, queries.stop), (keys.start, keys.stop), device) if limited else None
        return _join(kept, near)

    def _near(self, queries: tuple[int, int], keys: tuple[int, int], device: torch.device | None) -> Tensor:
        # comparing positions takes an eighth of the memory of subtracting them
        key_1M, query_L1 = torch.arange(*keys, device=device)[None], torch.arange(*queries, device=device)[:, None]
        near_LM = key_1M <= (query_L1 if self.causal or self.window is None else query_L1 + self.window)
        return near_LM if self.window is None else near_LM & (key_1M >= query_L1 - self.window)

    def float_bias(self) -> Float[Tensor, "..."] | None:
        """Return the float bias, which is added to the scores, or None."""
        return self.bias if self.bias is not None and self.bias.is_floating_point() else None

    def positions(self) -> Int[Tensor, "B M"] | None:
        """Return the position of each key, counted from the first real token; None for 0, 1, 2 ...

        A sequence has the same positions with padding on its left as without it.
        """
        if self.lengths is not None:
            return torch.cat([torch.arange(length) for length in self.lengths])[None]
        if self.keep_BM is None or self.length == 0:
            return None
        first_B = self.keep_BM.to(torch.uint8).argmax(dim=1)
        return (torch.arange(self.length, device=first_B.device) - first_B[:, None]).clamp(min=0)

    def check(self, sizes: Sizes) -> None:
        """Check once that the mask fits scores of these sizes.

        Raises:
            ValueError: it does not.
        """
        if torch.compiler.is_compiling() or self._checked_for != sizes:
            check_sizes(self, sizes)
            self._mark_checked(sizes)

    def _mark_checked(self, sizes: Sizes | None) -> None:
        # checks cost nothing in compiled code, but a changed attribute would recompile it
        if not torch.compiler.is_compiling():
            object.__setattr__(self, "_checked_for", sizes)


MaskLike = Mask | Tensor | None
"""A mask as public functions take it: a `Mask`, a bool tensor (True = may attend), a float tensor (added), or None."""


def as_mask(mask: MaskLike, *, batch: int, heads: int, queries: int, keys: int) -> Mask | None:
    """Convert to a `Mask` and check that it fits scores of shape (batch, heads, queries, keys).

    A mask that was checked for these sizes before is returned at once: a model checks it for its first layer only.

    Raises:
        ValueError: an integer mask, or one that does not broadcast to that shape.
    """
    if mask is None:
        return None
    sizes = batch, heads, queries, keys
    if isinstance(mask, Tensor):
        checked = _from_tensor(mask, sizes)
        checked.check(sizes)
        return checked
    if not isinstance(mask, Mask):
        raise ValueError(f"Expected a Mask, a tensor or None as mask, got a {type(mask).__name__}.")
    mask.check(sizes)
    return mask


def check_sizes(mask: Mask, sizes: Sizes) -> None:
    """Raise a ValueError if a mask does not fit scores of these sizes."""
    batch, _, queries, keys = sizes
    if mask.length != keys:
        raise ValueError(f"the mask was made for {mask.length} keys, but attention runs over {keys}")
    if mask.lengths is not None:
        if batch != 1 or queries != keys:
            raise ValueError(
                f"packed sequences require a batch of one row; got {batch} rows, {queries} queries, {keys} keys"
            )
        return
    if mask.keep_BM is not None and mask.keep_BM.shape[0] not in (1, batch):
        raise ValueError(f"the padding mask holds {mask.keep_BM.shape[0]} sequences, but the batch holds {batch}")
    if mask.bias is not None:
        _check_shape(mask.bias, sizes)


def check_dtype(mask: Tensor) -> Tensor:
    """Return the mask tensor; raise a ValueError unless it is bool or floating-point."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"a mask is bool (True = may attend) or float (added to the scores); got {describe(mask)}. "
            "From a 0/1 attention mask: masks.from_transformers(mask)"
        )
    return mask


def from_padding_tensor(mask: Tensor) -> Mask:
    """Convert a (B, 1, 1, M) tensor to a padding mask where possible, so that positions can be counted from it.

    A bool tensor always is one, and a float tensor of only 0 and −∞. Floats on a GPU or under `torch.compile` stay a
    bias: reading their values would stall.
    """
    if mask.dtype == torch.bool:
        return Mask(length=mask.shape[-1], keep_BM=mask[:, 0, 0, :])
    if mask.device.type == "cpu" and not torch.compiler.is_compiling() and not mask.requires_grad:
        keep = mask[:, 0, 0, :] == 0
        if bool((keep | (mask[:, 0, 0, :] == float("-inf"))).all()):
            return Mask(length=mask.shape[-1], keep_BM=keep)
    return Mask(length=mask.shape[-1], bias=mask)


def describe(mask: Tensor) -> str:
    """Describe a tensor in an error message by its dtype and shape."""
    return f"{str(mask.dtype).removeprefix('torch.')} of shape {tuple(mask.shape)}"


def _from_tensor(mask: Tensor, sizes: Sizes) -> Mask:
    _check_shape(check_dtype(mask), sizes)  # a tensor that broadcasts may have a last dimension of 1
    keys = sizes[-1]
    if mask.ndim == 4 and mask.shape[1:] == (1, 1, keys):
        return from_padding_tensor(mask)
    return Mask(length=keys, bias=mask)


def _check_shape(mask: Tensor, sizes: Sizes) -> None:
    fits = 2 <= mask.ndim <= 4 and all(
        size in (1, expected) for size, expected in zip(reversed(mask.shape), reversed(sizes), strict=False)
    )
    if not fits:
        raise ValueError(
            f"a mask for {sizes[2]} queries and {sizes[3]} keys broadcasts to (batch, heads, queries, keys) = {sizes}, "
            f"and a 2-D one is (queries, keys); got {describe(mask)}. For padding: masks.padding(keep)"
        )


def _join(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Join two conditions: bool by and, float by sum, both by −∞ where the bool is False."""
    if one is None or other is None:
        return one if other is None else other
    if one.dtype == torch.bool and other.dtype == torch.bool:
        return one & other
    if one.dtype == torch.bool:
        return torch.where(one, other, float("-inf"))
    if other.dtype == torch.bool:
        return torch.where(other, one, float("-inf"))
    return one + other
