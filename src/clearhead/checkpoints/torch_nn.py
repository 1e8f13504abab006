"""torch.nn's encoder and ours: weights both ways. Masks: `masks.from_torch_nn` and `masks.to_torch_nn`."""

from typing import Any, cast, overload

from torch import nn
from torch.nn import functional

from clearhead.checkpoints.names import NameTable
from clearhead.layers.feedforward import Activation
from clearhead.layers.norm import LayerNorm
from clearhead.layers.residual import PreNorm
from clearhead.stacks.encoder import Encoder, EncoderLayer

_LAYER: dict[str | tuple[str, ...], str] = {
    "self_attn.in_proj_weight": "attention.qkv.weight",
    "self_attn.in_proj_bias": "attention.qkv.bias",
    "self_attn.out_proj.weight": "attention.out.weight",
    "self_attn.out_proj.bias": "attention.out.bias",
    "linear1.weight": "feedforward.inner.weight",
    "linear1.bias": "feedforward.inner.bias",
    "linear2.weight": "feedforward.out.weight",
    "linear2.bias": "feedforward.out.bias",
    "norm1.weight": "attention_residual.norm.weight",
    "norm1.bias": "attention_residual.norm.bias",
    "norm2.weight": "feedforward_residual.norm.weight",
    "norm2.bias": "feedforward_residual.norm.bias",
}
LAYER = NameTable(rows=_LAYER)
_STACK: dict[str | tuple[str, ...], str] = {
    **{f"layers.{{}}.{foreign}": f"layers.{{}}.{ours}" for foreign, ours in _LAYER.items()},
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
}
STACK = NameTable(rows=_STACK)


@overload
def from_torch_nn(module: nn.TransformerEncoderLayer) -> EncoderLayer: ...
@overload
def from_torch_nn(module: nn.TransformerEncoder) -> Encoder: ...
def from_torch_nn(
    module: nn.TransformerEncoderLayer | nn.TransformerEncoder,
) -> EncoderLayer | Encoder:
    """Our module with the weights, the options and the mode of torch.nn's. Ours is batch first, whatever that was.

    Raises:
        ValueError: an activation other than ReLU, GELU and SiLU, a final norm that is no LayerNorm with weights, layers that
            differ, dropouts or eps that differ within a layer.

    >>> from torch import nn; from clearhead.checkpoints.torch_nn import from_torch_nn
    >>> type(from_torch_nn(nn.TransformerEncoderLayer(512, 8))).__name__
    'EncoderLayer'
    """
    ours: EncoderLayer | Encoder
    if isinstance(module, nn.TransformerEncoder):
        layers = [cast(nn.TransformerEncoderLayer, layer) for layer in module.layers]
        if not layers:
            raise ValueError("the TransformerEncoder has no layers")
        first, table = layers[0], STACK
        if any((_sizes(layer), _options(layer)) != (_sizes(first), _options(first)) for layer in layers):
            raise ValueError("the layers have different sizes or options; an Encoder's layers are alike")
        ours = Encoder(*_sizes(first), len(layers), **_options(first), final_norm=module.norm is not None)
        if module.norm is not None:
            ours.norm = _final_norm(module.norm)
    elif isinstance(module, nn.TransformerEncoderLayer):
        first, table = module, LAYER
        ours = EncoderLayer(*_sizes(module), **_options(module))
    else:
        raise ValueError(f"a TransformerEncoder or its layer is wanted; got a {type(module).__name__}")
    wanted = {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()}
    reference = first.linear1.weight
    ours.to(device=reference.device, dtype=reference.dtype)
    ours.load_state_dict(table.to_ours(module.state_dict(), wanted, type(module).__name__))
    return ours.train(module.training)


@overload
def to_torch_nn(module: EncoderLayer) -> nn.TransformerEncoderLayer: ...
@overload
def to_torch_nn(module: Encoder) -> nn.TransformerEncoder: ...
def to_torch_nn(module: EncoderLayer | Encoder) -> nn.TransformerEncoderLayer | nn.TransformerEncoder:
    """torch.nn's module (batch first) with the weights, the options and the mode of ours.

    Raises:
        ValueError: what torch.nn's encoder cannot hold: rotary positions, gated feed-forwards, windows, relative
            biases, LayerDrop, a first layer without norm.
    """
    theirs: nn.TransformerEncoderLayer | nn.TransformerEncoder
    if isinstance(module, Encoder):
        if module.layer_drop or module.relative_bias is not None:
            raise ValueError("torch.nn.TransformerEncoder knows neither LayerDrop nor relative biases")
        # every layer is looked at, for any may have what torch.nn's cannot hold; torch.nn copies the first
        layer, *_ = [_torch_layer(cast(EncoderLayer, layer)) for layer in module.layers]
        norm = None
        if module.norm is not None:
            norm = nn.LayerNorm(module.norm.parameters_shape, module.norm.eps, bias=module.norm.bias is not None)
        theirs = nn.TransformerEncoder(layer, len(module.layers), norm=norm, enable_nested_tensor=False)
        table = STACK
    else:
        theirs, table = _torch_layer(module), LAYER
    reference = next(module.parameters())
    theirs.to(device=reference.device, dtype=reference.dtype)
    theirs.load_state_dict(table.to_foreign(module.state_dict()))
    return theirs.train(module.training)


def _sizes(layer: nn.TransformerEncoderLayer) -> tuple[int, int, int, float]:
    return layer.linear1.in_features, layer.linear1.out_features, layer.self_attn.num_heads, layer.dropout.p


def _options(layer: nn.TransformerEncoderLayer) -> dict[str, Any]:
    if len({layer.dropout.p, layer.dropout1.p, layer.dropout2.p}) > 1 or layer.norm1.eps != layer.norm2.eps:
        raise ValueError("the dropouts, or the norms' eps, differ within a layer; an EncoderLayer has one of each")
    return {
        "norm_order": "pre" if layer.norm_first else "post",
        "activation": _activation(layer.activation),
        "attention_drop_prob": layer.self_attn.dropout,
        "eps": layer.norm1.eps,
        "bias": layer.linear1.bias is not None,
    }


def _final_norm(norm: nn.Module) -> LayerNorm:
    if not isinstance(norm, nn.LayerNorm) or not norm.elementwise_affine:
        raise ValueError(f"the final norm is {norm}; a LayerNorm with weights, or None, is wanted")
    return LayerNorm(norm.normalized_shape, norm.eps, bias=norm.bias is not None)


def _activation(activation: object) -> Activation:
    if activation is functional.relu or isinstance(activation, nn.ReLU):
        return "relu"
    if activation is functional.silu or isinstance(activation, nn.SiLU):
        return "silu"
    if activation is functional.gelu:
        return "gelu"
    if isinstance(activation, nn.GELU):
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    raise ValueError(f"the activation is {activation}; ReLU or GELU is wanted, or SiLU")


def _torch_layer(layer: EncoderLayer) -> nn.TransformerEncoderLayer:
    activation = layer.feedforward.activation
    gated = layer.feedforward.inner.out_features != layer.feedforward.out.in_features
    if layer.attention.rotary is not None or gated:
        raise ValueError("torch.nn.TransformerEncoderLayer knows neither rotary positions nor gated feed-forwards")
    if layer.attention.window is not None or not isinstance(layer.attention_residual.norm, LayerNorm):
        raise ValueError("torch.nn.TransformerEncoderLayer knows neither windows nor a layer without its norm")
    if layer.attention.scale is not None or layer.attention.out.in_features != layer.attention.out.out_features:
        raise ValueError("torch.nn.TransformerEncoderLayer knows neither another scale of the scores nor a head_dim")
    if layer.feedforward.dropout.p != layer.feedforward_residual.dropout.p:
        raise ValueError("torch.nn.TransformerEncoderLayer knows neither a feed-forward's nor a branch's own dropout")
    theirs = nn.TransformerEncoderLayer(
        layer.feedforward.inner.in_features,
        layer.attention.num_heads,
        layer.feedforward.inner.out_features,
        layer.feedforward.dropout.p,
        activation=cast(Any, functional.relu if isinstance(activation, nn.ReLU) else activation),
        layer_norm_eps=cast(LayerNorm, layer.feedforward_residual.norm).eps,
        batch_first=True,
        norm_first=isinstance(layer.attention_residual, PreNorm),
        bias=layer.feedforward.inner.bias is not None,
    )
    if getattr(activation, "approximate", "none") == "tanh":
        theirs.activation_relu_or_gelu = 0  # torch.nn's fast path takes every GELU for the exact one
    theirs.self_attn.dropout = layer.attention.drop_prob
    return theirs
