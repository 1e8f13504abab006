"""Test by gradients which inputs each result depends on."""

import torch
from jaxtyping import Bool
from torch import Tensor

from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.observation.run import ModelRun

_MAX_QUERIES = 12
"""Queries that are tested in each text; each takes a backward pass."""


def attention_patterns(
    run: ModelRun, real_BM: Tensor, target_real_BL: Tensor | None, nonfinite_B: Tensor
) -> list[AttentionPattern]:
    """Return the dependence of states on inputs in self-attention and cross-attention.

    Args:
        run: the run of the model.
        real_BM, target_real_BL: real tokens of source and target.
        nonfinite_B: texts with NaN or infinity, which show no dependence.
    """
    patterns = []
    query_BL = _testable_queries(run, real_BM, nonfinite_B, decoding=False)
    same_shape = target_real_BL is not None and target_real_BL.shape == real_BM.shape
    other_BL = target_real_BL if same_shape else None
    if run.memory is not None and run.source is not None:
        name, causal = ("self-attention", None) if run.single_attention else ("the encoder's self-attention", False)
        reached_BLM = _reached(run.memory, run.source, query_BL)
        patterns.append(AttentionPattern(name, reached_BLM, query_BL, real_BM, causal, other_keep_BM=other_BL))
    if run.states is None or run.target is None or target_real_BL is None or run.source is None:
        return patterns
    query_BL = _testable_queries(run, target_real_BL, nonfinite_B, decoding=True)
    if not run.single_attention:
        reached_BLM = _reached(run.states, run.target, query_BL)
        patterns.append(
            AttentionPattern("the decoder's self-attention", reached_BLM, query_BL, target_real_BL, causal=True)
        )
    # states of the encoder, because its inputs are mixed: a state is one token only as a key
    reached_BLM = _reached(run.states, run.source if run.memory is None else run.memory, query_BL)
    patterns.append(
        AttentionPattern("cross-attention", reached_BLM, query_BL, real_BM, same=False, other_keep_BM=other_BL)
    )
    return patterns


def nonfinite_texts(run: ModelRun, real_BM: Tensor, target_real_BL: Tensor | None) -> Bool[Tensor, "B"]:
    """Return the texts with NaN or infinity in the result of a real token or in its gradient."""
    nonfinite_B = torch.zeros(len(real_BM), dtype=torch.bool)
    inputs = [vectors for vectors in (run.source, run.target) if vectors is not None]
    for states, real in ((run.memory, real_BM), (run.states, target_real_BL), (run.pooled, None)):
        if states is None:
            continue
        tested = states if real is None else states[real.to(states.device)]
        gradients = torch.autograd.grad(tested.sum(), inputs, retain_graph=True, allow_unused=True)
        nonfinite = ~states.detach().isfinite().all(dim=-1).cpu()
        nonfinite_B |= (nonfinite if real is None else nonfinite & real).reshape(len(real_BM), -1).any(dim=1)
        for gradient in gradients:
            if gradient is not None:
                nonfinite_B |= ~gradient.isfinite().flatten(1).all(dim=1).cpu()
    return nonfinite_B


def nonzero_vectors(gradient: Tensor) -> Tensor:
    """Return which vectors affect the result of a gradient; a masked weight is exactly 0, and so is its gradient."""
    return (gradient.detach() != 0).any(dim=-1).cpu()


def _testable_queries(run: ModelRun, real_BL: Tensor, nonfinite_B: Tensor, *, decoding: bool) -> Tensor:
    """Return a sample of the real queries with at least one key and a finite result."""
    testable_BL = real_BL & ~nonfinite_B[:, None]
    for mask in run.masks:
        if mask.decoding == decoding and mask.keyless_BL is not None:
            testable_BL = testable_BL & ~mask.keyless_BL
    return _sample(testable_BL if bool(testable_BL.any()) or bool(nonfinite_B.any()) else real_BL)


def _sample(query_BL: Tensor) -> Tensor:
    """Return these queries, or a sample spread over a long text."""
    sample_BL = torch.zeros_like(query_BL)
    for row, queries in enumerate(query_BL):
        positions = queries.nonzero().flatten()
        count = min(len(positions), _MAX_QUERIES)
        sample_BL[row, positions[torch.linspace(0, len(positions) - 1, count).round().long()]] = True
    return sample_BL


def _reached(states: Tensor, inputs: Tensor, query_BL: Tensor) -> Tensor:
    """Return whether the state of each query depends on each input vector; one query of every row in each pass."""
    batch, length, width = states.shape
    direction = torch.randn(width, generator=torch.Generator().manual_seed(0)).to(states)
    reached_BLM = torch.zeros(batch, length, inputs.shape[1], dtype=torch.bool)
    pass_BL = torch.where(query_BL, query_BL.cumsum(dim=1), 0)
    for number in range(1, int(pass_BL.max()) + 1):
        rows, positions = (pass_BL == number).nonzero(as_tuple=True)
        total = (states[rows, positions] * direction).sum()
        (gradient,) = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
        if gradient is not None:
            reached_BLM[rows, positions] = nonzero_vectors(gradient)[rows]
    return reached_BLM
