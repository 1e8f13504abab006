"""Attention by PyTorch's fused kernels: no matrix of all queries and keys in memory."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.equations import masks
from clearhead.kernels.attention_backends import AttentionCall, register_backend


def _supports(call: AttentionCall) -> bool:
    return not call.is_packed


@register_backend("fused", rank=40, supports=_supports)
def fused_attention(call: AttentionCall) -> Tensor:
    """Compute attention with `torch.nn.functional.scaled_dot_product_attention`."""
    q, mask = call.q, call.mask
    if mask is None:
        return _sdpa(call)
    # PyTorch aligns a non-square causal mask at the top left, Clearhead at the last query
    if mask.only_causal and call.queries == mask.length:
        return _sdpa(call, is_causal=True)
    if mask.float_bias() is None:
        allowed = mask.allowed(call.queries, q.device)
        values = _sdpa(call, allowed)
        if allowed is not None and q.device.type == "cuda" and q.element_size() == 2:
            # cuDNN's kernel averages the values where a mask covers a whole row
            values = values.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
        return values
    # in float32: a finite −1e9 would become −∞ in float16
    bias = masks.additive(mask, call.queries, torch.promote_types(q.dtype, torch.float32))
    if not torch.is_grad_enabled():
        if q.dtype == torch.bfloat16 and q.device.type != "cpu":
            bias = bias.to(q.dtype)  # GPU kernels need one dtype; bfloat16 has the range of float32
        return _sdpa(call, bias)
    # the gradients of PyTorch's flash kernel are wrong where a finite float mask covers a whole row
    with sdpa_kernel(SDPBackend.MATH):
        return _sdpa(call, bias)


def _sdpa(call: AttentionCall, attn_mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
    return functional.scaled_dot_product_attention(
        call.q, call.k, call.v, attn_mask=attn_mask, dropout_p=call.drop_prob, scale=call.scale, is_causal=is_causal
    )
