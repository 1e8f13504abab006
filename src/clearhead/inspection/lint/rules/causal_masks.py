"""Causal masks that are inverted, missing, or in the wrong attention."""

import torch

from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.observation.observe import Observation
from clearhead.inspection.lint.rule import Match, Rule, Stage

CAUSAL_MASK_INVERTED = Rule(
    "causal-mask-inverted",
    title="the causal mask is inverted",
    explanation="A token reaches tokens after it and no token before it.",
    fix="Invert the mask (~mask) or transpose it. Use masks.causal(n) here, and "
    "nn.Transformer.generate_square_subsequent_mask(n) in torch.nn.",
)
FUTURE_VISIBLE = Rule(
    "future-visible",
    title="the decoder sees the future",
    explanation="A token reaches a token after it. A decoder trained this way learns to copy and generates nonsense.",
    fix="Give the decoder's self-attention a causal mask: masks.causal(n), or tgt_mask in torch.nn.",
)
CROSS_ATTENTION_CAUSAL = Rule(
    "cross-attention-causal",
    title="cross-attention is causal",
    explanation="A target token reaches no source token after its own position.",
    fix="Use the causal mask only in the decoder's self-attention. No source token is in the future.",
)
ENCODER_CAUSAL = Rule(
    "encoder-causal",
    title="the encoder is causal",
    explanation="No token reaches a token after it.",
    fix="Use the causal mask only in the decoder: an encoder sees the whole text. (A decoder without an encoder needs "
    "this mask.)",
)


@CAUSAL_MASK_INVERTED.check(Stage.ATTENTION, order=10)
def only_later_keys(pattern: AttentionPattern) -> Match | None:
    """Match if a causal attention reaches keys after the query and none before it."""
    later_BLM = pattern.reached_BLM & pattern.pairs.later_BLM
    if pattern.reaches_nothing and pattern.pairs.causal and bool(later_BLM.any()):
        return Match(pattern.first(later_BLM))
    return None


@FUTURE_VISIBLE.check(Stage.ATTENTION, order=40)
def later_keys(pattern: AttentionPattern) -> Match | None:
    """Match if a causal attention reaches a key after the query."""
    later_BLM = pattern.reached_BLM & pattern.pairs.later_BLM
    if pattern.pairs.causal and bool(later_BLM.any()):
        return Match(pattern.first(later_BLM))
    return None


@CROSS_ATTENTION_CAUSAL.check(Stage.ATTENTION, order=50)
def no_later_source(pattern: AttentionPattern) -> Match | None:
    """Match if exactly the source tokens after the query's position are not reached."""
    if pattern.same:
        return None
    reached_BLM = pattern.reached_BLM & pattern.pairs.allowed_BLM
    missed_BLM = ~pattern.reached_BLM & pattern.pairs.allowed_BLM
    by_some_BM = reached_BLM.any(dim=1) & missed_BLM.any(dim=1)
    if bool(by_some_BM.any()) and torch.equal(missed_BLM, pattern.pairs.later_BLM):
        return Match(pattern.first(missed_BLM))
    return None


@ENCODER_CAUSAL.check(Stage.ATTENTION, order=60)
def no_later_keys(pattern: AttentionPattern) -> Match | None:
    """Match if an attention in both directions reaches no key after the query."""
    pairs = pattern.pairs
    both_directions = pattern.same and bool(pairs.later_BLM.any()) and bool(pairs.earlier_BLM.any())
    if not pairs.causal and both_directions and not bool((pattern.reached_BLM & pairs.later_BLM).any()):
        return Match(pattern.first(pairs.later_BLM))
    return None


@ENCODER_CAUSAL.check(Stage.TOKENS, order=30)
def causal_layer(observation: Observation) -> Match | None:
    """Match if the mask of one encoder layer is causal while other layers hide the effect."""
    real_BM = observation.real_BM
    followed_BM = real_BM & (real_BM.flip(1).cumsum(dim=1).flip(1) > 1)
    if observation.single_attention or not bool(followed_BM.any()):
        return None
    for mask in observation.masks:
        if mask.decoding or mask.later_BL is None or mask.earlier_BL is None:
            continue
        if not bool((mask.later_BL & followed_BM).any()) and bool((mask.earlier_BL & real_BM).any()):
            row, position = followed_BM.nonzero()[0].tolist()
            return Match(f"{mask.name}, row {row}, position {position}")
    return None
