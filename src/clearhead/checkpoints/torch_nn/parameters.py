"""Parameter names of torch.nn's encoder and decoder, and the conversion of its fused projections."""

from collections.abc import Mapping

import torch
from torch import Tensor

from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias


def _stack_names(rows: Rows) -> ParameterNames:
    each: dict[str | tuple[str, ...], str] = {
        f"layers.{{}}.{foreign}": f"layers.{{}}.{ours}" for foreign, ours in rows.items()
    }
    return ParameterNames(rows=each | with_bias({"norm": "norm"}))


_SHARED: dict[str | tuple[str, ...], str] = {
    "self_attn.in_proj_weight": "attention.qkv.weight",
    "self_attn.in_proj_bias": "attention.qkv.bias",
    **with_bias(
        {
            "self_attn.out_proj": "attention.out",
            "linear1": "feedforward.inner",
            "linear2": "feedforward.out",
            "norm1": "attention_residual.norm",
        }
    ),
}
_ENCODER = _SHARED | with_bias({"norm2": "feedforward_residual.norm"})
_DECODER = _SHARED | with_bias(
    {
        # torch.nn has one matrix [Q; K; V]; `split_qkv` splits it
        "multihead_attn.q": "cross_attention.q",
        "multihead_attn.kv": "cross_attention.kv",
        "multihead_attn.out_proj": "cross_attention.out",
        "norm2": "cross_attention_residual.norm",
        "norm3": "feedforward_residual.norm",
    }
)
LAYER, STACK = ParameterNames(rows=_ENCODER), _stack_names(_ENCODER)
DECODER_LAYER, DECODER_STACK = ParameterNames(rows=_DECODER), _stack_names(_DECODER)


def split_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return torch.nn's tensors with each [Q; K; V] of cross-attention split into Q and [K; V].

    Q projects the target, [K; V] the memory.
    """
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        before, fused, part = name.partition("multihead_attn.in_proj_")
        if fused:
            third = len(tensor) // 3
            parts[f"{before}multihead_attn.q.{part}"] = tensor[:third]
            parts[f"{before}multihead_attn.kv.{part}"] = tensor[third:]
        else:
            parts[name] = tensor
    return parts


def join_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with each Q and [K; V] of cross-attention joined: the inverse of `split_qkv`."""
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        before, query, part = name.partition("multihead_attn.q.")
        if query:
            others = tensors[f"{before}multihead_attn.kv.{part}"]
            whole[f"{before}multihead_attn.in_proj_{part}"] = torch.cat([tensor, others])
        elif "multihead_attn.kv." not in name:
            whole[name] = tensor
    return whole
