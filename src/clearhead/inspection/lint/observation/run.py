"""Run a model once and record its embedded inputs, its states, its pooled vectors and its masks."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clearhead.inspection.lint.observation.inputs import (
    TARGETS,
    check_has_encoder,
    check_tokens,
    input_names,
    with_target,
)
from clearhead.inspection.lint.observation.layout import BatchFirst, as_leaf, layout_of, to_batch_first
from clearhead.inspection.lint.observation.masks import MaskSummary, RecordedMask, record_masks
from clearhead.inspection.lint.observation.outputs import encoder_of, pooled_of, states_of
from clearhead.layers.attention import CrossAttention, MultiHeadAttention

_ATTENTION_INPUTS = ("query", "key", "value")


@dataclass
class ModelRun:
    """Record of one run of a model; all tensors have the batch first.

    Args:
        inputs: source and target as in the batch, by role.
        single_attention: whether the model is one attention without a stack.
        source, target: embedded inputs, which collect gradients.
        memory: states of the encoder.
        states: states of the decoder.
        pooled: one vector for each text.
        pooled_with_states: whether the model returned pooled vectors next to the states.
        masks: the masks of its attentions.
    """

    inputs: dict[str, Tensor]
    single_attention: bool
    source: Tensor | None = None
    target: Tensor | None = None
    memory: Tensor | None = None
    states: Tensor | None = None
    pooled: Tensor | None = None
    pooled_with_states: bool = False
    masks: list[MaskSummary] = field(default_factory=list)

    @property
    def last_sequence(self) -> Tensor | None:
        """The embedded target, or the source of a model without one."""
        return self.source if self.target is None else self.target


def run_model(model: nn.Module, batch: Mapping[str, Any]) -> ModelRun:
    """Run a model once in evaluation mode, with inputs that collect gradients.

    Args:
        model: the model.
        batch: its arguments by name.

    Raises:
        ValueError: the batch has no source, an input is not embedded in a known way, the output is not supported, or
            the model is a decoder without an encoder.
    """
    batch = with_target(model, dict(batch))
    names = input_names(model, batch)
    if "target" not in names:
        check_has_encoder(model)
    for name in names.values():
        check_tokens(name, batch[name])
    batch_first = _batch_first(model, batch, names)
    run, output = _run(model, batch, names, batch_first)
    _record_output(run, output, batch_first.result)
    if names["source"] == "memory":
        run.memory = None  # an input here, not a result
    for role, tokens in run.inputs.items():
        run.inputs[role] = tokens if getattr(batch_first, role) else tokens.transpose(0, 1)
    return run


def _run(
    model: nn.Module, batch: Mapping[str, Any], names: Mapping[str, str], batch_first: BatchFirst
) -> tuple[ModelRun, Any]:
    """Run the model with leaves in place of its embedded inputs; return the record and the output."""
    batch, inputs = dict(batch), {role: batch[name] for role, name in names.items()}
    run = ModelRun(inputs, isinstance(model, nn.MultiheadAttention | MultiHeadAttention | CrossAttention))
    encoder = encoder_of(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_evaluation_mode(model))
        stack.enter_context(torch.enable_grad())
        for role, name in names.items():
            if inputs[role].is_floating_point():
                leaf = as_leaf(inputs[role], getattr(batch_first, role))
                setattr(run, role, leaf)
                for same in {name, *_ATTENTION_INPUTS}:
                    if batch.get(same) is inputs[role]:
                        batch[same] = to_batch_first(leaf, getattr(batch_first, role))
        if encoder is not None:
            hook = functools.partial(_record_memory, run, batch_first)
            stack.callback(encoder.register_forward_hook(hook).remove)
        stack.enter_context(_EmbeddingCalls(run, batch_first))
        stack.enter_context(record_masks(model, functools.partial(_record_mask, run, encoder is not None)))
        output = model(**batch)
    for role, name in names.items():
        if getattr(run, role) is None:
            raise ValueError(
                f"No embedding layer or function received {name}. Pass embedded vectors instead, if the model accepts "
                "them."
            )
    return run, output


@contextlib.contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside the block, then restore the mode of each module."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


class _EmbeddingCalls(TorchFunctionMode):
    """Replace the embeddings of source and target by leaves, whichever module or function embeds them."""

    def __init__(self, run: ModelRun, batch_first: BatchFirst) -> None:
        super().__init__()
        self.run, self.batch_first = run, batch_first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is not functional.embedding or not args:
            return output
        for role, ids in self.run.inputs.items():
            if getattr(self.run, role) is not None or ids.is_floating_point():
                continue
            length = ids.shape[1]
            for embedded_ids, dim in ((args[0], 1), (args[0].transpose(0, -1), 0)):  # some models transpose first
                if embedded_ids.ndim != 2 or not torch.equal(embedded_ids[:, :length], ids):  # some pad at the end
                    continue
                batch_first = getattr(self.batch_first, role) == (dim == 1)
                tokens, rest = output.split([length, embedded_ids.shape[1] - length], dim=dim)
                leaf = as_leaf(tokens, batch_first)
                setattr(self.run, role, leaf)
                return torch.cat([to_batch_first(leaf, batch_first), rest], dim=dim)
        return output


def _record_memory(run: ModelRun, batch_first: BatchFirst, module: nn.Module, inputs: Any, output: Any) -> Any:
    """Record the states of the encoder; return an output through which later results depend on the record."""
    states = states_of(output, run.last_sequence)
    if states.ndim != 3 or not states.requires_grad:
        return None
    if run.source is None or states.shape[:2].numel() != run.source.shape[:2].numel():
        return None  # the model adds tokens: positions of states and source do not match
    run.memory = to_batch_first(states, batch_first.memory)
    replaced = to_batch_first(run.memory, batch_first.memory)
    if type(output) in (tuple, list):
        return type(output)(replaced if part is states else part for part in output)
    return replaced if output is states else None


def _record_mask(run: ModelRun, has_encoder: bool, path: str, mask: RecordedMask) -> None:
    decoding = run.memory is not None if has_encoder else "target" in run.inputs
    queries = run.target if decoding else run.source
    keys = run.source if decoding and mask.same is False else queries
    if queries is None or keys is None:  # such as a target that a classifier derives from its source
        return
    run.masks.append(mask.summarize(path, decoding, queries.shape[0], queries.shape[1], keys.shape[1]))


def _record_output(run: ModelRun, output: Any, batch_first: bool) -> None:
    result = states_of(output, run.last_sequence)
    if not result.requires_grad:
        raise ValueError("The output has no gradient by the input. Remove torch.no_grad() or detach() from the model.")
    if result.ndim == 0:
        raise ValueError("The model must return states or a vector for each text; it returned one scalar.")
    if result.ndim < 3:
        run.pooled = result if result.ndim == 2 else result[:, None]
        return
    result = to_batch_first(result, batch_first)
    sequence = run.last_sequence
    assert sequence is not None
    if run.target is None:
        run.pooled, run.pooled_with_states = pooled_of(output, len(sequence), sequence.shape[1]), True
    if result.shape[:2] != sequence.shape[:2]:
        raise ValueError(
            f"The model returned {result.shape[1]} vectors for each text, but "
            f"{'the source' if run.target is None else 'the target'} has {sequence.shape[1]} tokens. If the model is "
            f"an encoder–decoder, add the target to the batch as one of {', '.join(TARGETS)}."
        )
    if run.target is not None:
        run.states = result
    else:
        run.memory = result


def _batch_first(model: nn.Module, batch: Mapping[str, Any], names: Mapping[str, str]) -> BatchFirst:
    """Return which tensors have the batch first; modules around torch.nn's may transpose, and run once to test it."""
    attentions = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    if all(module.batch_first for module in attentions):
        return BatchFirst()
    if type(model).__module__.startswith("torch.nn."):
        return BatchFirst(False, False, False, False)
    run, output = _run(model, batch, names, BatchFirst())
    assert run.source is not None
    return layout_of(run.source, run.target, run.memory, states_of(output, run.last_sequence))
