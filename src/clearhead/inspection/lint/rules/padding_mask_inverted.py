"""Padding masks with the opposite meaning of True."""

import torch

from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.observation.observe import Observation
from clearhead.inspection.lint.rule import Match, Rule, Stage

PADDING_MASK_INVERTED = Rule(
    "padding-mask-inverted",
    title="the padding mask is inverted",
    explanation="Padding is attended, and the text is ignored.",
    fix="Invert the mask (~mask). True means may attend here and in scaled_dot_product_attention; in torch.nn's masks "
    "it means may not attend.",
)


@PADDING_MASK_INVERTED.check(Stage.ATTENTION, order=20)
def only_padding_reached(pattern: AttentionPattern) -> Match | None:
    """Match if an attention reaches padding and no real key."""
    padding_BLM = pattern.reached_BLM & pattern.pairs.padding_BLM
    if pattern.reaches_nothing and bool(padding_BLM.any()):
        return Match(pattern.first(padding_BLM))
    return None


# an inverted padding mask and a causal mask together leave no part of the text
@PADDING_MASK_INVERTED.check(
    Stage.MASKS, order=10, hides=("padding-attended", "text-ignored", "future-visible", "nothing-attended")
)
def only_padding_open(observation: Observation) -> Match | None:
    """Match if the mask of an attention leaves exactly the padding."""
    for mask in observation.masks:
        source = not mask.decoding or mask.same is False
        keep_BM = observation.real_BM if source else observation.target_real_BL
        if keep_BM is None or mask.visible_BM is None or (mask.decoding and mask.same is None) or bool(keep_BM.all()):
            continue
        if torch.equal(mask.visible_BM, ~keep_BM):
            row, position = (~keep_BM).nonzero()[0].tolist()
            return Match(f"{mask.name}, row {row}, position {position}")
    return None
