"""Quantize a model's linear layers to 8 bits."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead.kernels.native import library
from clearhead.layers.embedding import OutputProjection
from clearhead.runtime.int8.calibration import InputStatistics, record_inputs
from clearhead.runtime.int8.gptq import QuantizedWeight, quantize_weight
from clearhead.stacks.decoder import Decoder
from clearhead.stacks.encoder import Encoder


def quantize_model(model: nn.Module, calibrate: Callable[[], object]) -> dict[int, QuantizedWeight]:
    """Return the 8-bit weights of a model's stacks and its output projection, by the `id` of their layer.

    Args:
        model: the model in float32, which is not modified.
        calibrate: runs the model on typical texts.
    """
    modules = [(module, quantized_shape(module)[1]) for module in quantizable(model)]
    statistics = record_inputs(modules, calibrate)
    with torch.inference_mode():
        return {id(module): _quantize(module, statistics[id(module)]) for module, _ in modules}


def quantizable(model: nn.Module) -> list[nn.Module]:
    """Return the linear layers of stacks and the output projection whose widths the kernels support."""
    stacks = [module for module in model.modules() if isinstance(module, Encoder | Decoder)]
    linears = [module for stack in stacks for module in stack.modules() if type(module) is nn.Linear]
    outputs = [module for module in model.modules() if isinstance(module, OutputProjection)]
    multiple = library.MULTIPLE
    fitting: list[nn.Module] = [
        linear for linear in linears if not linear.in_features % multiple and not linear.out_features % multiple
    ]
    return fitting + [output for output in outputs if not quantized_shape(output)[1] % multiple]


def quantized_shape(module: nn.Module) -> tuple[int, int]:
    """Return the shape (N, K) of the codes of a layer; an output projection has rows up to a multiple of 16."""
    if isinstance(module, OutputProjection):
        tokens, width = module.tokens.weight.shape
        return tokens + -tokens % library.MULTIPLE, width
    assert isinstance(module, nn.Linear)
    return module.out_features, module.in_features


def _quantize(module: nn.Module, statistics: InputStatistics) -> QuantizedWeight:
    weight: Tensor
    if isinstance(module, OutputProjection):
        tokens = module.tokens.weight.detach()
        weight = nn.functional.pad(tokens, (0, 0, 0, quantized_shape(module)[0] - len(tokens)))
    else:
        assert isinstance(module, nn.Linear)
        weight = module.weight.detach()
    return quantize_weight(weight, statistics.hessian_KK / max(statistics.rows, 1), statistics.outliers())
