"""What changes the scores of the next token before one is chosen.

Each takes the scores (N, V), which it may write into, and the target's tokens so far (N, T), and gives new scores. In a
beam search the scores are log-probabilities, else logits, as in transformers.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.generation.config import GenerationConfig

Scores = Float[Tensor, "N V"]
Ids = Int[Tensor, "N T"]
Processor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Scores (N, V), target ids (N, T) and source ids (N, M) to scores."""

_NEVER = float("-inf")


def processors(settings: GenerationConfig, prompt: int, limit: int, eos_ids: Sequence[int]) -> list[Processor]:
    """What the settings ask for, in transformers' order.

    Args:
        settings: how to generate.
        prompt: tokens that the target starts with.
        limit: its greatest length.
        eos_ids: the ids that end a target.
    """
    chosen: list[Processor] = []

    def add(process: Callable[[Tensor, Tensor], Tensor]) -> None:
        chosen.append(lambda scores, ids, source: process(scores, ids))

    if settings.repetition_penalty != 1.0:
        add(partial(penalise_repetition, penalty=settings.repetition_penalty))
    if settings.no_repeat_ngram_size:
        add(partial(forbid_repeated_ngrams, size=settings.no_repeat_ngram_size))
    if settings.encoder_no_repeat_ngram_size:
        chosen.append(partial(forbid_source_ngrams, size=settings.encoder_no_repeat_ngram_size))
    if settings.bad_words_ids:
        ends = {(number,) for number in eos_ids}
        add(partial(forbid_words, words=[words for words in settings.bad_words_ids if words not in ends]))
    least = max(settings.min_length, prompt + (settings.min_new_tokens or 0))
    if least > prompt:
        add(partial(forbid_early_end, least=least, eos_ids=eos_ids))
    if settings.forced_bos_token_id is not None:
        add(partial(force_tokens, at=1, allowed=[settings.forced_bos_token_id]))
    if settings.forced_eos_token_id:
        add(partial(force_tokens, at=limit - 1, allowed=settings.forced_eos_token_id))
    if settings.renormalize_logits:
        chosen.append(lambda scores, ids, source: scores.log_softmax(dim=1))
    return chosen


def penalise_repetition(scores: Scores, ids: Ids, *, penalty: float) -> Scores:
    """Tokens that were there get a score of s / θ where it is positive, else s · θ.

    Source: Keskar et al. 2019, "CTRL", Section 4.1, with the sign minded
    """
    there = scores.gather(1, ids)
    return scores.scatter(1, ids, torch.where(there < 0, there * penalty, there / penalty))


def forbid_repeated_ngrams(scores: Scores, ids: Ids, *, size: int) -> Scores:
    """No token that would complete an n-gram which the target holds already.

    Source: Paulus et al. 2017, "A Deep Reinforced Model for Abstractive Summarization", Section 2.5
    """
    return forbid_source_ngrams(scores, ids, ids, size=size)


def forbid_source_ngrams(scores: Scores, ids: Ids, source: Int[Tensor, "N M"], *, size: int) -> Scores:
    """No token that would complete an n-gram of the source."""
    if ids.shape[1] < size - 1 or source.shape[1] < size:
        return scores
    begun = ids[:, ids.shape[1] - size + 1 :]
    windows_NWS = source.unfold(1, size, 1)
    rows, places = (windows_NWS[:, :, :-1] == begun[:, None]).all(dim=-1).nonzero(as_tuple=True)
    return scores.index_put((rows, windows_NWS[rows, places, -1]), scores.new_tensor(_NEVER))


def forbid_words(scores: Scores, ids: Ids, *, words: Sequence[tuple[int, ...]]) -> Scores:
    """No token that would complete one of these sequences of ids."""
    for word in words:
        *begun, last = word
        if len(begun) <= ids.shape[1]:
            matches = (ids[:, ids.shape[1] - len(begun) :] == ids.new_tensor(begun)).all(dim=-1)
            scores[matches, last] = _NEVER
    return scores


def forbid_early_end(scores: Scores, ids: Ids, *, least: int, eos_ids: Sequence[int]) -> Scores:
    """No end before the least length."""
    if ids.shape[1] >= least:
        return scores
    return scores.index_fill_(1, ids.new_tensor(eos_ids), _NEVER)


def force_tokens(scores: Scores, ids: Ids, *, at: int, allowed: Sequence[int]) -> Scores:
    """Nothing but the allowed tokens where the target has a certain length."""
    if ids.shape[1] != at:
        return scores
    return torch.full_like(scores, _NEVER).index_fill(1, ids.new_tensor(allowed), 0.0)


def warp_logits(scores: Scores, *, temperature: float, top_k: int, top_p: float) -> Scores:
    """The scores to draw from: divided by the temperature, and −∞ but for the most probable tokens.

    Equation: s / τ; then the k largest; then the fewest of these whose probabilities sum to p
    Source: Fan et al. 2018 (top-k); Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (top-p)
    """
    scores = scores / temperature
    if 0 < top_k < scores.shape[1]:
        least_N1 = scores.topk(top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least_N1, _NEVER)
    if top_p < 1:
        ordered, places = scores.sort(dim=1)
        out = ordered.softmax(dim=1).cumsum(dim=1) <= 1 - top_p
        out[:, -1] = False
        scores = scores.masked_fill(out.scatter(1, places, out), _NEVER)
    return scores
