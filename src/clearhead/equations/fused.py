"""The equation of `attention.py` on PyTorch's fused kernels: the same values, no weights, no L x M matrix."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike


def fused_scaled_dot_product(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    mask: MaskLike = None,
    *,
    drop_prob: float = 0.0,
) -> Float[Tensor, "B H L V"]:
    """Attention's values, as `scaled_dot_product` gives them.

    Source: Section 3.2.1, equation 1; the formula is stated in `attention.py`

    Args:
        q, k, v, mask: as in `scaled_dot_product`.
        drop_prob: share of the weights that is dropped; the caller passes 0 outside training.
    """
    batch, heads, queries, _ = q.shape
    checked = masks.of(mask, batch=batch, heads=heads, queries=queries, keys=k.shape[2])
    if checked is None:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=drop_prob)
    # a kernel aligns a non-square causal mask at the top left, ours at the last query
    if checked.only_causal and queries == checked.length:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=drop_prob, is_causal=True)
    if checked.added() is None:
        allowed = checked.allowed(queries, q.device)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=drop_prob)
    # in 32 bits: a finite −1e9 would be −∞ in float16
    bias = masks.additive(checked, queries, torch.promote_types(q.dtype, torch.float32))
    if not torch.is_grad_enabled():
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop_prob)
    # the flash kernel's gradients are wrong where a finite float mask covers a whole row; the plain one's are right
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop_prob)
