"""Weights, inputs and results with NaN or infinity."""

from clearhead.inspection.lint.observation.observe import Observation
from clearhead.inspection.lint.rule import Match, Rule, Stage

NONFINITE_WEIGHT = Rule(
    "nonfinite-weight",
    title="a weight is NaN or infinite",
    explanation="The weight makes the results NaN or infinite. Masks are not the cause.",
    fix="Load the weights again, or return to the last intact checkpoint.",
)
NONFINITE_INPUT = Rule(
    "nonfinite-input",
    title="an input is NaN or infinite",
    explanation="The input vectors make the results NaN or infinite.",
    fix="Check the code that computes them. Padding must be finite too, because 0 · NaN is NaN.",
)
NONFINITE_RESULT = Rule(
    "nonfinite-result",
    title="a result is NaN or infinite",
    explanation="Weights and inputs are finite, and every token has a key: the forward or backward pass overflows.",
    fix="Run it in float32, or in bfloat16, which has the same range. The largest float16 is 65,504.",
)


@NONFINITE_WEIGHT.check(Stage.VALUES, order=10)
def weight_not_finite(observation: Observation) -> Match | None:
    """Match if a parameter has NaN or infinity."""
    assert observation.model is not None
    for name, weight in observation.model.named_parameters():
        count = int((~weight.detach().isfinite()).sum())
        if count:
            return Match(f"{name}, {count} of {weight.numel()}")
    return None


@NONFINITE_INPUT.check(Stage.VALUES, order=20)
def input_not_finite(observation: Observation) -> Match | None:
    """Match if the vectors of the source or target have NaN or infinity."""
    assert observation.run is not None
    for role, values in observation.run.inputs.items():
        if values.is_floating_point() and not bool(values.isfinite().all()):
            return Match(f"the {role}")
    return None


@NONFINITE_RESULT.check(Stage.MASKS, order=30, hides=("padding-attended", "text-ignored", "future-visible"))
def result_not_finite(observation: Observation) -> Match | None:
    """Match if a result or its gradient has NaN or infinity for no other reason."""
    if not bool(observation.nonfinite_B.any()):
        return None
    return Match(f"row {int(observation.nonfinite_B.nonzero()[0])}")
