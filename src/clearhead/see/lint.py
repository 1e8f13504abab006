"""Mistakes in how a model is used, found from outside: what each token's result depends on, beside what it should.

A token that attends to another depends on it, and its gradient by that other is not zero. So the same questions can be
asked of any model, whatever its masks are called and whichever way round they are.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.layers.embedding import TokenEmbedding
from clearhead.see.lint_masks import Attended, Finding, judged

_SOURCES = ("ids", "input_ids", "src", "memory", "inputs_embeds", "x")
_TARGETS = ("target_ids", "decoder_input_ids", "tgt", "decoder_inputs_embeds", "x")
_MOST = 12
"""Tokens whose results are looked at, of a text; each takes a backward pass."""


def lint(
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    keep: Bool[Tensor, "B M"] | None = None,
    target_keep: Bool[Tensor, "B L"] | None = None,
) -> list[Finding]:
    """Mistakes in how a model is called: masks inverted, swapped, missing or in the wrong place, padding that leaks.

    The model runs as it is, once, in evaluation mode; its weights, gradients and mode stay as they are.

    Args:
        model: any module of this library; `nn.Transformer`, its halves and layers; a transformers model; or a module
            around one of these, which takes ids or vectors under one of the usual names.
        batch: what the model is called with, by name. For the checks of padding some rows must be padded.
        keep: which source tokens are real; for ids, those that are not the model's padding id where it is not given.
        target_keep: which target tokens are; alike.

    Returns:
        The mistakes; none where everything is as it should be.

    Raises:
        ValueError: no source is found among the names, or the model's output depends on none.

    >>> import torch; from clearhead import EncoderConfig, EncoderModel, lint
    >>> model, ids = EncoderModel(EncoderConfig(vocab_size=9, num_layers=1)), torch.tensor([[4, 5, 6], [7, 8, 0]])
    >>> [finding.mistake for finding in lint(model, {"ids": ids})]
    ['padding is attended']
    """
    seen = _observed(model, dict(batch))
    real = _real(model, seen.given.get("source"), seen.source, keep, first=False)
    target_real = None
    if seen.target is not None:
        target_real = _real(model, seen.given.get("target"), seen.target, target_keep, first=True)
    broken = _not_numbers(seen, real, target_real)
    if broken:
        return broken
    floats = _float_masks(batch, real)
    if floats:
        return floats
    other = target_real if target_real is not None and target_real.shape == real.shape else None
    findings: list[Finding] = []
    if seen.memory is not None and seen.source is not None and seen.memory is not seen.source:
        reached = _reached(seen.memory, seen.source)
        findings = judged(Attended("the encoder's self-attention", reached, real, real, other_BM=other))
    if seen.states is not None and seen.target is not None and target_real is not None:
        own = _reached(seen.states, seen.target)
        findings += judged(Attended("the decoder's self-attention", own, target_real, target_real, causal=True))
        if not findings and seen.source is not None:
            across = _reached(seen.states, seen.source)
            findings = judged(Attended("cross-attention", across, target_real, real, same=False, other_BM=other))
    if not findings and seen.pooled is not None and seen.source is not None:
        findings = _pooled(seen.pooled, seen.source, real)
    return findings


@dataclass
class _Seen:
    """What was observed of one call: vectors that went in, and what came out."""

    given: dict[str, Tensor] = field(default_factory=dict)
    source: Tensor | None = None
    target: Tensor | None = None
    memory: Tensor | None = None
    states: Tensor | None = None
    pooled: Tensor | None = None


def _observed(model: nn.Module, batch: dict[str, Any]) -> _Seen:
    arguments = inspect.signature(model.forward).parameters
    target = next((name for name in _TARGETS if name in batch and (name != "x" or "memory" in arguments)), None)
    source = next((name for name in _SOURCES if name in batch and name != target), None)
    if source is None:
        raise ValueError(f"the batch has no source: one of {', '.join(_SOURCES)} is wanted; got {', '.join(batch)}")
    seen = _Seen(given={"source": batch[source]})
    if target is not None:
        seen.given["target"] = batch[target]
    first = _batch_first(model)
    with contextlib.ExitStack() as stack:
        training = model.training
        stack.callback(model.train, training)
        model.eval()
        stack.enter_context(torch.enable_grad())
        for role, name in (("source", source), ("target", target)):
            if name is not None and batch[name].is_floating_point():
                leaf = _turned(batch[name].detach(), first).clone().requires_grad_()
                batch[name] = _turned(leaf, first)
                setattr(seen, role, leaf)
        for handle in _hooks(model, seen, first):
            stack.callback(handle.remove)
        output = _tensor(model(**batch))
    output = output if output.ndim < 3 else _turned(output, first)
    if target is not None:
        seen.states = output
    elif output.ndim == 3:
        seen.memory = output
    else:
        seen.pooled = output
    if target is not None and source in ("memory",):
        seen.memory = None
    return seen


def _hooks(model: nn.Module, seen: _Seen, first: bool) -> Iterator[Any]:
    """Hooks that put leaves in the place of the embeddings of source and target, and keep what the encoder gives."""

    def embedded(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        for role in ("source", "target"):
            ids, asked = seen.given.get(role), inputs[0] if inputs else None
            if ids is None or not isinstance(asked, Tensor) or getattr(seen, role) is not None:
                continue
            if asked.shape == ids.shape and not ids.is_floating_point() and torch.equal(asked, ids):
                leaf = _turned(output.detach(), first).clone().requires_grad_()
                setattr(seen, role, leaf)
                return _turned(leaf, first)
        return None

    for module in model.modules():
        if isinstance(module, nn.Embedding | TokenEmbedding):
            yield module.register_forward_hook(embedded)

    def encoded(module: nn.Module, inputs: Any, output: Any) -> None:
        states = _tensor(output)
        if states.ndim == 3:
            seen.memory = _turned(states, first)

    inner = _encoder(model)
    if inner is not None:
        yield inner.register_forward_hook(encoded)


def _encoder(model: nn.Module) -> nn.Module | None:
    """The part that turns a source into states, where it is not the whole."""
    asked = getattr(model, "get_encoder", None)
    if callable(asked):
        with contextlib.suppress(Exception):
            found = asked()
            if isinstance(found, nn.Module) and found is not model:
                return found
    for name in ("encoder", "body", "base_model"):
        found = getattr(model, name, None)
        if isinstance(found, nn.Module) and found is not model:
            return found
    for module in model.modules():
        if module is not model and isinstance(module, nn.TransformerEncoder | nn.Transformer):
            return module.encoder if isinstance(module, nn.Transformer) else module
    return None


def _reached(states: Tensor, inputs: Tensor) -> Tensor:
    """Whether the result at each place depends on what went in at each place; only some places of a long text."""
    batch, length, width = states.shape
    draw = torch.Generator().manual_seed(0)
    direction = torch.randn(width, generator=draw).to(states)
    seen = torch.zeros(batch, length, inputs.shape[1], dtype=torch.bool)
    for place in _places(length):
        total = (states[:, place] * direction).sum()
        (gradient,) = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
        if gradient is not None:
            size_BM = gradient.detach().float().norm(dim=-1).cpu()
            seen[:, place] = size_BM > 1e-9 * size_BM.amax(dim=1, keepdim=True)
    return seen


def _places(length: int) -> list[int]:
    if length <= _MOST:
        return list(range(length))
    step = (length - 1) / (_MOST - 1)
    return sorted({round(number * step) for number in range(_MOST)})


def _pooled(pooled: Tensor, inputs: Tensor, real: Tensor) -> list[Finding]:
    """Whether padding has a part in the one vector of a text."""
    direction = torch.randn(pooled.shape[-1], generator=torch.Generator().manual_seed(0)).to(pooled)
    (gradient,) = torch.autograd.grad((pooled * direction).sum(), inputs, retain_graph=True, allow_unused=True)
    if gradient is None:
        raise ValueError("the model's output depends on nothing that went in")
    size_BM = gradient.detach().float().norm(dim=-1).cpu()
    leaks = (size_BM > 1e-9 * size_BM.amax(dim=1, keepdim=True)) & ~real
    if not leaks.any():
        return []
    row, place = leaks.nonzero()[0].tolist()
    return [
        Finding(
            "padding leaks into the pooled vector",
            f"pooling, row {row}, position {place}",
            "Attention leaves the padding out, but the mean or maximum over the tokens takes it in.",
            "Pool with the mask: sum over real tokens, divided by their number.",
        )
    ]


def _real(
    model: nn.Module, given: Tensor | None, vectors: Tensor | None, keep: Tensor | None, *, first: bool
) -> Tensor:
    """Which tokens are real: what was said, or those that are not padding; a target's first is its start."""
    if keep is not None:
        return keep.cpu()
    if given is not None and not given.is_floating_point():
        pad = _padding_id(model)
        ids = given if vectors is None or given.shape == vectors.shape[:2] else given.T
        real = torch.ones_like(ids, dtype=torch.bool) if pad is None else ids != pad
        if first:
            real[:, 0] = True
        return real.cpu()
    if vectors is None:
        raise ValueError("no embedding was given the ids: the model embeds them in a way that is not seen from outside")
    return torch.ones(vectors.shape[:2], dtype=torch.bool)


def _padding_id(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    for name in ("pad_id", "pad_token_id"):
        found = getattr(config, name, None)
        if isinstance(found, int):
            return found
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(getattr(config, "pad_id", None), int):
            return int(config.pad_id)  # type: ignore[union-attr]
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx
    return None


def _not_numbers(seen: _Seen, real: Tensor, target_real: Tensor | None) -> list[Finding]:
    for part, states, wanted in (
        ("the encoder", seen.memory, real),
        ("the decoder", seen.states, target_real),
        ("the pooled vector", seen.pooled, None),
    ):
        if states is None:
            continue
        wrong = ~states.detach().isfinite().all(dim=-1).cpu()
        wrong = wrong & wanted if wanted is not None and wanted.shape == wrong.shape else wrong
        if wrong.any():
            row, *place = wrong.nonzero()[0].tolist()
            at = f", position {place[0]}" if place else ""
            return [
                Finding(
                    "a row is fully masked",
                    f"{part}, row {row}{at}",
                    "Its result is not a number: a softmax over nothing but -inf.",
                    "Let each token attend to one at least, and look at the mask's polarity.",
                )
            ]
    return []


def _float_masks(batch: Mapping[str, Any], real: Tensor) -> list[Finding]:
    """Masks of floats that mask nothing: 0 and 1, meant as false and true."""
    if bool(real.all()):
        return []
    for name, value in batch.items():
        tensor = value.scores if isinstance(value, masks.Mask) else value
        if "mask" not in name or not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        if tensor.min() >= 0 and tensor.max() <= 1 and tensor.max() > 0 and "attention_mask" not in name:
            return [
                Finding(
                    "a float mask masks nothing",
                    name,
                    "Its zeros and ones are added to the scores: no weight becomes 0.",
                    "Make it bool (mask != 0), or 0 where attention is allowed and -inf where it is not.",
                )
            ]
    return []


def _tensor(output: Any) -> Tensor:
    """The states or logits in what a model gives."""
    for name in ("last_hidden_state", "logits"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    found = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(found, Tensor):
        raise ValueError(f"the model gives a {type(output).__name__}; a tensor, or one as its first part, is wanted")
    return found


def _turned(x: Tensor, first: bool) -> Tensor:
    """The batch first, or as the model wants it."""
    return x if first else x.transpose(0, 1)


def _batch_first(model: nn.Module) -> bool:
    """Whether the batch is the first dimension: everywhere but in torch.nn's modules that were told otherwise."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            return bool(module.batch_first)
    return True
