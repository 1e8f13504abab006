"""Builders and conversions of attention masks.

A mask stays symbolic (`Mask`): padding as (B, M), causality as a flag, a window as a number. So 8,192 tokens need no
L x M matrix until a kernel asks for one. Every public function also accepts a tensor: bool, **True = may attend**, or
float, added to the scores. It must be broadcastable to (B, H, L, M); a 2-D tensor is always (L, M). The functions
``from_*`` and ``to_*`` convert the conventions of other libraries.

>>> from clearhead import masks
>>> masks.additive(masks.causal(2)).tolist()
[[0.0, -inf], [0.0, 0.0]]
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.equations.mask import Mask, MaskLike, as_mask, check_dtype, describe, from_padding_tensor

__all__ = [
    "Mask",
    "MaskLike",
    "additive",
    "as_mask",
    "causal",
    "from_torch_nn",
    "from_transformers",
    "packed",
    "padding",
    "to_torch_nn",
    "window",
]


def padding(keep: Bool[Tensor, "B M"]) -> Mask:
    """Return a mask under which no query attends to padding.

    Args:
        keep: bool (B, M), True at real tokens.

    Raises:
        ValueError: another dtype or number of dimensions.

    >>> import torch; from clearhead import masks
    >>> masks.additive(masks.padding(torch.tensor([[True, False]])))
    tensor([[[[0., -inf]]]])
    """
    if keep.dtype != torch.bool or keep.ndim != 2:
        raise ValueError(
            f"padding takes a bool mask of shape (batch, length), True at real tokens; got {describe(keep)}. "
            "From token ids: keep = ids != pad_id; from a 0/1 attention mask: masks.from_transformers(mask)"
        )
    return Mask(length=keep.shape[1], keep_BM=keep)


def packed(lengths: Sequence[int]) -> Mask:
    """Return a mask for sequences packed into one row; none attends to another.

    Args:
        lengths: number of tokens of each sequence.

    >>> from clearhead import masks
    >>> masks.additive(masks.packed([1, 2]))
    tensor([[[[0., -inf, -inf],
              [-inf, 0., 0.],
              [-inf, 0., 0.]]]])
    """
    return Mask(length=sum(lengths), lengths=tuple(lengths))


def causal(n: int) -> Mask:
    """Return the decoder's mask over n positions: position i attends to positions 0 to i.

    >>> from clearhead import masks
    >>> masks.additive(masks.causal(2))
    tensor([[0., -inf],
            [0., 0.]])
    """
    return Mask(length=n, causal=True)


def window(n: int, radius: int) -> Mask:
    """Return a mask for local attention over n positions: i attends to i − radius … i + radius.

    Raises:
        ValueError: a negative radius.
    """
    if radius < 0:
        raise ValueError(f"the radius of a window must be at least 0; got {radius}")
    return Mask(length=n, window=radius)


def additive(mask: MaskLike, queries: int | None = None, dtype: torch.dtype | None = None) -> Float[Tensor, "..."]:
    """Return the dense matrix of 0 and −∞, plus the float bias, that is added to the scores.

    Args:
        mask: the mask.
        queries: number of queries L; the number of keys where None.
        dtype: dtype of the result; by default that of the float bias, or float32.
    """
    if mask is None:
        return torch.zeros((), dtype=dtype)
    if isinstance(mask, Tensor):
        mask = Mask(length=mask.shape[-1], bias=check_dtype(mask))
    if mask.lengths is not None:
        return _block_diagonal(mask, dtype)
    tensor = mask.keep_BM if mask.keep_BM is not None else mask.bias
    device = tensor.device if tensor is not None else None
    allowed, bias = mask.allowed(queries or mask.length, device), mask.float_bias()
    base = torch.zeros((), dtype=dtype, device=device) if bias is None else bias.to(dtype or bias.dtype)
    return base if allowed is None else torch.where(allowed, base, float("-inf"))


def from_torch_nn(attn_mask: Tensor | None, key_padding_mask: Tensor | None, *, num_heads: int = 1) -> Mask | None:
    """Convert the two masks of torch.nn; their bool True means *may not attend*.

    Args:
        attn_mask: (L, M) or (B * num_heads, L, M), bool or float.
        key_padding_mask: (B, M), bool or float.
        num_heads: attention heads, to split the first dimension of attn_mask.
    """
    parts: list[Mask] = []
    if attn_mask is not None:
        bias = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
        if bias.ndim == 3:
            bias = bias.reshape(-1, num_heads, *bias.shape[1:])
        parts.append(Mask(length=bias.shape[-1], bias=check_dtype(bias)))
    if key_padding_mask is not None:
        if key_padding_mask.dtype == torch.bool:
            parts.append(padding(~key_padding_mask))
        else:
            parts.append(from_padding_tensor(check_dtype(key_padding_mask)[:, None, None, :]))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else parts[0] & parts[1]


def to_torch_nn(
    mask: MaskLike, *, batch: int, queries: int, keys: int, num_heads: int = 1
) -> tuple[Tensor | None, Tensor | None]:
    """Convert to the two masks of torch.nn; their bool True means *may not attend*.

    Args:
        mask: the mask.
        batch, queries, keys, num_heads: sizes of the scores; torch.nn does not broadcast masks.

    Returns:
        attn_mask (L, M) or (B * num_heads, L, M), and key_padding_mask (B, M); None for a mask that is not needed.
    """
    checked = as_mask(mask, batch=batch, heads=num_heads, queries=queries, keys=keys)
    if checked is None:
        return None, None
    key_padding = None if checked.keep_BM is None else ~checked.keep_BM.expand(batch, keys)
    if checked.lengths is not None:
        return additive(checked).expand(1, num_heads, queries, keys).flatten(0, 1), None
    rest = replace(checked, keep_BM=None)
    allowed = rest.allowed(queries, None if rest.bias is None else rest.bias.device)
    if rest.float_bias() is not None:
        dense = additive(rest, queries)
    elif allowed is not None:
        dense = ~allowed
    else:
        return None, key_padding
    if dense.ndim == 2:
        return dense.expand(queries, keys), key_padding
    return dense.expand(batch, num_heads, queries, keys).flatten(0, 1), key_padding


def from_transformers(attention_mask: Tensor) -> Mask:
    """Convert the 0/1 ``attention_mask`` (B, M) of Hugging Face tokenizers and models, 1 = real token.

    Raises:
        ValueError: a float mask: as an additive mask, 0 would mean the opposite.
    """
    if attention_mask.is_floating_point():
        raise ValueError(f"Expected an attention mask of the integers 0 and 1, got {describe(attention_mask)}.")
    return padding(attention_mask != 0)


def _block_diagonal(mask: Mask, dtype: torch.dtype | None) -> Tensor:
    """Return a packed mask as one matrix: one block for each sequence, −∞ outside the blocks."""
    assert mask.lengths is not None
    longest = max(mask.lengths, default=0)
    block = additive(replace(mask.to_padded(longest), keep_BM=None), longest, dtype)
    heads = block.shape[-3] if block.ndim > 2 else 1
    block = block.expand(1, heads, longest, longest)
    dense = torch.full((1, heads, mask.length, mask.length), float("-inf"), dtype=block.dtype, device=block.device)
    start = 0
    for length in mask.lengths:
        stop = start + length
        dense[:, :, start:stop, start:stop] = block[:, :, :length, :length]
        start = stop
    return dense
