"""Logits processors: change the scores of the next token before it is chosen.

Each takes the scores (N, V), which it may modify, and the tokens of the targets so far (N, T), and returns new scores.
The scores are log-probabilities in a beam search, else logits, as in transformers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.generation.config import GenerationConfig

Scores = Float[Tensor, "N V"]
Ids = Int[Tensor, "N T"]
Processor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes scores (N, V), target ids (N, T) and source ids (N, M), and returns scores (N, V)."""

_FORBIDDEN = float("-inf")


@dataclass(frozen=True)
class ExcludedTokens:
    """Processor that forbids the same tokens for every target.

    Args:
        token_ids: the tokens.
        min_length: targets from this length on may have them; None for never.
    """

    token_ids: tuple[int, ...]
    min_length: int | None = None

    def at(self, length: int) -> tuple[int, ...]:
        """Return the tokens that must not follow targets of a length."""
        return self.token_ids if self.min_length is None or length < self.min_length else ()

    def __call__(self, scores: Scores, ids: Ids, source: Int[Tensor, "N M"]) -> Scores:
        excluded = self.at(ids.shape[1])
        return scores.index_fill_(1, ids.new_tensor(excluded), _FORBIDDEN) if excluded else scores


def excluded_tokens(processors: Sequence[Processor], length: int) -> list[int] | None:
    """Return the tokens that processors forbid after targets of a length; None if they do more than that."""
    excluded: list[int] = []
    for processor in processors:
        if not isinstance(processor, ExcludedTokens):
            return None
        excluded += processor.at(length)
    return excluded


def logits_processors(
    config: GenerationConfig, prefix_length: int, max_length: int, eos_ids: Sequence[int]
) -> list[Processor]:
    """Return the processors that a config requires, in transformers' order.

    Args:
        config: the options.
        prefix_length: number of given tokens at the start of the target.
        max_length: maximum length of the target, including its prefix.
        eos_ids: ids that end a target.
    """
    processors: list[Processor] = []

    def add(process: Callable[[Tensor, Tensor], Tensor]) -> None:
        processors.append(lambda scores, ids, source: process(scores, ids))

    if config.repetition_penalty != 1.0:
        add(partial(penalize_repetition, penalty=config.repetition_penalty))
    if config.no_repeat_ngram_size:
        add(partial(forbid_repeated_ngrams, size=config.no_repeat_ngram_size))
    if config.encoder_no_repeat_ngram_size:
        processors.append(partial(forbid_source_ngrams, size=config.encoder_no_repeat_ngram_size))
    if config.bad_words_ids:
        ends = {(eos_id,) for eos_id in eos_ids}
        words = [word for word in config.bad_words_ids if word not in ends]
        processors.append(ExcludedTokens(tuple(word[0] for word in words if len(word) == 1)))
        if any(len(word) > 1 for word in words):
            add(partial(forbid_words, words=[word for word in words if len(word) > 1]))
    min_length = config.min_target_length(prefix_length)
    if min_length > prefix_length:
        processors.append(ExcludedTokens(tuple(eos_ids), min_length))
    if config.forced_bos_token_id is not None:
        add(partial(force_tokens, position=1, allowed=[config.forced_bos_token_id]))
    if config.forced_eos_token_id:
        add(partial(force_tokens, position=max_length - 1, allowed=config.forced_eos_token_id))
    if config.renormalize_logits:
        processors.append(lambda scores, ids, source: scores.log_softmax(dim=1))
    return processors


def penalize_repetition(scores: Scores, ids: Ids, *, penalty: float) -> Scores:
    """Divide the score of each token that already occurs by the penalty θ if it is positive, else multiply it by θ.

    Source: Keskar et al. 2019, "CTRL", Section 4.1, with the sign minded
    """
    existing = scores.gather(1, ids)
    return scores.scatter(1, ids, torch.where(existing < 0, existing * penalty, existing / penalty))


def forbid_repeated_ngrams(scores: Scores, ids: Ids, *, size: int) -> Scores:
    """Forbid each token that would complete an n-gram which already occurs in the target.

    Source: Paulus et al. 2017, "A Deep Reinforced Model for Abstractive Summarization", Section 2.5
    """
    return forbid_source_ngrams(scores, ids, ids, size=size)


def forbid_source_ngrams(scores: Scores, ids: Ids, source: Int[Tensor, "N M"], *, size: int) -> Scores:
    """Forbid each token that would complete an n-gram of the source."""
    if ids.shape[1] < size - 1 or source.shape[1] < size:
        return scores
    begun = ids[:, ids.shape[1] - size + 1 :]
    ngrams_NWS = source.unfold(1, size, 1)
    rows, positions = (ngrams_NWS[:, :, :-1] == begun[:, None]).all(dim=-1).nonzero(as_tuple=True)
    return scores.index_put((rows, ngrams_NWS[rows, positions, -1]), scores.new_tensor(_FORBIDDEN))


def forbid_words(scores: Scores, ids: Ids, *, words: Sequence[tuple[int, ...]]) -> Scores:
    """Forbid each token that would complete one of these token id sequences."""
    for word in words:
        *begun, last = word
        if len(begun) <= ids.shape[1]:
            matches = (ids[:, ids.shape[1] - len(begun) :] == ids.new_tensor(begun)).all(dim=-1)
            scores[matches, last] = _FORBIDDEN
    return scores


def force_tokens(scores: Scores, ids: Ids, *, position: int, allowed: Sequence[int]) -> Scores:
    """Forbid all tokens except the allowed ones at one position of the target."""
    if ids.shape[1] != position:
        return scores
    return torch.full_like(scores, _FORBIDDEN).index_fill(1, ids.new_tensor(allowed), 0.0)


def warp_logits(scores: Scores, *, temperature: float, top_k: int, top_p: float) -> Scores:
    """Return the scores to draw from: divided by the temperature, and −∞ except for the most probable tokens.

    Equation: s / τ; then the k largest; then the fewest of these whose probabilities sum to p
    Source: Fan et al. 2018 (top-k); Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (top-p)

    Args:
        scores: logits (N, V).
        temperature: τ, above 0.
        top_k: number of tokens k; 0 for all.
        top_p: probability p, above 0 and up to 1.
    """
    scores = scores / temperature
    if 0 < top_k < scores.shape[1]:
        smallest_N1 = scores.topk(top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest_N1, _FORBIDDEN)
    if top_p < 1:
        ascending, indices = scores.sort(dim=1)
        forbidden = ascending.softmax(dim=1).cumsum(dim=1) <= 1 - top_p
        forbidden[:, -1] = False
        scores = scores.masked_fill(forbidden.scatter(1, indices, forbidden), _FORBIDDEN)
    return scores
