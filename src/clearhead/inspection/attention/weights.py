"""Attention weights of one layer in one call."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

Part = Literal["encoder", "decoder", "cross"]
"""Self-attention of the encoder or the decoder, or cross-attention."""


@dataclass(frozen=True)
class AttentionLayer:
    """An attention module of a model.

    Args:
        path: path in the model, such as "encoder.layers.3.attention".
        part: "encoder" or "decoder" for self-attention, "cross" for cross-attention.
        layer: index of its layer in the stack.
        num_heads: number of heads.
        turn, turns: this layer is the turn-th of several layers with the same module, from 0 (ALBERT).
    """

    path: str
    part: Part
    layer: int
    num_heads: int
    turn: int = 0
    turns: int = 1


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of one layer in one call.

    Args:
        path, part, layer: as in `AttentionLayer`.
        heads: indices of the recorded heads.
        call: number of earlier recorded calls of this attention, such as the step of a generation.
        values: (B, heads, L, M); each row sums to 1, or is zeros for a fully masked query.
        lengths: lengths of packed texts; each text is one row here, padded with zeros. () without packing.
    """

    path: str
    part: Part
    layer: int
    heads: tuple[int, ...]
    call: int
    values: Float[Tensor, "B H L M"]
    lengths: tuple[int, ...] = ()
