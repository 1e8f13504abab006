"""Attention on the CPU as separate matmuls and softmax: faster than a fused kernel for short sequences."""

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional

from clearhead.kernels import cpu
from clearhead.kernels.attention_backends import AttentionCall, register_backend
from clearhead.kernels.dropout import fast_dropout

MAX_LENGTH_WITH_GRAD = 128
"""Maximum queries and keys with gradients; beyond this the fused kernel is faster."""
MAX_LENGTH = 256
"""Maximum queries and keys without gradients; beyond this the fused kernel is faster."""
MAX_QUERIES_WITH_DROPOUT = 512
"""Maximum queries with dropout, where `fast_dropout` saves more time than the stored weights cost."""
MAX_SCORES = 2**19
"""Scores computed at a time without gradients, to stay in the cache of a CPU core."""
_MIN_SOFTMAX_WIDTH = 16
"""Minimum keys in the softmax; PyTorch's CPU softmax is ten times slower for fewer."""


def is_fast_forward(q: Tensor) -> bool:
    """Return whether the forward pass over few queries is faster than the fused kernel's, for q's dtype and device."""
    if q.device.type != "cpu":
        return False
    return q.dtype == torch.float32 or (q.dtype == torch.bfloat16 and not _has_fast_fused_bfloat16())


@functools.cache
def _has_fast_fused_bfloat16() -> bool:
    """Return whether the CPU has AMX, with which the fused kernel is faster in bfloat16 at every length.

    The fused kernel is faster in float32, too, but there padding would change its results by about 1e-6.
    """
    return cpu.has("amx_bf16")


def _supports(call: AttentionCall) -> bool:
    has_float_bias = call.mask is not None and call.mask.float_bias() is not None
    return not call.is_packed and not has_float_bias and call.q.device.type == "cpu"


def _is_short(call: AttentionCall) -> bool:
    """Return whether queries and keys are so few that the fused kernel is slower.

    It takes two to eight times as long for 10 to 60 tokens.
    """
    if call.needs_grad:
        return max(call.queries, call.keys) <= MAX_LENGTH_WITH_GRAD
    return is_fast_forward(call.q) and max(call.queries, call.keys) <= MAX_LENGTH


def _is_fastest(call: AttentionCall) -> bool:
    return _is_short(call) or bool(call.drop_prob and call.queries <= MAX_QUERIES_WITH_DROPOUT)


@register_backend("stepwise", rank=20, supports=_supports, is_fastest=_is_fastest)
def stepwise_attention(call: AttentionCall) -> Tensor:
    """Compute attention by matmul, softmax and matmul; without gradients, a few sequences at a time."""
    q, k, v = call.q, call.k, call.v
    batch, heads, queries, _ = q.shape
    allowed = None if call.mask is None else call.mask.allowed(queries)
    rows = max(1, MAX_SCORES // max(1, heads * queries * call.keys))
    if batch <= rows or call.needs_grad or torch.compiler.is_compiling():
        return _attend(q, k, v, allowed, call.drop_prob, call.scale)
    values = q.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
    for start in range(0, batch, rows):
        part = slice(start, start + rows)
        per_row = allowed is not None and allowed.ndim == 4 and len(allowed) > 1
        allowed_part = allowed[part] if allowed is not None and per_row else allowed
        values[part] = _attend(q[part], k[part], v[part], allowed_part, call.drop_prob, call.scale)
    return values


def _attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, drop_prob: float, scale: float | None) -> Tensor:
    # torch.compile generates its own softmax, and invalid C++ for a padded bool mask
    if k.shape[2] < _MIN_SOFTMAX_WIDTH and not torch.compiler.is_compiling():
        k, v, allowed = _pad_keys(k, v, allowed)
    exact = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        scores_BHLM = (q @ k.transpose(-2, -1)).to(exact)
        scale, has_keys = 1 / math.sqrt(q.shape[-1]) if scale is None else scale, None
        if allowed is None:
            scores_BHLM = scores_BHLM * scale
        else:
            # finite: a fully masked row gets weights without NaN, which are then set to zero
            bias = torch.zeros(allowed.shape, dtype=exact).masked_fill_(~allowed, torch.finfo(exact).min / 2)
            scores_BHLM = torch.add(bias, scores_BHLM, alpha=scale)
            has_keys = allowed.any(dim=-1, keepdim=True)
        weights_BHLM = torch.softmax(scores_BHLM, dim=-1)
        if drop_prob:
            weights_BHLM = fast_dropout(weights_BHLM, drop_prob)
        # torch.compile cannot branch on data
        if has_keys is not None and (torch.compiler.is_compiling() or not bool(has_keys.all())):
            weights_BHLM = weights_BHLM * has_keys
        return weights_BHLM.to(v.dtype) @ v


def _pad_keys(k: Tensor, v: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Pad keys and values to the minimum width of the softmax, with keys that no query may attend to."""
    keys = k.shape[2]
    real = torch.ones(keys, dtype=torch.bool) if allowed is None else allowed.expand(*allowed.shape[:-1], keys)
    k, v = (functional.pad(x, (0, 0, 0, _MIN_SOFTMAX_WIDTH - keys)) for x in (k, v))
    return k, v, functional.pad(real, (0, _MIN_SOFTMAX_WIDTH - keys))
