"""Find source and target among the arguments of a model, and their real tokens."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

_SOURCES = ("ids", "input_ids", "src", "source", "source_ids", "memory", "inputs_embeds", "value", "x")
TARGETS = ("target_ids", "decoder_input_ids", "tgt", "target", "decoder_inputs_embeds", "query", "x")
"""Names of the target among the arguments of a model."""


def with_target(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch with the target that transformers' encoder–decoders derive from `labels` by a right shift."""
    labels, config = batch.get("labels"), getattr(model, "config", None)
    has_target = "decoder_input_ids" in batch or "decoder_inputs_embeds" in batch
    token_labels = isinstance(labels, Tensor) and labels.ndim == 2 and not labels.is_floating_point()  # not classes
    if has_target or not token_labels or not getattr(config, "is_encoder_decoder", False):
        return batch
    assert isinstance(labels, Tensor)
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if callable(prepare):
        target = prepare(labels=labels)
    else:
        start = getattr(config, "decoder_start_token_id", None) or 0
        shifted = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], dim=1)
        target = shifted.masked_fill(shifted == -100, padding_id(model) or 0)
    return {name: value for name, value in batch.items() if name != "labels"} | {"decoder_input_ids": target}


def input_names(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of "source" and, if the batch has one, "target"."""
    arguments = inspect.signature(model.forward).parameters
    is_target = {
        "x": "memory" in arguments,
        "query": batch.get("query") is not batch.get("value"),  # self-attention has one sequence
        "target": getattr(batch.get("target"), "ndim", 0) >= 2,  # fewer dimensions: labels
    }
    target = next((name for name in TARGETS if name in batch and is_target.get(name, True)), None)
    source = next((name for name in _SOURCES if name in batch and name != target), None)
    if source is None:
        raise ValueError(
            f"lint recognizes no argument of the batch as the source. Expected one of {', '.join(_SOURCES)}; got "
            f"{', '.join(batch)}. Rename the argument of forward, or wrap the model in a module that uses such a name."
        )
    return {"source": source} | ({} if target is None else {"target": target})


def check_tokens(name: str, value: object) -> None:
    """Raise a ValueError unless a value is a tensor of token ids or vectors with at least one token."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor of token ids or vectors; got a {type(value).__name__}.")
    shape = "(batch, length, width)" if value.is_floating_point() else "(batch, length)"
    if value.ndim != shape.count(",") + 1 or value.numel() == 0:
        nonempty = " with at least one text" if value.numel() == 0 else ""
        raise ValueError(f"{name} must have the shape {shape}{nonempty}; got {tuple(value.shape)}.")


def check_has_encoder(model: nn.Module) -> None:
    """Raise a ValueError for a decoder without an encoder, which is causal by design."""
    for path, module in model.named_modules():
        encoder_decoder = getattr(getattr(module, "config", None), "is_encoder_decoder", False)
        if getattr(module, "is_causal", False) is True and not encoder_decoder:  # transformers' flag
            raise ValueError(
                f"{path or 'this attention'} is causal: a {type(model).__name__} is a decoder without an encoder. "
                "lint supports encoders and encoder–decoders; check the mask with lint_masks(mask, keep, causal=True)."
            )


def as_keep_mask(name: str, value: object) -> Bool[Tensor, "B L"]:
    """Return which tokens are real, as bools.

    Args:
        name: name of the argument, for messages.
        value: bools, or the integers 0 and 1, (batch, length).

    Raises:
        ValueError: the value has another type, dtype or shape.
    """
    expected = f"{name} must be a tensor (batch, length) of bools or of the integers 0 and 1, with 1 for real tokens"
    if not isinstance(value, Tensor):
        raise ValueError(f"{expected}; got a {type(value).__name__}. Convert lists with torch.tensor.")
    zero_or_one = not value.is_floating_point() and bool(((value == 0) | (value == 1)).all())
    if not (value.dtype == torch.bool or zero_or_one) or value.ndim != 2 or value.numel() == 0:
        dtype = str(value.dtype).removeprefix("torch.")
        raise ValueError(f"{expected}; got {dtype} of shape {tuple(value.shape)}.")
    return value.bool()


def real_tokens(
    model: nn.Module, tokens: Tensor, vectors: Tensor, name: str, keep: Tensor | None, attention_mask: object
) -> Bool[Tensor, "B L"]:
    """Return which tokens are real: those of `keep`, or those that are not padding.

    Args:
        model: the model.
        tokens: ids (B, L), or vectors.
        vectors: the embedded tokens (B, L, D).
        name: name of the argument `keep`, for messages.
        keep: real tokens, if the caller gave them.
        attention_mask: transformers' mask in the batch, if there is one.
    """
    if keep is not None:
        if keep.shape != vectors.shape[:2]:
            raise ValueError(f"{name} must have the shape {tuple(vectors.shape[:2])}; got {tuple(keep.shape)}.")
        return keep.cpu()
    pad = None if tokens.is_floating_point() else padding_id(model)
    if pad is None:
        return torch.ones(vectors.shape[:2], dtype=torch.bool)
    real = (tokens != pad).cpu()
    end = getattr(getattr(model, "config", None), "eos_token_id", None)
    if end == pad and isinstance(attention_mask, Tensor) and attention_mask.shape == real.shape:
        # the end token is the padding token: the first one after the text is real if the mask shows it
        real[:, 1:] |= real[:, :-1] & attention_mask.cpu()[:, 1:].bool()
    return real


def with_start_token(model: nn.Module, real: Tensor) -> Tensor:
    """Mark the start token of targets as real where it is the padding token: the last one before the text."""
    config = getattr(model, "config", None)
    start = getattr(config, "start_id", getattr(config, "decoder_start_token_id", None))
    if start is not None and start != padding_id(model):
        return real
    next_real = torch.cat([real[:, 1:], torch.zeros_like(real[:, :1])], dim=1)
    return real | (next_real & (real.cumsum(dim=1) == 0))


def padding_id(model: nn.Module) -> int | None:
    """Return the padding id of the model's config or of its embedding, or None."""
    config = getattr(model, "config", None)
    for name in ("pad_id", "pad_token_id"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(getattr(config, "pad_id", None), int):
            return int(config.pad_id)  # type: ignore[union-attr]
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx
    return None
