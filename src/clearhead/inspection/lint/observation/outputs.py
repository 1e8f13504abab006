"""Find the states, the pooled vectors and the encoder of a model of any library."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def states_of(output: Any, sequence: Tensor | None) -> Tensor:
    """Return the states or logits in the output of a model.

    Args:
        output: the output: a tensor, a tuple or list, a mapping, or one of transformers' outputs.
        sequence: the embedded target, or the source without a target: (B, L, D); None if unknown.

    Raises:
        ValueError: the output contains no tensor.
    """
    for name in ("last_hidden_state", "logits"):
        value = getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        parts = [part for name, part in output.items() if not name.startswith("encoder_")]
    else:
        parts = list(output) if isinstance(output, tuple | list) else []
    tensors = [part for part in parts if isinstance(part, Tensor) and part.ndim > 1]  # a loss has no dimension
    if not tensors:
        raise ValueError(f"The model must return a tensor, or a tensor first; it returned a {type(output).__name__}.")
    if isinstance(output, Mapping) and sequence is not None:
        per_token = [part for part in tensors if part.shape[:2] == sequence.shape[:2]]
        vectors = [part for part in per_token if part.ndim == 3]
        if vectors or per_token:
            return vectors[0] if vectors else torch.stack(per_token, dim=-1)  # one logit a token, such as span starts
    return tensors[0]


def pooled_of(output: Any, texts: int, length: int) -> Tensor | None:
    """Return the pooled vectors (B, D) that some models return next to the states, or None.

    Args:
        output: the output of the model.
        texts, length: B and L of the source.
    """
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    for part in parts:
        if isinstance(part, Tensor) and part.ndim == 2 and len(part) == texts != 0 and part.shape[1] != length:
            return part if part.requires_grad else None
    return None


def encoder_of(model: nn.Module) -> nn.Module | None:
    """Return the submodule that encodes a source into states, or None if the model itself does."""
    getter = getattr(model, "get_encoder", None)
    if callable(getter):
        with contextlib.suppress(Exception):
            encoder = getter()
            if isinstance(encoder, nn.Module) and encoder is not model:
                return encoder
    for name in ("encoder", "body", "base_model"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module) and inner is not model:
            return (encoder_of(inner) or inner) if hasattr(inner, "decoder") else inner
    for module in model.modules():
        if module is not model and isinstance(module, nn.TransformerEncoder | nn.Transformer):
            return module.encoder if isinstance(module, nn.Transformer) else module
    return None
