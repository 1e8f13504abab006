"""Copies of a model for inference: in another precision, on another device, or with faster layers."""

import copy
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from clearhead.kernels.linear import version
from clearhead.layers.embedding import OutputProjection
from clearhead.runtime.compile import compile_layers
from clearhead.runtime.int8.files import Int8Source
from clearhead.runtime.precision import FLOAT32, Precision, choose_precision
from clearhead.stacks.decoder import Decoder
from clearhead.stacks.encoder import Encoder

Model = TypeVar("Model", bound=nn.Module)

_copies: WeakKeyDictionary[nn.Module, WeakSet[nn.Module]] = WeakKeyDictionary()


def inference_copy(
    model: Model,
    precision: str | Precision,
    device: torch.device,
    int8: Int8Source | None = None,
    *,
    compile: bool = False,
) -> Model:
    """Return a copy of a model for inference, or the model itself if nothing would change.

    Only the encoder and decoder layers change their dtype. Embeddings and heads stay in float32: lookups and small
    matmuls gain nothing from fewer bits. On the model's own device the copy shares every tensor that stays the same.

    The original is not modified, so that a later save loses no precision. The copy follows in-place changes of the
    original, by an optimizer step or `load_state_dict`, if it is on the same device and not compiled. Make a new copy
    after parameters were replaced.

    Args:
        model: the model, in float32.
        precision: a precision or its name; "auto" chooses for the device.
        device: the device of the copy.
        int8: source of the 8-bit weights, for precision "int8".
        compile: whether to compile the encoder layers.

    Raises:
        ValueError: an unknown precision, a replacement layer of the precision that has a parameter of the model, or
            "int8" without 8-bit weights. With `compile`, no C++ compiler, or a precision that cannot be compiled.
    """
    if isinstance(precision, str):
        precision = choose_precision(precision, device, compile=compile)
    if compile and not precision.is_compilable:
        raise ValueError(f"{precision.name} has its own kernels and cannot be compiled; omit one of the two")
    if precision.convert_weights is not None:
        if int8 is None:
            raise ValueError(
                f"precision {precision.name!r} needs 8-bit weights, or texts to make them from; load the model with a "
                "pipeline, such as TextEncoder"
            )
        precision = precision.with_weights(int8.weights(model))
    same_device = next(model.parameters()).device == device
    converts = precision.converter is not None and precision.converter.supports(device)
    unchanged = same_device and precision.dtype == FLOAT32.dtype
    if unchanged and not converts and not compile:
        return model
    stacks = [module for module in model.modules() if isinstance(module, Encoder | Decoder)]
    # the memo of `copy.deepcopy` holds the tensors that are shared and the modules that are replaced
    memo: dict[int, Any] = _shared_tensors(model, stacks, all_of_them=unchanged) if same_device else {}
    if converts:
        for module in model.modules():
            if isinstance(module, OutputProjection):
                memo |= _replacements(module, precision)
    for stack in stacks:
        stack_memo = memo | (_replacements(stack, precision) if converts else {})
        copied = copy.deepcopy(stack, stack_memo).to(device=device, dtype=precision.dtype)
        if same_device and not unchanged:
            _follow_changes(copied, stack)
        if compile and isinstance(copied, Encoder) and isinstance(stack, Encoder):
            compile_layers(copied, copy.deepcopy(stack, dict(memo)).to(device=device, dtype=precision.dtype))
        memo[id(stack)] = copied
    copied_model = copy.deepcopy(model, memo).to(device)
    _copies.setdefault(model, WeakSet()).add(copied_model)
    return copied_model


def inference_copies(model: nn.Module) -> list[nn.Module]:
    """Return the copies of a model that are still in use, for tools that observe the model."""
    return list(_copies.get(model, ()))


def _shared_tensors(model: nn.Module, stacks: list[Encoder | Decoder], *, all_of_them: bool) -> dict[int, Tensor]:
    """Return the tensors that a copy shares: all, or only those outside the stacks, whose dtype changes."""
    inside = {id(parameter) for stack in stacks for parameter in stack.parameters()}
    tensors = [*model.parameters(), *model.buffers()]
    return {id(tensor): tensor for tensor in tensors if all_of_them or id(tensor) not in inside}


def _replacements(module: nn.Module, precision: Precision) -> dict[int, nn.Module]:
    assert precision.converter is not None
    replacements = precision.converter.convert(module, small_batch=isinstance(module, Decoder))
    if precision.dtype == FLOAT32.dtype:
        return replacements
    originals = {id(parameter): name for name, parameter in module.named_parameters()}
    for replacement in replacements.values():
        for parameter in replacement.parameters():
            if id(parameter) in originals:
                raise ValueError(
                    f"precision {precision.name!r}: {type(replacement).__name__} has the parameter "
                    f"{originals[id(parameter)]} of the original, whose dtype would change; keep it in a tuple"
                )
    return replacements


def _follow_changes(copied: nn.Module, original: nn.Module) -> None:
    """Update a stack's own parameters before each call if the original's changed in place.

    Its embeddings are shared, and its prepacked layers check the original themselves.
    """
    originals = dict(original.named_parameters())
    pairs = [(parameter, originals[name]) for name, parameter in copied.named_parameters() if name in originals]
    versions = [version(source) for _, source in pairs]

    def update(*_: object) -> None:
        current = [version(source) for _, source in pairs]
        if current != versions:
            with torch.no_grad():
                for parameter, source in pairs:
                    parameter.copy_(source)
            versions[:] = current

    copied.register_forward_pre_hook(update)
