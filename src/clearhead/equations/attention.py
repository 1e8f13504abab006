"""Scaled dot-product attention step by step: the oracle of every attention backend.

Section 3.2 of "Attention Is All You Need". No function changes its arguments.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike


def scaled_dot_product(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    mask: MaskLike = None,
    *,
    scale: float | None = None,
) -> tuple[Float[Tensor, "B H L V"], Float[Tensor, "B H L M"]]:
    """Return the attention values and weights.

    Equation: Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + M) V
    Source: Section 3.2.1, equation 1

    Args:
        q: queries (B, H, L, d_k).
        k: keys (B, H, M, d_k).
        v: values (B, H, M, d_v); d_v may differ from d_k.
        mask: a `Mask`, a bool tensor (True = may attend) or a float tensor (added), broadcastable to (B, H, L, M).
        scale: factor of Q Kᵀ; 1 / √d_k where None. T5 has 1.

    Returns:
        Values (B, H, L, d_v) and weights (B, H, L, M). Both are zeros for a query that may attend to no key.

    Raises:
        ValueError: q, k, v or the mask of a wrong shape, or a mask of a wrong dtype.

    >>> import torch; from clearhead import scaled_dot_product
    >>> values, attention = scaled_dot_product(*torch.rand(3, 2, 8, 10, 64).unbind())
    """
    _check_shapes(q, k, v)
    # kernels accumulate in 32 bits: an oracle in 16 bits would be less exact than they are
    exact = torch.promote_types(q.dtype, torch.float32)
    weights = softmax(masked(scores(q.to(exact), k.to(exact), scale=scale), mask))
    return weighted_sum(weights, v.to(exact)).to(v.dtype), weights.to(q.dtype)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "Expected q (batch, heads, queries, d_k), k (batch, heads, keys, d_k) and v (batch, heads, keys, d_v); got "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}. Without heads, add an axis: q[:, None]."
        )


def scores(
    q: Float[Tensor, "B H L K"], k: Float[Tensor, "B H M K"], *, scale: float | None = None
) -> Float[Tensor, "B H L M"]:
    """Return the attention scores: the scaled dot product of each query and key.

    Equation: S = Q Kᵀ / √d_k
    Source: Section 3.2.1; for independent q and k of variance 1, the root keeps the variance of a score at 1.
        With a scale, `scaled_scores`
    """
    return (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1]) if scale is None else scaled_scores(q, k, scale)


def scaled_scores(q: Float[Tensor, "B H L K"], k: Float[Tensor, "B H M K"], scale: float) -> Float[Tensor, "B H L M"]:
    """Return the attention scores with a factor other than 1 / √d_k.

    Equation: S = Q Kᵀ · scale
    Source: Raffel et al. 2020, "T5", in the authors' code: T5 has scale 1, and smaller initial weights instead
    """
    return (q @ k.transpose(-2, -1)) * scale


def masked(scores: Float[Tensor, "B H L M"], mask: MaskLike) -> Float[Tensor, "B H L M"]:
    """Add a mask to the scores: −∞ where a query may not attend.

    Equation: S′ = S + M
    Source: Section 3.2.3
    """
    batch, heads, queries, keys = scores.shape
    checked = masks.as_mask(mask, batch=batch, heads=heads, queries=queries, keys=keys)
    return scores if checked is None else scores + masks.additive(checked, queries, scores.dtype).to(scores.device)


def softmax(scores: Float[Tensor, "B H L M"]) -> Float[Tensor, "B H L M"]:
    """Turn each row of scores into weights that sum to 1; zeros where the whole row is −∞.

    Equation: A_ij = exp(S′_ij) / Σ_m exp(S′_im)
    Source: Section 3.2.1. a row of −∞ would give NaN, and gets zeros instead
    """
    empty_BHL1 = scores.detach().amax(dim=-1, keepdim=True) == float("-inf")
    # filled before and after: a NaN inside softmax would reach the gradient
    return torch.softmax(scores.masked_fill(empty_BHL1, 0.0), dim=-1).masked_fill(empty_BHL1, 0.0)


def weighted_sum(weights: Float[Tensor, "B H L M"], v: Float[Tensor, "B H M V"]) -> Float[Tensor, "B H L V"]:
    """Average the values by the attention weights.

    Equation: Z_h = A V
    Source: Section 3.2.1
    """
    return weights @ v


def project(
    x: Float[Tensor, "B L D"], weight: Float[Tensor, "N D"], bias: Float[Tensor, "N"] | None = None
) -> Float[Tensor, "B L N"]:
    """Project to queries, keys and values of all heads in one matmul; W_QKV is [W_Q; W_K; W_V], as in torch.nn.

    Equation: [Q; K; V] = X W_QKV + b_QKV
    Source: Section 3.2.2
    """
    projected = x @ weight.T
    return projected if bias is None else projected + bias


def project_queries(
    x: Float[Tensor, "B L D"], weight: Float[Tensor, "N D"], bias: Float[Tensor, "N"] | None = None
) -> Float[Tensor, "B L N"]:
    """Project the decoder's hidden states to the queries of cross-attention.

    Equation: Q = X W_Q + b_Q
    Source: Section 3.2.3
    """
    return project(x, weight, bias)


def project_memory(
    y: Float[Tensor, "B M D"], weight: Float[Tensor, "N D"], bias: Float[Tensor, "N"] | None = None
) -> Float[Tensor, "B M N"]:
    """Project the memory, the encoder's output, to keys and values of cross-attention; W_KV is [W_K; W_V].

    Equation: [K; V] = Y W_KV + b_KV
    Source: Section 3.2.3
    """
    return project(y, weight, bias)


def append_kv(cached: Float[Tensor, "B H M K"], new: Float[Tensor, "B H L K"]) -> Float[Tensor, "B H T K"]:
    """Append the keys (or values) of new tokens to the cached ones; a decoder computes each key once.

    Equation: K_{≤t} = [K_{<t}; K_t], V_{≤t} = [V_{<t}; V_t]
    Source: Section 3.2.3: a position attends to none after it, so that later tokens never change its keys and values
    """
    return torch.cat([cached, new], dim=2)


def split_heads(x: Float[Tensor, "B L D"], num_heads: int) -> Float[Tensor, "B H L K"]:
    """Split the model width into heads, and move the head axis before the positions.

    Equation: Q → (Q_1, …, Q_h), d_k = d_model / h; same for K and V
    Source: Section 3.2.2
    """
    return x.reshape(*x.shape[:2], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def repeat_heads(x: Float[Tensor, "B G L K"], groups: int) -> Float[Tensor, "B H L K"]:
    """Repeat each head of keys or values for the group of consecutive query heads that share it.

    Equation: K_h → K_⌊h/g⌋, g = h_q / h_kv; same for V
    Source: Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models", Section 2.2
    """
    return x.repeat_interleave(groups, dim=1)


def merge_heads(x: Float[Tensor, "B H L V"]) -> Float[Tensor, "B L HV"]:
    """Concatenate the heads. The head axis must be moved back first: reshaping alone mixes positions and heads.

    Equation: Z = Concat(Z_1, …, Z_h)
    Source: Section 3.2.2
    """
    return x.transpose(1, 2).flatten(2)


def output(
    x: Float[Tensor, "B L HV"], weight: Float[Tensor, "D HV"], bias: Float[Tensor, "D"] | None = None
) -> Float[Tensor, "B L D"]:
    """Apply the output projection to the concatenated heads.

    Equation: MultiHead(Q, K, V) = Z W_O + b_O
    Source: Section 3.2.2
    """
    mixed = x @ weight.T
    return mixed if bias is None else mixed + bias
