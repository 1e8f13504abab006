"""Replace the linear layers of a model by 8-bit ones."""

import copy
import functools
from typing import cast

import torch
from torch import nn

from clearhead.kernels.native import library
from clearhead.layers.embedding import OutputProjection
from clearhead.layers.feedforward import PositionwiseFeedForward
from clearhead.runtime.converters.prepacked_linear import PrepackedConverter
from clearhead.runtime.int8.gptq import QuantizedWeight
from clearhead.runtime.int8.layers import (
    OFFSETS,
    Int8EncoderLayer,
    Int8Linear,
    Int8OutputProjection,
    activation_name,
    can_fuse,
)
from clearhead.runtime.int8.quantize import quantizable
from clearhead.stacks.encoder import Encoder, EncoderLayer


def why_no_int8(model: nn.Module | None, device: torch.device) -> str | None:
    """Return why a model cannot run in 8 bits on a device, or None if it can."""
    if device.type != "cpu":
        return f"its kernels run on CPUs, not on {device.type}"
    if library.isa() is None:
        return library.why_unavailable()
    if model is not None and not quantizable(model):
        return f"the widths of this model's layers are not multiples of {library.MULTIPLE}"
    return None


class Int8Converter:
    """Converter of linear layers, and of whole encoder layers, to 8 bits.

    Args:
        weights: the quantized weights by the `id` of their layer.
    """

    def __init__(self, weights: dict[int, QuantizedWeight]) -> None:
        self.weights = weights

    def supports(self, device: torch.device) -> bool:
        """Return whether the compiled kernels run on a device."""
        return why_no_int8(None, device) is None

    def convert(self, module: nn.Module, *, small_batch: bool = False) -> dict[int, nn.Module]:
        """Return the replacement of each layer of a module, keyed by the layer's `id`.

        Layers whose widths are not multiples of 16 stay in float32.

        Args:
            module: a stack or an output projection, which is not modified.
            small_batch: whether it runs on small batches, as a decoder does.
        """
        if isinstance(module, OutputProjection) and id(module) in self.weights:
            return {id(module): Int8OutputProjection(module, self.weights[id(module)])}
        replacements = _float32_converter().convert(module, small_batch=small_batch)
        for layer in module.modules():
            if type(layer) is nn.Linear and id(layer) in self.weights:
                replacements[id(layer)] = Int8Linear(layer, self.weights[id(layer)])
        for layer in module.modules():
            if isinstance(layer, PositionwiseFeedForward):
                replacements |= self._feedforward(layer)
        if isinstance(module, Encoder) and module.relative_bias is None and module.distances is None:
            for layer in module.layers:
                unfused = _with_replacements(layer, replacements)
                if can_fuse(unfused):
                    replacements[id(layer)] = Int8EncoderLayer(unfused)
        return replacements

    def _feedforward(self, layer: PositionwiseFeedForward) -> dict[int, nn.Module]:
        """Return the replacements of both linear layers; the activation is computed in the first."""
        name = activation_name(layer.activation)
        if name is None or any(id(linear) not in self.weights for linear in (layer.inner, layer.out)):
            return {}
        return {
            id(layer.inner): Int8Linear(layer.inner, self.weights[id(layer.inner)], name),
            id(layer.activation): nn.Identity(),
            id(layer.out): Int8Linear(layer.out, self.weights[id(layer.out)], offset=OFFSETS[name]),
        }


def _with_replacements(layer: nn.Module, replacements: dict[int, nn.Module]) -> EncoderLayer:
    """Return a copy of a layer with some modules replaced; it shares the parameters of the others."""
    shared = {id(parameter): parameter for parameter in layer.parameters()}
    return cast(EncoderLayer, copy.deepcopy(layer, {**shared, **replacements}))


@functools.cache
def _float32_converter() -> PrepackedConverter:
    return PrepackedConverter(torch.float32)
