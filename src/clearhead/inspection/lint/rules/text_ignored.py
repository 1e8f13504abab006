"""Real tokens that a mask hides."""

from dataclasses import dataclass

from torch import Tensor

from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.observation.observe import Observation
from clearhead.inspection.lint.rule import Match, Rule, Stage

TEXT_IGNORED = Rule(
    "text-ignored",
    title="text is ignored",
    explanation="The mask treats a real token as padding.",
    fix="Check the padding of the mask: pad_id may be the id of a word, or the mask may belong to another batch.",
)


@dataclass(frozen=True)
class HiddenTokens:
    """Real tokens that may not attend to themselves.

    Args:
        where: attention, row and position of the first one.
        token_BL: the tokens.
        other_real_BL: real tokens of the other sequence, if there is one.
    """

    where: str
    token_BL: Tensor
    other_real_BL: Tensor | None


@TEXT_IGNORED.check(Stage.ATTENTION, order=90)
def real_key_not_reached(pattern: AttentionPattern) -> Match | None:
    """Match if no other token reaches a real key that one must reach."""
    if not bool(pattern.ignored_keys.any()):
        return None
    row, key = pattern.ignored_keys.nonzero()[0].tolist()
    return Match(f"{pattern.name}, row {row}, position {key}", "No other token reaches this real token.")


# under a causal mask, no other token depends on the last one
@TEXT_IGNORED.check(Stage.TOKENS, order=20)
def token_hidden_from_itself(observation: Observation) -> Match | None:
    """Match if a real token may not attend to itself."""
    hidden = hidden_from_itself(observation)
    return None if hidden is None else Match(hidden.where, "This real token may not attend to itself.")


def hidden_from_itself(observation: Observation) -> HiddenTokens | None:
    """Return the real tokens that may not attend to themselves, of the first attention that has some."""
    source_BM, target_BL = observation.real_BM, observation.target_real_BL
    for mask in observation.masks:
        real_BL, other_BL = (target_BL, source_BM) if mask.decoding else (source_BM, target_BL)
        if real_BL is None or mask.self_hidden_BL is None:
            continue
        token_BL = mask.self_hidden_BL & real_BL
        if bool(token_BL.any()):
            row, position = token_BL.nonzero()[0].tolist()
            return HiddenTokens(f"{mask.name}, row {row}, position {position}", token_BL, other_BL)
    return None
