"""Padding ids of a checkpoint that differ between its config and its tokenizer."""

from dataclasses import dataclass

from clearhead.inspection.lint.rule import Match, Rule, Stage

PADDING_ID_MISMATCH = Rule(
    "padding-id-mismatch",
    title="the padding id is another token's",
    explanation="Masks made as ids != pad_token_id mask that token, and leave the padding.",
    fix="Set pad_token_id in config.json to the tokenizer's id, unless the model was trained with the other.",
)


@dataclass(frozen=True)
class PaddingIds:
    """The padding ids of a checkpoint.

    Args:
        model: the id in config.json.
        model_token: the token of that id.
        tokenizer: the tokenizer's id.
        tokenizer_token: the token of that id.
    """

    model: int
    model_token: str
    tokenizer: int
    tokenizer_token: str


@PADDING_ID_MISMATCH.check(Stage.CHECKPOINT, order=10)
def ids_differ(ids: PaddingIds) -> Match | None:
    """Match if the ids differ."""
    if ids.model == ids.tokenizer:
        return None
    return Match(
        "config.json, pad_token_id",
        f"It is {ids.model}, which is {ids.model_token!r}; the tokenizer pads with {ids.tokenizer} "
        f"({ids.tokenizer_token}).",
        f'Set "pad_token_id": {ids.tokenizer} in config.json, unless the model was trained with the other.',
    )
