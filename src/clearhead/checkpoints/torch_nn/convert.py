"""Convert torch.nn's encoder and decoder to ours and back, with their weights.

For masks, use `masks.from_torch_nn(tgt_mask, tgt_key_padding_mask)` as mask and `masks.from_torch_nn(memory_mask,
memory_key_padding_mask)` as memory_mask. `masks.to_torch_nn` is the inverse.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast, overload

from torch import Tensor, nn
from torch.nn import functional

from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.checkpoints.torch_nn.parameters import DECODER_LAYER, DECODER_STACK, LAYER, STACK, join_qkv, split_qkv
from clearhead.layers.disentangled_attention import DisentangledAttention
from clearhead.layers.feedforward import Activation, GatedFeedForward
from clearhead.layers.norm import LayerNorm
from clearhead.layers.options import LayerOptions
from clearhead.layers.residual import PreNorm
from clearhead.stacks.decoder import Decoder, DecoderLayer
from clearhead.stacks.encoder import Encoder, EncoderLayer

Layer = EncoderLayer | DecoderLayer
Stack = Encoder | Decoder
TorchLayer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
TorchStack = nn.TransformerEncoder | nn.TransformerDecoder


class EncoderDecoder(NamedTuple):
    """The two stacks of an `nn.Transformer`; their inputs are embeddings.

    Equation: Decoder(Y, Encoder(X)), with the two masks of each
    """

    encoder: Encoder
    decoder: Decoder


@overload
def from_torch_nn(module: nn.TransformerEncoderLayer) -> EncoderLayer: ...
@overload
def from_torch_nn(module: nn.TransformerEncoder) -> Encoder: ...
@overload
def from_torch_nn(module: nn.TransformerDecoderLayer) -> DecoderLayer: ...
@overload
def from_torch_nn(module: nn.TransformerDecoder) -> Decoder: ...
@overload
def from_torch_nn(module: nn.Transformer) -> EncoderDecoder: ...
def from_torch_nn(module: TorchLayer | TorchStack | nn.Transformer) -> Layer | Stack | EncoderDecoder:
    """Return our module with the weights, options and training mode of a torch.nn module.

    Our modules are always batch first.

    Args:
        module: an `nn.Transformer`, its encoder or decoder, or one of their layers.

    Raises:
        ValueError: the activation is not ReLU, GELU or SiLU; the final norm is not a LayerNorm with weights; the layers
            of a stack, or the dropout rates or eps of a layer, differ.

    >>> from torch import nn; from clearhead.checkpoints.torch_nn.convert import from_torch_nn
    >>> type(from_torch_nn(nn.TransformerEncoderLayer(512, 8))).__name__
    'EncoderLayer'
    >>> encoder, decoder = from_torch_nn(nn.Transformer(64, 8, num_decoder_layers=2))
    >>> len(decoder.layers)
    2
    """
    ours: Layer | Stack
    if isinstance(module, nn.Transformer):
        return EncoderDecoder(from_torch_nn(module.encoder), from_torch_nn(module.decoder))
    if isinstance(module, TorchStack):
        ours = _our_stack(module)
    elif isinstance(module, TorchLayer):
        ours = _our_layer(module)
    else:
        raise ValueError(
            "expected an nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, or a layer of these; "
            f"got a {type(module).__name__}"
        )
    reference = next(module.parameters())
    ours.to(device=reference.device, dtype=reference.dtype)
    expected = {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()}
    tensors = split_qkv(module.state_dict())
    ours.load_state_dict(_parameter_names(ours).to_ours(tensors, expected, type(module).__name__))
    return ours.train(module.training)


@overload
def to_torch_nn(module: EncoderLayer) -> nn.TransformerEncoderLayer: ...
@overload
def to_torch_nn(module: Encoder) -> nn.TransformerEncoder: ...
@overload
def to_torch_nn(module: DecoderLayer) -> nn.TransformerDecoderLayer: ...
@overload
def to_torch_nn(module: Decoder) -> nn.TransformerDecoder: ...
@overload
def to_torch_nn(module: EncoderDecoder) -> nn.Transformer: ...
def to_torch_nn(module: Layer | Stack | EncoderDecoder) -> TorchLayer | TorchStack | nn.Transformer:
    """Return torch.nn's module (batch first) with the weights, options and training mode of ours.

    Args:
        module: an encoder, a decoder, one of their layers, or an `EncoderDecoder`.

    Raises:
        ValueError: torch.nn has no such module: rotary positions, gated feed-forwards, windows, relative biases,
            LayerDrop, another scale or head_dim, RMSNorm, a first layer without norm, different dropout rates; an
            encoder and a decoder of different widths.
    """
    if isinstance(module, EncoderDecoder):
        return _transformer(*module)
    theirs: TorchLayer | TorchStack = _torch_stack(module) if isinstance(module, Stack) else _torch_layer(module)
    _load_weights(theirs, module)
    return theirs


def _parameter_names(module: Layer | Stack) -> ParameterNames:
    if isinstance(module, Stack):
        return STACK if isinstance(module, Encoder) else DECODER_STACK
    return LAYER if isinstance(module, EncoderLayer) else DECODER_LAYER


def _our_layer(layer: TorchLayer) -> Layer:
    kind = EncoderLayer if isinstance(layer, nn.TransformerEncoderLayer) else DecoderLayer
    return kind(*_sizes(layer), **_options(layer))


def _our_stack(stack: TorchStack) -> Stack:
    layer_type = nn.TransformerEncoderLayer if isinstance(stack, nn.TransformerEncoder) else nn.TransformerDecoderLayer
    layers = [layer for layer in stack.layers if isinstance(layer, layer_type)]
    if not layers or len(layers) < len(stack.layers):
        raise ValueError(
            f"the layers of the {type(stack).__name__} must be {layer_type.__name__}s, at least one; got "
            f"{[type(layer).__name__ for layer in stack.layers]}"
        )
    first = layers[0]
    if any((_sizes(layer), _options(layer)) != (_sizes(first), _options(first)) for layer in layers):
        raise ValueError("the layers have different sizes or options; our stacks need equal layers")
    kind = Encoder if isinstance(stack, nn.TransformerEncoder) else Decoder
    ours = kind(*_sizes(first), len(layers), **_options(first), final_norm=stack.norm is not None)
    if stack.norm is not None:
        ours.norm = _final_norm(stack.norm)
    return ours


def _sizes(layer: TorchLayer) -> tuple[int, int, int, float]:
    return layer.linear1.in_features, layer.linear1.out_features, layer.self_attn.num_heads, layer.dropout.p


def _options(layer: TorchLayer) -> dict[str, Any]:
    drops = {layer.dropout.p, layer.dropout1.p, layer.dropout2.p}
    attention_drops, eps = {layer.self_attn.dropout}, {layer.norm1.eps, layer.norm2.eps}
    if isinstance(layer, nn.TransformerDecoderLayer):
        drops.add(layer.dropout3.p)
        attention_drops.add(layer.multihead_attn.dropout)
        eps.add(layer.norm3.eps)
    if max(len(drops), len(attention_drops), len(eps)) > 1:
        raise ValueError("the dropout rates or the eps of the norms differ within a layer; our layers have one of each")
    return {
        "norm_order": "pre" if layer.norm_first else "post",
        "options": LayerOptions(
            activation=_activation(layer.activation),
            attention_drop_prob=layer.self_attn.dropout,
            eps=layer.norm1.eps,
            bias=layer.linear1.bias is not None,
        ),
    }


def _final_norm(norm: nn.Module) -> LayerNorm:
    if not isinstance(norm, nn.LayerNorm) or not norm.elementwise_affine:
        raise ValueError(f"the final norm is {norm}; expected a LayerNorm with weights, or None")
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
    if isinstance(activation, partial) and activation.func is functional.gelu:
        return "gelu_tanh" if activation.keywords.get("approximate") == "tanh" else "gelu"
    raise ValueError(f"the activation is {activation}; expected ReLU, GELU or SiLU")


def _function(activation: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return an activation as a function.

    With a module, torch.nn's decoder uses ReLU when it copies a layer, and the fast path of its encoder uses the exact
    GELU for the approximate one.
    """
    if isinstance(activation, nn.GELU):
        return functional.gelu if activation.approximate == "none" else partial(functional.gelu, approximate="tanh")
    return functional.silu if isinstance(activation, nn.SiLU) else functional.relu


def _torch_layer(layer: Layer) -> TorchLayer:
    kind = nn.TransformerEncoderLayer if isinstance(layer, EncoderLayer) else nn.TransformerDecoderLayer
    unsupported = _unsupported_by_torch(layer)
    if unsupported:
        raise ValueError(f"torch.nn.{kind.__name__} cannot hold {', '.join(unsupported)}")
    theirs = kind(
        layer.feedforward.inner.in_features,
        layer.attention.num_heads,
        layer.feedforward.inner.out_features,
        layer.feedforward.dropout.p,
        activation=_function(layer.feedforward.activation),
        layer_norm_eps=cast(LayerNorm, layer.feedforward_residual.norm).eps,
        batch_first=True,
        norm_first=isinstance(layer.attention_residual, PreNorm),
        bias=layer.feedforward.inner.bias is not None,
    )
    theirs.self_attn.dropout = layer.attention.drop_prob
    if isinstance(theirs, nn.TransformerDecoderLayer):
        theirs.multihead_attn.dropout = cast(DecoderLayer, layer).cross_attention.drop_prob
    return theirs


def _unsupported_by_torch(layer: Layer) -> list[str]:
    """Return the features of a layer that torch.nn's layers do not have."""
    if isinstance(layer.attention, DisentangledAttention):
        return ["disentangled attention"]
    attentions, residuals = [layer.attention], [layer.attention_residual, layer.feedforward_residual]
    if isinstance(layer, DecoderLayer):
        attentions.append(cast(Any, layer.cross_attention))
        residuals.append(layer.cross_attention_residual)
    drops = {layer.feedforward.dropout.p, *(item.dropout.p for item in residuals)}
    biases = {module.bias is None for module in layer.modules() if isinstance(module, nn.Linear | LayerNorm)}
    present = {
        "rotary positions": layer.attention.rotary is not None,
        "a window": layer.attention.window is not None,
        "keys that heads share": layer.attention.num_kv_heads < layer.attention.num_heads,
        "a gated feed-forward": isinstance(layer.feedforward, GatedFeedForward),
        "a scale other than 1 / √d_k": any(item.scale is not None for item in attentions),
        "a head_dim other than d_model / num_heads": any(
            item.out.in_features != item.out.out_features for item in attentions
        ),
        "RMSNorm, or a sub-layer without its norm": not all(isinstance(item.norm, LayerNorm) for item in residuals),
        "a dropout inside the feed-forward that differs from the residuals'": len(drops) > 1,
        "biases in only some of its parts": len(biases) > 1,
    }
    return [feature for feature, is_present in present.items() if is_present]


def _torch_stack(stack: Stack) -> TorchStack:
    if stack.layer_drop or stack.relative_bias is not None:
        raise ValueError(f"torch.nn.Transformer{type(stack).__name__} cannot hold LayerDrop or relative biases")
    # convert every layer, since any may be unsupported; torch.nn copies the first one
    layer, *_ = [_torch_layer(cast(Layer, layer)) for layer in stack.layers]
    norm = None
    if stack.norm is not None:
        ours = cast(LayerNorm, stack.norm)
        norm = nn.LayerNorm(ours.parameters_shape, ours.eps, bias=ours.bias is not None)
    if isinstance(layer, nn.TransformerEncoderLayer):
        return nn.TransformerEncoder(layer, len(stack.layers), norm=norm, enable_nested_tensor=False)
    return nn.TransformerDecoder(layer, len(stack.layers), norm=norm)


def _transformer(encoder: Encoder, decoder: Decoder) -> nn.Transformer:
    first, second = _torch_stack(encoder), _torch_stack(decoder)
    width, other = (cast(TorchLayer, stack.layers[0]).linear1.in_features for stack in (first, second))
    if width != other:
        raise ValueError(f"expected an encoder and a decoder of the same d_model; got {width} and {other}")
    theirs = nn.Transformer(width, encoder.num_heads, custom_encoder=first, custom_decoder=second, batch_first=True)
    # load the weights last: nn.Transformer initializes the stacks again
    _load_weights(first, encoder)
    _load_weights(second, decoder)
    theirs.training = encoder.training and decoder.training
    return theirs


def _load_weights(theirs: TorchLayer | TorchStack, ours: Layer | Stack) -> None:
    """Copy our weights, dtype, device and training mode to a module of torch.nn."""
    reference = next(ours.parameters())
    theirs.to(device=reference.device, dtype=reference.dtype)
    theirs.load_state_dict(join_qkv(_parameter_names(ours).to_foreign(ours.state_dict())))
    theirs.train(ours.training)
