"""torch.nn's encoder and decoder and ours: weights both ways.

Masks: `masks.from_torch_nn(tgt_mask, tgt_key_padding_mask)` is our mask, `masks.from_torch_nn(memory_mask,
memory_key_padding_mask)` our memory_mask; `masks.to_torch_nn` gives each pair back.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast, overload

from torch import Tensor, nn
from torch.nn import functional

from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.checkpoints.torch_nn.parameters import DECODER_LAYER, DECODER_STACK, LAYER, STACK, join_qkv, split_qkv
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
    """What an `nn.Transformer` holds: two stacks over inputs that are embedded already.

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
    """Our module with the weights, the options and the mode of torch.nn's. Ours is batch first, whatever that was.

    Raises:
        ValueError: an activation other than ReLU, GELU and SiLU, a final norm that is no LayerNorm with weights,
            layers that differ, dropouts or eps that differ within a layer.

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
        ours = _stack_like(module)
    elif isinstance(module, TorchLayer):
        ours = _layer_like(module)
    else:
        raise ValueError(
            "a Transformer of torch.nn, its TransformerEncoder or TransformerDecoder, or a layer of these is wanted; "
            f"got a {type(module).__name__}"
        )
    reference = next(module.parameters())
    ours.to(device=reference.device, dtype=reference.dtype)
    wanted = {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()}
    ours.load_state_dict(_table(ours).to_ours(split_qkv(module.state_dict()), wanted, type(module).__name__))
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
    """torch.nn's module (batch first) with the weights, the options and the mode of ours.

    Raises:
        ValueError: what torch.nn's modules cannot hold: rotary positions, gated feed-forwards, windows, relative
            biases, LayerDrop, another scale or head_dim, RMSNorm, a first layer without norm, two dropouts; an
            encoder and a decoder of different widths.
    """
    if isinstance(module, EncoderDecoder):
        return _transformer(*module)
    theirs: TorchLayer | TorchStack = _torch_stack(module) if isinstance(module, Stack) else _torch_layer(module)
    _fill(theirs, module)
    return theirs


def _table(module: Layer | Stack) -> ParameterNames:
    if isinstance(module, Stack):
        return STACK if isinstance(module, Encoder) else DECODER_STACK
    return LAYER if isinstance(module, EncoderLayer) else DECODER_LAYER


def _layer_like(layer: TorchLayer) -> Layer:
    kind = EncoderLayer if isinstance(layer, nn.TransformerEncoderLayer) else DecoderLayer
    return kind(*_sizes(layer), **_options(layer))


def _stack_like(stack: TorchStack) -> Stack:
    wanted = nn.TransformerEncoderLayer if isinstance(stack, nn.TransformerEncoder) else nn.TransformerDecoderLayer
    layers = [layer for layer in stack.layers if isinstance(layer, wanted)]
    if not layers or len(layers) < len(stack.layers):
        raise ValueError(
            f"the {type(stack).__name__} has no layers, or some that are no {wanted.__name__}: "
            f"{[type(layer).__name__ for layer in stack.layers]}"
        )
    first = layers[0]
    if any((_sizes(layer), _options(layer)) != (_sizes(first), _options(first)) for layer in layers):
        raise ValueError("the layers have different sizes or options; the layers of our stacks are alike")
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
        raise ValueError("the dropouts, or the norms' eps, differ within a layer; our layers have one of each")
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
    if isinstance(activation, partial) and activation.func is functional.gelu:
        return "gelu_tanh" if activation.keywords.get("approximate") == "tanh" else "gelu"
    raise ValueError(f"the activation is {activation}; ReLU or GELU is wanted, or SiLU")


def _function(activation: nn.Module) -> Callable[[Tensor], Tensor]:
    """A function, for torch.nn's decoder takes ReLU instead of a module when it copies a layer, and the fast path of
    its encoder takes the module of the approximate GELU for the exact one."""
    if isinstance(activation, nn.GELU):
        return functional.gelu if activation.approximate == "none" else partial(functional.gelu, approximate="tanh")
    return functional.silu if isinstance(activation, nn.SiLU) else functional.relu


def _torch_layer(layer: Layer) -> TorchLayer:
    kind = nn.TransformerEncoderLayer if isinstance(layer, EncoderLayer) else nn.TransformerDecoderLayer
    strange = _unknown_to_torch(layer)
    if strange:
        raise ValueError(f"torch.nn.{kind.__name__} cannot hold {', '.join(strange)}")
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


def _unknown_to_torch(layer: Layer) -> list[str]:
    """What a layer has and torch.nn's has not."""
    attentions, residuals = [layer.attention], [layer.attention_residual, layer.feedforward_residual]
    if isinstance(layer, DecoderLayer):
        attentions.append(cast(Any, layer.cross_attention))
        residuals.append(layer.cross_attention_residual)
    drops = {layer.feedforward.dropout.p, *(each.dropout.p for each in residuals)}
    present = {
        "rotary positions": layer.attention.rotary is not None,
        "a window": layer.attention.window is not None,
        "a gated feed-forward": isinstance(layer.feedforward, GatedFeedForward),
        "a scale other than 1 / √d_k": any(each.scale is not None for each in attentions),
        "a head_dim other than d_model / num_heads": any(
            each.out.in_features != each.out.out_features for each in attentions
        ),
        "RMSNorm, or a sub-layer without its norm": not all(isinstance(each.norm, LayerNorm) for each in residuals),
        "a dropout inside the feed-forward that differs from the residuals'": len(drops) > 1,
    }
    return [what for what, here in present.items() if here]


def _torch_stack(stack: Stack) -> TorchStack:
    if stack.layer_drop or stack.relative_bias is not None:
        raise ValueError(f"torch.nn.Transformer{type(stack).__name__} cannot hold LayerDrop or relative biases")
    # every layer is looked at, for any may have what torch.nn's cannot hold; torch.nn copies the first
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
        raise ValueError(f"an encoder and a decoder of the same d_model are wanted; got {width} and {other}")
    theirs = nn.Transformer(width, encoder.num_heads, custom_encoder=first, custom_decoder=second, batch_first=True)
    # filled afterwards, for nn.Transformer draws the weights of what it is given anew
    _fill(first, encoder)
    _fill(second, decoder)
    theirs.training = encoder.training and decoder.training
    return theirs


def _fill(theirs: TorchLayer | TorchStack, ours: Layer | Stack) -> None:
    """Gives torch.nn's module the weights, their kind and place, and the mode of ours."""
    reference = next(ours.parameters())
    theirs.to(device=reference.device, dtype=reference.dtype)
    theirs.load_state_dict(join_qkv(_table(ours).to_foreign(ours.state_dict())))
    theirs.train(ours.training)
