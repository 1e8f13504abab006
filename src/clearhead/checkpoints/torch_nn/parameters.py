"""How torch.nn calls the tensors of its encoder and decoder, and where it fuses what we keep apart."""

from collections.abc import Mapping

import torch
from torch import Tensor

from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias


def _of_a_stack(rows: Rows) -> ParameterNames:
    each: dict[str | tuple[str, ...], str] = {
        f"layers.{{}}.{foreign}": f"layers.{{}}.{ours}" for foreign, ours in rows.items()
    }
    return ParameterNames(rows=each | with_bias({"norm": "norm"}))


_BOTH: dict[str | tuple[str, ...], str] = {
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
_ENCODER = _BOTH | with_bias({"norm2": "feedforward_residual.norm"})
_DECODER = _BOTH | with_bias(
    {
        # torch.nn's one matrix [Q; K; V], cut by `cut`
        "multihead_attn.q": "cross_attention.q",
        "multihead_attn.kv": "cross_attention.kv",
        "multihead_attn.out_proj": "cross_attention.out",
        "norm2": "cross_attention_residual.norm",
        "norm3": "feedforward_residual.norm",
    }
)
LAYER, STACK = ParameterNames(rows=_ENCODER), _of_a_stack(_ENCODER)
DECODER_LAYER, DECODER_STACK = ParameterNames(rows=_DECODER), _of_a_stack(_DECODER)


def split_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torch.nn's tensors, each [Q; K; V] of cross-attention as Q and [K; V]: what the two come from differs."""
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
    """The opposite of `cut`."""
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        before, query, part = name.partition("multihead_attn.q.")
        if query:
            others = tensors[f"{before}multihead_attn.kv.{part}"]
            whole[f"{before}multihead_attn.in_proj_{part}"] = torch.cat([tensor, others])
        elif "multihead_attn.kv." not in name:
            whole[name] = tensor
    return whole
