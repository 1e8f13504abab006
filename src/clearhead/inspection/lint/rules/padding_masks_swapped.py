"""Padding masks of source and target that are swapped."""

from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.observation.observe import Observation
from clearhead.inspection.lint.rule import Match, Rule, Stage
from clearhead.inspection.lint.rules.text_ignored import hidden_from_itself

PADDING_MASKS_SWAPPED = Rule(
    "padding-masks-swapped",
    title="the padding masks of source and target are swapped",
    explanation="The attended positions are the real tokens of the other sequence.",
    fix="Give each attention the padding mask of its keys. In cross-attention the keys are source tokens.",
)


@PADDING_MASKS_SWAPPED.check(Stage.ATTENTION, order=70, hides=("padding-attended", "text-ignored"))
def other_keep_reached(pattern: AttentionPattern) -> Match | None:
    """Match if the reached keys are the real tokens of the other sequence."""
    pairs, keep_BM, other_BM = pattern.pairs, pattern.keep_BM, pattern.other_keep_BM
    padding_reached = bool((pattern.reached_BLM & pairs.padding_BLM).any())
    if not padding_reached and not bool(pattern.ignored_keys.any()):
        return None
    if other_BM is None or other_BM.shape != keep_BM.shape or bool(other_BM.all()):
        return None
    tested_BLM = pairs.allowed_BLM | pairs.padding_BLM
    tested_BM, reached_BM = tested_BLM.any(dim=1), (pattern.reached_BLM & tested_BLM).any(dim=1)
    if not bool(((reached_BM == other_BM) | ~tested_BM).all()):
        return None
    row, key = ((keep_BM != other_BM) & tested_BM).nonzero()[0].tolist()
    return Match(f"{pattern.name}, row {row}, position {key}")


@PADDING_MASKS_SWAPPED.check(Stage.TOKENS, order=10)
def padding_of_other_hidden(observation: Observation) -> Match | None:
    """Match if the real tokens that may not attend to themselves are padding of the other sequence."""
    hidden = hidden_from_itself(observation)
    if hidden is None:
        return None
    other_BL = hidden.other_real_BL
    if other_BL is None or other_BL.shape != hidden.token_BL.shape or bool((hidden.token_BL & other_BL).any()):
        return None
    return Match(hidden.where)
