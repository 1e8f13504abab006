"""The modules of this library, and what their results are called."""

from dataclasses import replace

from torch import nn

from clearhead.equations import embedding, feedforward, norm, positions
from clearhead.layers.attention import RelativeBias
from clearhead.layers.embedding import (
    Embedding,
    LearnedPositionalEncoding,
    PositionalEncoding,
    TokenTypes,
    Unembedding,
)
from clearhead.layers.feedforward import GatedFeedForward, PositionwiseFeedForward
from clearhead.layers.norm import LayerNorm, RMSNorm
from clearhead.layers.residual import PostNorm, PreNorm
from clearhead.models.encoder import Pooler
from clearhead.see.steps import Kind

TOKENS = Kind("token embedding", embedding.embed, "B L D")
ADD = Kind("add", norm.add, "B L D")
GATE = Kind("gate", feedforward.gate, "B L F")
SCALE = Kind("scale", embedding.scaled, "B L D")
SCALE_DOWN = Kind("scale", embedding.scaled_down, "B L D")

_DROPOUT = Kind("dropout", norm.dropout, "B L D")
_INNER = {
    "inner": Kind("linear", feedforward.expand, "B L F"),
    "dropout": replace(_DROPOUT, names="B L F"),
    "out": Kind("linear", feedforward.contract, "B L D"),
}
_PARTS: dict[type[nn.Module], dict[str, Kind]] = {
    PositionwiseFeedForward: _INNER,
    GatedFeedForward: _INNER | {"inner": replace(_INNER["inner"], names="B L 2F")},
    PostNorm: {"dropout": _DROPOUT},
    PreNorm: {"dropout": _DROPOUT},
    Embedding: {"dropout": _DROPOUT},
}
_WHOLE: dict[type[nn.Module], Kind] = {
    PositionalEncoding: Kind("positions", positions.sinusoids, "B L D"),
    LearnedPositionalEncoding: Kind("positions", positions.add_positions, "B L D"),
    TokenTypes: Kind("token types", embedding.add_token_types, "B L D"),
    Unembedding: Kind("logits", embedding.unembed, "B L V"),
    LayerNorm: Kind("layer norm", norm.layer_norm, "B L D"),
    RMSNorm: Kind("RMS norm", norm.rms_norm, "B L D"),
    Pooler: Kind("pooler", Pooler, "B D"),
    RelativeBias: Kind("relative bias", RelativeBias, "B H Lq Lk"),
    nn.ReLU: Kind("ReLU", feedforward.relu, "B L F"),
    nn.GELU: Kind("GELU", feedforward.gelu, "B L F"),
    nn.SiLU: Kind("SiLU", feedforward.silu, "B L F"),
}


def kind_of(parent: nn.Module | None, name: str, module: nn.Module) -> Kind | None:
    """What a module's result is called; None for one that is told otherwise, or not at all."""
    part = _PARTS.get(type(parent), {}).get(name) if parent is not None else None
    kind = part or _WHOLE.get(type(module))
    if kind is None:
        return None
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        return replace(kind, operation="GELU (tanh)", states=feedforward.gelu_tanh)
    if isinstance(module, PositionalEncoding) and module.layout != "interleaved":
        return replace(kind, states=positions.concatenated_sinusoids)
    if isinstance(module, RelativeBias) and module.one_way:
        return replace(kind, operation="relative bias, one way")
    return kind
