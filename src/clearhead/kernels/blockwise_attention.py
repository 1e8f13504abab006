"""Attention with a causal mask or a window, one block of queries at a time."""

import torch
from torch import Tensor
from torch.nn import functional

from clearhead.kernels.attention_backends import AttentionCall, register_backend

BLOCK_SIZE = 512
"""Queries in a block."""


def _supports(call: AttentionCall) -> bool:
    mask = call.mask
    return mask is not None and mask.bias is None and not call.is_packed


def _is_fastest(call: AttentionCall) -> bool:
    mask = call.mask
    if mask is None or (mask.only_causal and call.queries == mask.length):
        return False  # the fused kernel has its own causal path
    return (mask.causal or mask.window is not None) and call.queries > BLOCK_SIZE


@register_backend("blockwise", rank=30, supports=_supports, is_fastest=_is_fastest)
def blockwise_attention(call: AttentionCall) -> Tensor:
    """Compute attention block by block of queries, each over the keys that it can reach.

    No mask of all queries and keys is built, and the cost of a window depends on its width, not on the length.
    """
    q, k, v, mask = call.q, call.k, call.v, call.mask
    assert mask is not None
    blocks = []
    offset = mask.length - call.queries  # the last query is at the last key
    # from the last block, which may have the most keys, to the first: the memory that one leaves fits the next
    for start in reversed(range(0, call.queries, BLOCK_SIZE)):
        stop = min(start + BLOCK_SIZE, call.queries)
        queries = range(offset + start, offset + stop)
        keys = mask.key_range(queries)
        allowed = mask.block(queries, keys, q.device)
        block = q[:, :, start:stop], k[:, :, keys.start : keys.stop], v[:, :, keys.start : keys.stop]
        blocks.append(
            functional.scaled_dot_product_attention(
                *block, attn_mask=allowed, dropout_p=call.drop_prob, scale=call.scale
            )
        )
    return torch.cat(blocks[::-1], dim=2)
