"""Padding that real tokens attend to."""

from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.rule import Match, Rule, Stage

PADDING_ATTENDED = Rule(
    "padding-attended",
    title="padding is attended",
    explanation="The content of the padding changes the result, which then depends on the batch.",
    fix="Pass a padding mask: masks.padding(ids != pad_id), attention_mask in transformers, src_key_padding_mask and "
    "memory_key_padding_mask in torch.nn.",
)


@PADDING_ATTENDED.check(Stage.ATTENTION, order=80)
def padding_reached(pattern: AttentionPattern) -> Match | None:
    """Match if a real query reaches padding."""
    padding_BLM = pattern.reached_BLM & pattern.pairs.padding_BLM
    return Match(pattern.first(padding_BLM, "reaches")) if bool(padding_BLM.any()) else None
