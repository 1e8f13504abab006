"""Padding in the pooled vector of a text."""

import torch

from clearhead.inspection.lint.observation.dependence import nonzero_vectors
from clearhead.inspection.lint.observation.observe import Observation
from clearhead.inspection.lint.observation.unpadded import is_single_or_double, run_without_padding
from clearhead.inspection.lint.rule import Match, Rule, Stage

POOLED_PADDING = Rule(
    "pooled-padding",
    title="padding leaks into the pooled vector",
    explanation="The pooled vector of a text depends on its padding.",
    fix="Pool with the mask: sum over real tokens, divided by their number.",
)
_TOLERANCE = 1e-3
"""Largest distance of two equal vectors, relative to the longest in the batch; float32 differs by 1e-5."""


@POOLED_PADDING.check(Stage.POOLING, order=10)
def pooled_depends_on_padding(observation: Observation) -> Match | None:
    """Match if the gradient of the pooled vector by the padding is not zero.

    Many models return a vector of the first token next to the states, and few callers use it: its padding is ignored.
    """
    run, real_BM = observation.run, observation.real_BM
    if run is None or run.pooled is None or run.source is None:
        return None
    direction = torch.randn(run.pooled.shape[-1], generator=torch.Generator().manual_seed(0)).to(run.pooled)
    total = (run.pooled * direction).sum()
    (gradient,) = torch.autograd.grad(total, run.source, retain_graph=True, allow_unused=True)
    if gradient is None:
        raise ValueError("The model's output does not depend on its input.")
    leaks_BM = nonzero_vectors(gradient) & ~real_BM
    if not (leaks_BM[:, 1:] if run.pooled_with_states else leaks_BM).any():
        return None
    row, position = leaks_BM.nonzero()[0].tolist()
    where = f"pooling, row {row}, position {position}"
    if run.memory is None:
        return Match(
            where,
            "Attention or pooling includes the padding: the encoder returns more positions than the text has.",
            "Pass attention a padding mask for all positions, and pool with it.",
        )
    if bool((~real_BM[:, 1:]).any()) and not bool(leaks_BM[:, 1:].any()):
        return Match(
            where,
            "The vector is that of the first position, which is padding if padding is on the left.",
            "Use the first real token, or pad on the right.",
        )
    return Match(where, "Attention excludes the padding, but the mean or maximum over the tokens includes it.")


# counted padding, and zeros in a maximum, have no gradient
@POOLED_PADDING.check(Stage.POOLING, order=20)
def pooled_counts_padding(observation: Observation) -> Match | None:
    """Match if a text has another pooled vector without its padding."""
    assert observation.run is not None
    assert observation.run.pooled is not None
    pooled = observation.run.pooled
    row, unpadded = run_without_padding(observation)
    if unpadded is None or unpadded.pooled is None or unpadded.pooled.shape != pooled[:1].shape:
        return None
    distance, largest = (unpadded.pooled[0] - pooled[row]).norm(), pooled.norm(dim=1).max()
    if not is_single_or_double(pooled) or distance <= _TOLERANCE * largest:
        return None
    return Match(
        f"pooling, row {row}",
        "Without its padding this text has another vector: padding is counted, or its zeros are the maximum.",
        "Divide by the number of real tokens; fill padding with -inf before a maximum.",
    )
