"""Operations of this library's modules: the name, equation and dimensions of their results."""

from dataclasses import replace

from torch import nn

from clearhead.equations import embedding, feedforward, norm, positions, residual
from clearhead.inspection.trace.records import Operation
from clearhead.layers.attention import LinearPositionBias, RelativePositionBias
from clearhead.layers.disentangled_attention import ConvolutionalResidual, DistanceEmbedding
from clearhead.layers.embedding import (
    Embedding,
    LearnedPositionalEncoding,
    OutputProjection,
    PositionalEncoding,
    TokenTypeEmbedding,
)
from clearhead.layers.feedforward import GatedFeedForward, PositionwiseFeedForward
from clearhead.layers.norm import LayerNorm, RMSNorm
from clearhead.layers.residual import PostNorm, PreNorm
from clearhead.models.encoder import Pooler

TOKENS = Operation("token embedding", embedding.embed, "B L D")
ADD = Operation("add", residual.residual_add, "B L D")
GATE = Operation("gate", feedforward.gate, "B L F")
SCALE_EMBEDDINGS = Operation("scale", embedding.scale_embeddings, "B L D")
SCALE_HIDDEN = Operation("scale", embedding.scale_hidden, "B L D")

_DROPOUT = Operation("dropout", residual.dropout, "B L D")
_FEED_FORWARD = {
    "inner": Operation("linear", feedforward.expand, "B L F"),
    "dropout": replace(_DROPOUT, dimensions="B L F"),
    "out": Operation("linear", feedforward.contract, "B L D"),
}
_BY_PARENT: dict[type[nn.Module], dict[str, Operation]] = {
    PositionwiseFeedForward: _FEED_FORWARD,
    GatedFeedForward: _FEED_FORWARD | {"inner": replace(_FEED_FORWARD["inner"], dimensions="B L 2F")},
    PostNorm: {"dropout": _DROPOUT},
    PreNorm: {"dropout": _DROPOUT},
    DistanceEmbedding: {
        "norm": Operation("layer norm", norm.layer_norm, "R D"),
        "dropout": replace(_DROPOUT, dimensions="R D"),
    },
    ConvolutionalResidual: {
        "conv": Operation("convolution", ConvolutionalResidual, "B D L"),
        "dropout": _DROPOUT,
        "norm": Operation("layer norm", norm.layer_norm, "B L D"),
    },
    Embedding: {
        "dropout": _DROPOUT,
        "projection": Operation("linear", embedding.project_embeddings, "B L D"),
    },
}
_BY_TYPE: dict[type[nn.Module], Operation] = {
    PositionalEncoding: Operation("positions", positions.sinusoids, "B L D"),
    LearnedPositionalEncoding: Operation("positions", positions.add_positions, "B L D"),
    TokenTypeEmbedding: Operation("token types", embedding.add_token_types, "B L D"),
    OutputProjection: Operation("logits", embedding.unembed, "B L V"),
    LayerNorm: Operation("layer norm", norm.layer_norm, "B L D"),
    RMSNorm: Operation("RMS norm", norm.rms_norm, "B L D"),
    Pooler: Operation("pooler", Pooler, "B D"),
    LinearPositionBias: Operation("linear bias", positions.linear_biases, "B H Lq Lk"),
    RelativePositionBias: Operation("relative bias", RelativePositionBias, "B H Lq Lk"),
    nn.ReLU: Operation("ReLU", feedforward.relu, "B L F"),
    nn.GELU: Operation("GELU", feedforward.gelu, "B L F"),
    nn.SiLU: Operation("SiLU", feedforward.silu, "B L F"),
}


def in_embedding(operation: Operation, parent: Embedding) -> Operation:
    """Return an operation of an embedding, with E for its width if a projection to D follows."""
    if parent.projection is None:
        return operation
    return replace(operation, dimensions=operation.dimensions.replace("D", "E"))


def operation_of(parent: nn.Module | None, name: str, module: nn.Module) -> Operation | None:
    """Return the operation of a module, or None if its hooks record other steps or none.

    Args:
        parent: the parent of the module.
        name: name of the module in its parent.
        module: the module.
    """
    by_parent = _BY_PARENT.get(type(parent), {}).get(name) if parent is not None else None
    operation = by_parent or _BY_TYPE.get(type(module))
    if operation is None:
        return None
    if isinstance(parent, ConvolutionalResidual) and name == "activation":
        operation = replace(operation, dimensions="B L D")
    if isinstance(parent, Embedding) and name != "projection":
        operation = in_embedding(operation, parent)
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        return replace(operation, name="GELU (tanh)", source=feedforward.gelu_tanh)
    if isinstance(module, PositionalEncoding) and module.layout != "interleaved":
        return replace(operation, source=positions.concatenated_sinusoids)
    if isinstance(module, RelativePositionBias) and not module.bidirectional:
        return replace(operation, name="relative bias, one way")
    return operation
