"""Queries without keys."""

from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.observation.observe import Observation
from clearhead.inspection.lint.rule import Match, Rule, Stage

NOTHING_ATTENDED = Rule(
    "nothing-attended",
    title="nothing is attended",
    explanation="No token reaches any other token: every row is fully masked, or the output of attention is lost.",
    fix="Check the polarity of the mask, and float masks that are -inf everywhere.",
)
FULLY_MASKED_ROW = Rule(
    "fully-masked-row",
    title="a row is fully masked",
    explanation="This token may attend to nothing. Some kernels return NaN for it, others the mean of all tokens or "
    "zeros.",
    fix="Allow each token at least one key, such as itself, and check the polarity of the mask.",
)


@NOTHING_ATTENDED.check(Stage.ATTENTION, order=30)
def no_key_reached(pattern: AttentionPattern) -> Match | None:
    """Match if no query reaches any key that it may reach."""
    return Match(pattern.first(pattern.pairs.allowed_BLM)) if pattern.reaches_nothing else None


# a query that finite numbers mask everywhere attends to all keys equally, and passes them to the next layer
@FULLY_MASKED_ROW.check(Stage.MASKS, order=20, hides=("padding-attended", "text-ignored", "future-visible"))
def query_without_keys(observation: Observation) -> Match | None:
    """Match if a real query has no key, or padding has none and makes the row of its text NaN."""
    for mask in observation.masks:
        real_BL = observation.target_real_BL if mask.decoding else observation.real_BM
        if real_BL is None or mask.keyless_BL is None:
            continue
        keyless_BL = mask.keyless_BL & (real_BL | observation.nonfinite_B[:, None])
        if bool(keyless_BL.any()):
            row, position = keyless_BL.nonzero()[0].tolist()
            return Match(f"{mask.name}, row {row}, position {position}")
    return None
