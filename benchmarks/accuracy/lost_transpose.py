"""Measure the effect of a missing transpose in multi-head attention (docs/paper.md).

Usage: python benchmarks/accuracy/lost_transpose.py
"""

import torch
from torch import Tensor
from torch.nn import functional

from clearhead import MultiHeadAttention, scaled_dot_product

D_MODEL, HEADS, LENGTH = 512, 8, 10


def without_transpose(layer: MultiHeadAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Reshape (B, H, L, d_k) to (B, L, H d_k) without the transpose of heads and positions."""
    q, k, v = layer.qkv(x).reshape(2, LENGTH, 3, HEADS, D_MODEL // HEADS).permute(2, 0, 3, 1, 4)
    values, _ = scaled_dot_product(q, k, v, mask)
    return layer.out(values.reshape(2, LENGTH, D_MODEL))


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(D_MODEL, HEADS), torch.randn(2, LENGTH, D_MODEL)
    correct, wrong = layer(x), without_transpose(layer, x)
    print(f"distance relative to the norm of the correct output: {(wrong - correct).norm() / correct.norm():.2f}")
    print(f"mean cosine: {functional.cosine_similarity(wrong, correct, dim=-1).mean():.2f}")
    changed, self_only = x.clone(), torch.eye(LENGTH, dtype=torch.bool)
    changed[:, 0] += 1
    for name, run in (
        ("with the transpose", layer),
        ("without the transpose", lambda x, mask: without_transpose(layer, x, mask)),
    ):
        changed_outputs = (run(changed, self_only) - run(x, self_only)).abs().amax(dim=-1)[0] > 1e-6
        print(f"{name}: outputs of other tokens that change: {int(changed_outputs[1:].sum())} of {LENGTH - 1}")


if __name__ == "__main__":
    main()
