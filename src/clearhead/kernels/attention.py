"""Scaled dot-product attention by the fastest backend: values only, without the weights."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.equations import attention, masks
from clearhead.equations.masks import MaskLike
from clearhead.equations.residual import dropout
from clearhead.kernels import blockwise_attention as _blockwise
from clearhead.kernels import fused_attention as _fused
from clearhead.kernels import packed_attention as _packed
from clearhead.kernels import stepwise_attention as _stepwise
from clearhead.kernels.attention_backends import (
    AttentionCall,
    attention_backend,
    fastest_backend,
    forced_backend,
    register_backend,
)
from clearhead.kernels.native import packed_attention as _native_packed

__all__ = ["attention_backend", "scaled_dot_product_attention"]

# importing a module registers its backend
BACKEND_MODULES = (_native_packed, _packed, _stepwise, _blockwise, _fused)


def scaled_dot_product_attention(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    mask: MaskLike = None,
    *,
    drop_prob: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "B H L V"]:
    """Return the attention values, computed by the fastest backend that supports the call.

    Source: Section 3.2.1, equation 1; the formula is in `equations/attention.py`

    Args:
        q, k, v, mask, scale: as in `equations.attention.scaled_dot_product`.
        drop_prob: dropout of the attention weights; pass 0 outside training.

    Raises:
        ValueError: a mask of a wrong shape or dtype, or a call that the backend set by `attention_backend` does not
            support.
    """
    batch, heads, queries, _ = q.shape
    checked = masks.as_mask(mask, batch=batch, heads=heads, queries=queries, keys=k.shape[2])
    backend = forced_backend()
    if backend is None:
        call = AttentionCall(q, k, v, _without_wide_window(checked, queries), drop_prob, scale)
        return fastest_backend(call).compute(call)
    call = AttentionCall(q, k, v, checked, drop_prob, scale)
    if not backend.supports(call):
        raise ValueError(
            f"the attention backend {backend.name!r} does not support this call: {queries} queries, {call.keys} keys, "
            f"{q.dtype} on {q.device}, mask {checked}. Leave `attention_backend` to use the fastest one"
        )
    return backend.compute(call)


@register_backend("explicit", rank=100)
def explicit_attention(call: AttentionCall) -> Tensor:
    """Compute attention by the explicit equation, the oracle of all other backends."""
    if not call.drop_prob:
        return attention.scaled_dot_product(call.q, call.k, call.v, call.mask, scale=call.scale)[0]
    exact = torch.promote_types(call.q.dtype, torch.float32)
    scores = attention.scores(call.q.to(exact), call.k.to(exact), scale=call.scale)
    weights = dropout(attention.softmax(attention.masked(scores, call.mask)), call.drop_prob)
    return attention.weighted_sum(weights, call.v.to(exact)).to(call.v.dtype)


def _without_wide_window(mask: masks.Mask | None, queries: int) -> masks.Mask | None:
    """Remove a window that covers all keys from a mask: this allows faster kernels."""
    if mask is None or mask.window is None or mask.window < max(mask.length, queries) - 1:
        return mask
    rest = replace(mask, window=None)
    return None if rest.allows_all else rest
