"""One call of a model, observed from outside: the vectors that go in, those that come out, and queries without keys."""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clearhead.inspection.lint.attention_masks import MaskSummary, Remainder, record_masks
from clearhead.inspection.lint.batch_layout import BatchFirst, as_leaf, layout_of, turned
from clearhead.layers.attention import CrossAttention, MultiHeadAttention

_SOURCES = ("ids", "input_ids", "src", "memory", "inputs_embeds", "value", "x")
_TARGETS = ("target_ids", "decoder_input_ids", "tgt", "decoder_inputs_embeds", "query", "x")
_OF_ATTENTION = ("query", "key", "value")


@dataclass
class Observed:
    """What was observed of one call.

    Args:
        given: source and target as the batch has them, but the batch first.
        alone: whether the model is one attention, without a stack around it.
        source, target: the vectors that went in, the batch first.
        memory: what the encoder gave.
        states: what the decoder gave.
        pooled: the one vector of each text.
        beside: whether it was given beside the states.
        masked: the attentions that had a mask.
    """

    given: dict[str, Tensor]
    alone: bool
    source: Tensor | None = None
    target: Tensor | None = None
    memory: Tensor | None = None
    states: Tensor | None = None
    pooled: Tensor | None = None
    beside: bool = False
    masked: list[MaskSummary] = field(default_factory=list)


def observe(model: nn.Module, batch: Mapping[str, Any]) -> Observed:
    """Runs the model once, in evaluation mode, so that gradients by what went in can be asked for.

    Raises:
        ValueError: no source among the names, none that is embedded, no batch, an output that is not understood, or a
            decoder without an encoder.
    """
    batch = _with_target(model, dict(batch))
    names = _names(model, batch)
    if "target" not in names:
        _check_encodes(model)
    for name in names.values():
        _check_tokens(name, batch[name])
    first = _batch_first(model, batch, names)
    seen, output = _run(model, batch, names, first)
    _keep_output(seen, output, first.result)
    if names["source"] == "memory":
        seen.memory = None  # it went in, and is nobody's result here
    for role, given in seen.given.items():
        seen.given[role] = given if getattr(first, role) else given.transpose(0, 1)
    return seen


def _run(
    model: nn.Module, batch: Mapping[str, Any], names: Mapping[str, str], first: BatchFirst
) -> tuple[Observed, Any]:
    """One run, with leaves in the place of what was embedded; and what the model gives."""
    batch, given = dict(batch), {role: batch[name] for role, name in names.items()}
    seen = Observed(given, isinstance(model, nn.MultiheadAttention | MultiHeadAttention | CrossAttention))
    inner = _encoder(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_evaluated(model))
        stack.enter_context(torch.enable_grad())
        for role, name in names.items():
            if given[role].is_floating_point():
                leaf = as_leaf(given[role], getattr(first, role))
                setattr(seen, role, leaf)
                for same in {name, *_OF_ATTENTION}:
                    if batch.get(same) is given[role]:
                        batch[same] = turned(leaf, getattr(first, role))
        if inner is not None:
            stack.callback(inner.register_forward_hook(functools.partial(_encoded, seen, first)).remove)
        stack.enter_context(_Embeddings(seen, first))
        stack.enter_context(record_masks(model, functools.partial(_note, seen, inner)))
        output = model(**batch)
    _check_embedded(seen, names)
    return seen, output


def _check_tokens(name: str, given: object) -> None:
    if not isinstance(given, Tensor):
        raise ValueError(f"{name} is a tensor of token ids or vectors; got a {type(given).__name__}")
    wanted = "(batch, length, width)" if given.is_floating_point() else "(batch, length)"
    if given.ndim != wanted.count(",") + 1 or given.numel() == 0:
        empty = ", with a text or more" if given.numel() == 0 else ""
        raise ValueError(f"{name} has a shape of {tuple(given.shape)}; {wanted} is wanted{empty}")


def _with_target(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with the target that transformers' encoder–decoders make of `labels`: shifted right, after a start."""
    labels, config = batch.get("labels"), getattr(model, "config", None)
    start = getattr(config, "decoder_start_token_id", None)
    told = "decoder_input_ids" in batch or "decoder_inputs_embeds" in batch
    written = isinstance(labels, Tensor) and labels.ndim == 2 and not labels.is_floating_point()  # not classes
    if told or not written or not getattr(config, "is_encoder_decoder", False):
        return batch
    assert isinstance(labels, Tensor)
    derived = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if callable(derived):
        target = derived(labels=labels)
    else:
        shifted = torch.cat([torch.full_like(labels[:, :1], start or 0), labels[:, :-1]], dim=1)
        target = shifted.masked_fill(shifted == -100, padding_id(model) or 0)
    return {name: value for name, value in batch.items() if name != "labels"} | {"decoder_input_ids": target}


def _names(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, str]:
    """Under which name the source is in the batch, and the target, if there is one."""
    arguments = inspect.signature(model.forward).parameters
    apart = {
        "x": "memory" in arguments,
        "query": batch.get("query") is not batch.get("value"),  # otherwise attention of a sequence to itself
    }
    target = next((name for name in _TARGETS if name in batch and apart.get(name, True)), None)
    source = next((name for name in _SOURCES if name in batch and name != target), None)
    if source is None:
        raise ValueError(f"the batch has no source: one of {', '.join(_SOURCES)} is wanted; got {', '.join(batch)}")
    return {"source": source} | ({} if target is None else {"target": target})


def _check_encodes(model: nn.Module) -> None:
    """In a decoder without an encoder no token sees those after it, and rightly so."""
    for path, module in model.named_modules():
        joined = getattr(getattr(module, "config", None), "is_encoder_decoder", False)
        if getattr(module, "is_causal", False) is True and not joined:  # as transformers marks its attentions
            raise ValueError(
                f"{path or 'this attention'} is causal: a {type(model).__name__} is a decoder without an encoder, and "
                "only encoders and encoder–decoders are looked at; lint_masks(mask, keep, causal=True) takes its mask"
            )


@contextlib.contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards each module's own mode, which need not be its parent's."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


class _Embeddings(TorchFunctionMode):
    """Puts leaves in the place of what the ids of source and target are embedded as, by a module or without one."""

    def __init__(self, seen: Observed, first: BatchFirst) -> None:
        super().__init__()
        self.seen, self.first = seen, first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is not functional.embedding or not args:
            return output
        for role, ids in self.seen.given.items():
            if getattr(self.seen, role) is not None or ids.is_floating_point():
                continue
            length = ids.shape[1]
            for asked, along in ((args[0], 1), (args[0].transpose(0, -1), 0)):  # some models turn them round before
                if asked.ndim != 2 or not torch.equal(asked[:, :length], ids):  # some fill them up at the end
                    continue
                first = getattr(self.first, role) == (along == 1)
                own, rest = output.split([length, asked.shape[1] - length], dim=along)
                leaf = as_leaf(own, first)
                setattr(self.seen, role, leaf)
                return torch.cat([turned(leaf, first), rest], dim=along)
        return output


def _encoded(seen: Observed, first: BatchFirst, module: nn.Module, inputs: Any, output: Any) -> Any:
    """Keeps what the encoder gives, and hands it on so that what comes after depends on what was kept."""
    states = _result(output, seen)
    if states.ndim != 3 or not states.requires_grad:
        return None
    if seen.source is None or states.shape[:2].numel() != seen.source.shape[:2].numel():
        return None  # tokens of its own beside the text's: whose result is whose is not known
    seen.memory = turned(states, first.memory)
    back = turned(seen.memory, first.memory)
    if type(output) in (tuple, list):
        return type(output)(back if part is states else part for part in output)
    return back if output is states else None


def _note(seen: Observed, inner: nn.Module | None, path: str, left: Remainder) -> None:
    """Keeps what an attention's mask leaves."""
    decoding = seen.memory is not None if inner is not None else "target" in seen.given
    asked = seen.target if decoding else seen.source
    held = seen.source if decoding and left.same is False else asked
    if asked is None or held is None:  # such as the target that a classifier on an encoder–decoder makes of its source
        return
    (texts, queries), keys = asked.shape[:2], held.shape[1]
    seen.masked.append(left.of_texts(path, decoding, texts, queries, keys))


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
            whole = hasattr(found, "decoder")  # and not the encoder alone
            return _encoder(found) or found if whole else found
    for module in model.modules():
        if module is not model and isinstance(module, nn.TransformerEncoder | nn.Transformer):
            return module.encoder if isinstance(module, nn.Transformer) else module
    return None


def _check_embedded(seen: Observed, names: Mapping[str, str]) -> None:
    for role, name in names.items():
        vectors = getattr(seen, role)
        if vectors is None:
            raise ValueError(
                f"no embedding was given {name}: the model embeds them in a way that is not seen from outside; give it "
                "vectors in their place, where it takes some"
            )


def _keep_output(seen: Observed, output: Any, first: bool) -> None:
    result = _result(output, seen)
    if not result.requires_grad:
        raise ValueError(
            "the model's output depends on nothing that went in, as far as gradients show: it runs under torch.no_grad"
        )
    if result.ndim == 0:
        raise ValueError(
            "the model gives one number for the whole batch; states, or a vector for each text, are wanted"
        )
    if result.ndim < 3:
        seen.pooled = result if result.ndim == 2 else result[:, None]
        return
    result = turned(result, first)
    sequence = seen.source if seen.target is None else seen.target
    assert sequence is not None
    if seen.target is None:
        seen.pooled, seen.beside = _vector_of_each(output, len(sequence), sequence.shape[1]), True
    if result.shape[:2] != sequence.shape[:2]:
        raise ValueError(
            f"the model gives {result.shape[1]} vectors for each text, but "
            f"{'the source' if seen.target is None else 'the target'} has {sequence.shape[1]} tokens; if it is an "
            f"encoder–decoder, name the target in the batch: one of {', '.join(_TARGETS)}"
        )
    if seen.target is not None:
        seen.states = result
    else:
        seen.memory = result


def _vector_of_each(output: Any, texts: int, length: int) -> Tensor | None:
    """The one vector of each text that some models give beside the states."""
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    for part in parts:
        if isinstance(part, Tensor) and part.ndim == 2 and len(part) == texts != 0 and part.shape[1] != length:
            return part if part.requires_grad else None
    return None


def _result(output: Any, seen: Observed) -> Tensor:
    """The states or logits in what a model gives."""
    for name in ("last_hidden_state", "logits"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):  # transformers' outputs, which say more than one thing
        parts = [part for name, part in output.items() if not name.startswith("encoder_")]
    else:
        parts = list(output) if isinstance(output, tuple | list) else []
    tensors = [part for part in parts if isinstance(part, Tensor) and part.ndim > 1]  # a loss has no dimension
    if not tensors:
        raise ValueError(f"the model gives a {type(output).__name__}; a tensor, or one as its first part, is wanted")
    sequence = seen.source if seen.target is None else seen.target
    if isinstance(output, Mapping) and sequence is not None:
        for_each = [part for part in tensors if part.shape[:2] == sequence.shape[:2]]
        vectors = [part for part in for_each if part.ndim == 3]
        if vectors or for_each:
            return vectors[0] if vectors else torch.stack(for_each, dim=-1)  # one number a token: where spans begin
    return tensors[0]


def padding_id(model: nn.Module) -> int | None:
    """The id that fills short rows, as the model's config says, or its embedding."""
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


def _batch_first(model: nn.Module, batch: Mapping[str, Any], names: Mapping[str, str]) -> BatchFirst:
    """Of which tensors the batch is the first dimension: of all, but in torch.nn's modules that were told otherwise.
    What stands around such a module may turn its tensors, and is run once to see what depends on what."""
    inside = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    if all(module.batch_first for module in inside):
        return BatchFirst()
    if type(model).__module__.startswith("torch.nn."):
        return BatchFirst(False, False, False, False)
    seen, output = _run(model, batch, names, BatchFirst())
    assert seen.source is not None
    return layout_of(seen.source, seen.target, seen.memory, _result(output, seen))
