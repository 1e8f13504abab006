"""What a lost transpose does to multi-head attention, in numbers (docs/paper.md).

Usage: python benchmarks/lost_transpose.py
"""

import torch
from torch import Tensor
from torch.nn import functional

from clearhead import MultiHeadAttention, scaled_dot_product

D_MODEL, HEADS, LENGTH = 512, 8, 10


def lost(layer: MultiHeadAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """(B, H, L, d_k) reshaped to (B, L, H d_k) at once, with the head axis still before the positions."""
    q, k, v = layer.qkv(x).reshape(2, LENGTH, 3, HEADS, D_MODEL // HEADS).permute(2, 0, 3, 1, 4)
    values, _ = scaled_dot_product(q, k, v, mask)
    return layer.out(values.reshape(2, LENGTH, D_MODEL))


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(D_MODEL, HEADS), torch.randn(2, LENGTH, D_MODEL)
    right, wrong = layer(x), lost(layer, x)
    print(f"distance relative to the right output's norm: {(wrong - right).norm() / right.norm():.2f}")
    print(f"mean cosine: {functional.cosine_similarity(wrong, right, dim=-1).mean():.2f}")
    changed, only_itself = x.clone(), torch.eye(LENGTH, dtype=torch.bool)
    changed[:, 0] += 1
    for name, run in (("right", layer), ("lost", lambda x, mask: lost(layer, x, mask))):
        moved = (run(changed, only_itself) - run(x, only_itself)).abs().amax(dim=-1)[0] > 1e-6
        print(f"{name}: outputs of other tokens that move: {int(moved[1:].sum())} of {LENGTH - 1}")


if __name__ == "__main__":
    main()
