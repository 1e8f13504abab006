"""Which query may attend to which key: one value, one polarity.

Inside, a mask stays symbolic (`Mask`): padding is kept as (B, M), causality and the window as a flag and a number,
so that 8,192 tokens need no L x M matrix until something asks for it. At every public boundary a tensor is taken as
well: bool, **True = may attend**, or float, added to the scores; broadcastable to (B, H, L, M); a 2-D one is (L, M)
and nothing else. The functions ``from_*`` and ``to_*`` convert other people's polarities.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mask:
    """A set of conditions that must all hold for a query to attend to a key.

    Equation: M_ij = 0 where query i may attend to key j, −∞ where not
    Source: Section 3.2.3 of "Attention Is All You Need"

    Args:
        length: number of keys M.
        keep_BM: bool, True at the keys that are real tokens; None when all are.
        causal: a query attends to no later key. With fewer queries than keys the last query stands at the last key.
        window: a query attends only to keys at most this far away, on both sides.
        scores: a bool (True = may attend) or float (added) tensor, broadcastable to (B, H, L, M).
        lengths: of the texts that stand one after another in a batch of one row (packed); none attends to another, and
            causality, window and scores count within each: scores are then (1, H, L, M) of the longest.
    """

    length: int
    keep_BM: Tensor | None = None
    causal: bool = False
    window: int | None = None
    scores: Tensor | None = None
    lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.keep_BM is not None and (
            self.keep_BM.dtype != torch.bool or self.keep_BM.ndim != 2 or self.keep_BM.shape[1] != self.length
        ):
            raise ValueError(
                f"keep_BM is bool of shape (batch, {self.length}), True at real tokens; got {_kind(self.keep_BM)}"
            )
        if self.scores is not None:
            _checked(self.scores)
        if self.lengths is not None and (sum(self.lengths) != self.length or self.keep_BM is not None):
            raise ValueError(
                f"packed texts of {sum(self.lengths)} tokens do not fill {self.length} keys, or come with padding"
            )

    def __and__(self, other: "Mask") -> "Mask":
        """Both conditions at once; float parts add."""
        if not isinstance(other, Mask):
            return NotImplemented
        if self.length != other.length or (self.lengths and other.lengths and self.lengths != other.lengths):
            raise ValueError(
                f"masks over {self.length} and over {other.length} keys cannot be joined: "
                "both must be made for the same keys"
            )
        windows = [window for window in (self.window, other.window) if window is not None]
        return Mask(
            length=self.length,
            keep_BM=_both(self.keep_BM, other.keep_BM),
            causal=self.causal or other.causal,
            window=min(windows, default=None),
            scores=_both(self.scores, other.scores),
            lengths=self.lengths or other.lengths,
        )

    @property
    def only_causal(self) -> bool:
        """Whether causality is the only condition, so that a kernel's own causal path can serve."""
        rest = (self.keep_BM, self.window, self.scores, self.lengths)
        return self.causal and all(part is None for part in rest)

    @property
    def only_padding(self) -> bool:
        """Whether no condition depends on the query."""
        return not self.causal and all(part is None for part in (self.window, self.scores, self.lengths))

    def within(self, longest: int) -> "Mask":
        """Packed: the same conditions for these texts as rows of a batch, padded to `longest`."""
        assert self.lengths is not None
        held = self.scores.device if self.scores is not None else None
        lengths_B = torch.tensor(self.lengths, device=held)
        keep_BM = torch.arange(longest, device=held) < lengths_B[:, None]
        scores = self.scores
        if scores is not None and scores.shape[-1] < longest:
            missing = longest - scores.shape[-1]
            scores = torch.nn.functional.pad(scores, (0, missing, 0, missing), value=0)
        return Mask(length=longest, keep_BM=keep_BM, causal=self.causal, window=self.window, scores=scores)

    def allowed(self, queries: int, device: torch.device | None = None) -> Bool[Tensor, "..."] | None:
        """Every condition that is not a float, broadcastable to (B, H, L, M); None where all may attend."""
        allowed: Tensor | None = None
        if self.keep_BM is not None:
            allowed = self.keep_BM[:, None, None, :]
        if self.scores is not None and self.scores.dtype == torch.bool:
            allowed = _both(allowed, self.scores)
        if self.causal or self.window is not None:
            near = self._near((self.length - queries, self.length), (0, self.length), device)
            allowed = _both(allowed, near)
        return allowed

    def reach(self, queries: range) -> range:
        """The keys that queries at these places among the keys can attend to, by causality and window alone."""
        first = 0 if self.window is None else max(0, queries.start - self.window)
        ahead = self.length if self.window is None else queries.stop + self.window
        return range(first, min(queries.stop if self.causal else ahead, self.length))

    def between(self, queries: range, keys: range, device: torch.device | None = None) -> Bool[Tensor, "..."] | None:
        """Padding, causality and window for some of the queries, at these places among the keys, and some of the keys;
        None where all may attend."""
        kept = None if self.keep_BM is None else self.keep_BM[:, None, None, keys.start : keys.stop]
        limited = self.causal or self.window is not None
        return _both(
            kept, self._near((queries.start, queries.stop), (keys.start, keys.stop), device) if limited else None
        )

    def _near(self, queries: tuple[int, int], keys: tuple[int, int], device: torch.device | None) -> Tensor:
        """Causality and window, one of which there is."""
        # compared, not subtracted: differences would take eight times the memory of what is wanted
        key_1M, query_L1 = torch.arange(*keys, device=device)[None], torch.arange(*queries, device=device)[:, None]
        near_LM = key_1M <= (query_L1 if self.causal or self.window is None else query_L1 + self.window)
        return near_LM if self.window is None else near_LM & (key_1M >= query_L1 - self.window)

    def added(self) -> Float[Tensor, "..."] | None:
        """The float part, which is added to the scores; None where there is none."""
        return self.scores if self.scores is not None and self.scores.is_floating_point() else None

    def positions(self) -> Int[Tensor, "B M"] | None:
        """Each key's position, counted from the first kept one; None where that is simply 0, 1, 2 ...

        So a text has the same positions with padding on its left as without it.
        """
        if self.lengths is not None:
            return torch.cat([torch.arange(length) for length in self.lengths])[None]
        if self.keep_BM is None or self.length == 0:
            return None
        first_B = self.keep_BM.to(torch.uint8).argmax(dim=1)
        return (torch.arange(self.length, device=first_B.device) - first_B[:, None]).clamp(min=0)


MaskLike = Mask | Tensor | None
"""What every public boundary takes: a `Mask`, a bool tensor (True = may attend), a float tensor (added), or None."""


def padding(keep: Bool[Tensor, "B M"]) -> Mask:
    """Keys that are padding are attended by nobody.

    Args:
        keep: bool (B, M), True at real tokens.

    >>> import torch; from clearhead import masks
    >>> masks.additive(masks.padding(torch.tensor([[True, False]])))
    tensor([[[[0., -inf]]]])
    """
    if keep.dtype != torch.bool or keep.ndim != 2:
        raise ValueError(
            f"padding takes a bool mask of shape (batch, length), True at real tokens; got {_kind(keep)}. "
            "From token ids: keep = ids != pad_id; from a 0/1 attention mask: masks.from_transformers(mask)"
        )
    return Mask(length=keep.shape[1], keep_BM=keep)


def packed(lengths: Sequence[int]) -> Mask:
    """Texts that stand one after another in one row, without padding; none attends to another.

    >>> from clearhead import masks
    >>> masks.additive(masks.packed([1, 2]))
    tensor([[[[0., -inf, -inf],
              [-inf, 0., 0.],
              [-inf, 0., 0.]]]])
    """
    return Mask(length=sum(lengths), lengths=tuple(lengths))


def causal(n: int) -> Mask:
    """Position i attends to positions 0 to i: the decoder's mask over n positions.

    >>> from clearhead import masks
    >>> masks.additive(masks.causal(2))
    tensor([[0., -inf],
            [0., 0.]])
    """
    return Mask(length=n, causal=True)


def window(n: int, radius: int) -> Mask:
    """Position i attends to the positions i − radius to i + radius: local attention over n positions."""
    if radius < 0:
        raise ValueError(f"a window's radius is 0 or more; got {radius}")
    return Mask(length=n, window=radius)


def additive(mask: MaskLike, queries: int | None = None, dtype: torch.dtype | None = None) -> Float[Tensor, "..."]:
    """The dense matrix of 0 and −∞ (plus the float part) that is added to the scores.

    Args:
        mask: what to make dense.
        queries: number of queries L; as many as keys where it is not given.
        dtype: of the result; the float part's, or float32, where it is not given.
    """
    if mask is None:
        return torch.zeros((), dtype=dtype)
    if isinstance(mask, Tensor):
        mask = Mask(length=mask.shape[-1], scores=_checked(mask))
    if mask.lengths is not None:
        return _blocks(mask, dtype)
    held = mask.keep_BM if mask.keep_BM is not None else mask.scores
    device = held.device if held is not None else None
    allowed, added = mask.allowed(queries or mask.length, device), mask.added()
    base = torch.zeros((), dtype=dtype, device=device) if added is None else added.to(dtype or added.dtype)
    return base if allowed is None else torch.where(allowed, base, float("-inf"))


def as_mask(mask: MaskLike, *, batch: int, heads: int, queries: int, keys: int) -> Mask | None:
    """The mask as a `Mask`, after checking that it fits scores of shape (batch, heads, queries, keys).

    Raises:
        ValueError: an integer mask, or one that does not broadcast to that shape.
    """
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        return _from_tensor(mask, (batch, heads, queries, keys))
    if not isinstance(mask, Mask):
        raise ValueError(f"a mask is a Mask, a tensor or None; got a {type(mask).__name__}")
    if mask.length != keys:
        raise ValueError(f"the mask was made for {mask.length} keys, but attention runs over {keys}")
    if mask.lengths is not None:
        if batch != 1 or queries != keys:
            raise ValueError(
                f"packed texts stand in a batch of one row; got {batch} rows, {queries} queries, {keys} keys"
            )
        return mask
    if mask.keep_BM is not None and mask.keep_BM.shape[0] not in (1, batch):
        raise ValueError(f"the padding mask holds {mask.keep_BM.shape[0]} sequences, but the batch holds {batch}")
    if mask.scores is not None:
        _check_shape(mask.scores, (batch, heads, queries, keys))
    return mask


def from_torch_nn(attn_mask: Tensor | None, key_padding_mask: Tensor | None, *, num_heads: int = 1) -> Mask | None:
    """torch.nn's two masks, in which a bool True means *may not attend*, as one of ours.

    Args:
        attn_mask: (L, M) or (B * num_heads, L, M), bool or float.
        key_padding_mask: (B, M), bool or float.
    """
    parts: list[Mask] = []
    if attn_mask is not None:
        scores = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
        if scores.ndim == 3:
            scores = scores.reshape(-1, num_heads, *scores.shape[1:])
        parts.append(Mask(length=scores.shape[-1], scores=_checked(scores)))
    if key_padding_mask is not None:
        if key_padding_mask.dtype == torch.bool:
            parts.append(padding(~key_padding_mask))
        else:
            scores = _checked(key_padding_mask)[:, None, None, :]
            parts.append(_padding_or_scores(scores))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else parts[0] & parts[1]


def to_torch_nn(
    mask: MaskLike, *, batch: int, queries: int, keys: int, num_heads: int = 1
) -> tuple[Tensor | None, Tensor | None]:
    """Ours as torch.nn's (attn_mask, key_padding_mask), in which a bool True means *may not attend*.

    Args:
        mask: what to convert.
        batch, queries, keys, num_heads: the sizes that it is for; torch.nn broadcasts no masks.

    Returns:
        attn_mask (L, M) or (B * num_heads, L, M), and key_padding_mask (B, M); None for what is not needed.
    """
    checked = as_mask(mask, batch=batch, heads=num_heads, queries=queries, keys=keys)
    if checked is None:
        return None, None
    key_padding = None if checked.keep_BM is None else ~checked.keep_BM.expand(batch, keys)
    if checked.lengths is not None:
        return additive(checked).expand(1, num_heads, queries, keys).flatten(0, 1), None
    rest = replace(checked, keep_BM=None)
    allowed = rest.allowed(queries, None if rest.scores is None else rest.scores.device)
    if rest.added() is not None:
        dense = additive(rest, queries)
    elif allowed is not None:
        dense = ~allowed
    else:
        return None, key_padding
    if dense.ndim == 2:
        return dense.expand(queries, keys), key_padding
    return dense.expand(batch, num_heads, queries, keys).flatten(0, 1), key_padding


def from_transformers(attention_mask: Tensor) -> Mask:
    """The 0/1 (B, M) ``attention_mask`` of Hugging Face tokenizers and models, 1 = real token, as one of ours.

    Raises:
        ValueError: a float mask: it would be an additive one, in which 0 means the opposite.
    """
    if attention_mask.is_floating_point():
        raise ValueError(f"an attention mask of 0 and 1 is wanted, as integers; got {_kind(attention_mask)}")
    return padding(attention_mask != 0)


def _blocks(mask: Mask, dtype: torch.dtype | None) -> Tensor:
    """A packed mask as one matrix: each text's own, −∞ between texts."""
    assert mask.lengths is not None
    longest = max(mask.lengths, default=0)
    own = additive(replace(mask.within(longest), keep_BM=None), longest, dtype)
    heads = own.shape[-3] if own.ndim > 2 else 1
    own = own.expand(1, heads, longest, longest)
    dense = torch.full((1, heads, mask.length, mask.length), float("-inf"), dtype=own.dtype, device=own.device)
    start = 0
    for length in mask.lengths:
        stop = start + length
        dense[:, :, start:stop, start:stop] = own[:, :, :length, :length]
        start = stop
    return dense


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    if one.dtype == torch.bool and other.dtype == torch.bool:
        return one & other
    if one.dtype == torch.bool:
        return torch.where(one, other, float("-inf"))
    if other.dtype == torch.bool:
        return torch.where(other, one, float("-inf"))
    return one + other


def _checked(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"a mask is bool (True = may attend) or float (added to the scores); got {_kind(mask)}. "
            "From a 0/1 attention mask: masks.from_transformers(mask)"
        )
    return mask


def _from_tensor(mask: Tensor, shape: tuple[int, int, int, int]) -> Mask:
    _check_shape(_checked(mask), shape)
    keys = shape[-1]
    if mask.ndim == 4 and mask.shape[1:] == (1, 1, keys):
        return _padding_or_scores(mask)
    return Mask(length=keys, scores=mask)


def _padding_or_scores(mask: Tensor) -> Mask:
    """A (B, 1, 1, M) mask. Of bools, or of 0 and −∞ alone, it is padding by another name: kept small, and positions
    can be counted from it. Looking into floats would halt a compiler or an accelerator: there they stay scores."""
    if mask.dtype == torch.bool:
        return padding(mask[:, 0, 0, :])
    if mask.device.type == "cpu" and not torch.compiler.is_compiling() and not mask.requires_grad:
        keep = mask[:, 0, 0, :] == 0
        if bool((keep | (mask[:, 0, 0, :] == float("-inf"))).all()):
            return padding(keep)
    return Mask(length=mask.shape[-1], scores=mask)


def _check_shape(mask: Tensor, shape: tuple[int, int, int, int]) -> None:
    fits = 2 <= mask.ndim <= 4 and all(
        size in (1, wanted) for size, wanted in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"a mask for {shape[2]} queries and {shape[3]} keys broadcasts to (batch, heads, queries, keys) = {shape}, "
            f"and a 2-D one is (queries, keys); got {_kind(mask)}. For padding: masks.padding(keep)"
        )


def _kind(mask: Tensor) -> str:
    return f"{str(mask.dtype).removeprefix('torch.')} of shape {tuple(mask.shape)}"
