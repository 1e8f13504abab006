"""Float masks that are added to the scores without masking a key."""

from clearhead.inspection.lint.observation.float_masks import FloatMask
from clearhead.inspection.lint.observation.masks import open_pairs
from clearhead.inspection.lint.rule import Match, Rule, Stage

FLOAT_MASK_INEFFECTIVE = Rule(
    "float-mask-ineffective",
    title="a float mask masks nothing",
    explanation="A float mask is added to the scores. No value is low enough to make a weight 0.",
    fix="Convert it to bool (mask != 0), or use 0 where attention is allowed and -inf where it is not.",
)


# mostly 0 and 1, meant as False and True
@FLOAT_MASK_INEFFECTIVE.check(Stage.FLOAT_MASK, order=10, hides=("padding-attended", "future-visible"))
def every_key_open(mask: FloatMask) -> Match | None:
    """Match if a float mask leaves every key open."""
    if not bool(open_pairs(mask.bias).all()):
        return None
    low, high = float(mask.bias.min()), float(mask.bias.max())
    return Match(mask.name, f"Its values are from {low:g} to {high:g}.")
