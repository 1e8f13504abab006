"""Float masks of a batch, which are added to the attention scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clearhead.equations import masks

_ATTENTIONS = {
    "src": "encoder's self-attention",
    "tgt": "decoder's self-attention",
    "target": "decoder's self-attention",
    "decoder": "decoder's self-attention",
    "memory": "cross-attention",
}
"""The attention of a mask by the first letters of its name; a mask of another name may be used in any."""
_CAUSAL_NAMES = ("tgt_mask", "target_mask", "attn_mask", "mask")


@dataclass(frozen=True)
class FloatMask:
    """A float mask.

    Args:
        name: name of the mask, such as "src_mask".
        bias: the values that are added to the scores.
        attention: name of its attention; "" if it may be used in any.
        may_be_causal: whether it has the name and shape of a causal mask.
    """

    name: str
    bias: Tensor
    attention: str = ""
    may_be_causal: bool = False


def float_masks(batch: Mapping[str, Any], queries: int) -> list[FloatMask]:
    """Return the float masks of a batch.

    Args:
        batch: the arguments of the model by name.
        queries: length of the target, or of the source without a target.
    """
    result = []
    for name, value in batch.items():
        bias = value.float_bias() if isinstance(value, masks.Mask) else value
        if "mask" not in name or not isinstance(bias, Tensor) or not bias.is_floating_point():
            continue
        if "attention_mask" in name and bias.ndim <= 2:  # transformers accepts (B, M) of 0.0 and 1.0
            continue
        attention = next((part for prefix, part in _ATTENTIONS.items() if name.startswith(prefix)), "")
        causal = name in _CAUSAL_NAMES and bias.shape[-2:] == (queries, queries)
        result.append(FloatMask(name, bias, attention, causal))
    return result
