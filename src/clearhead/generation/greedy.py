"""One token after the other: the most probable each time, or one that is drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.generation.logits_processors import Processor
from clearhead.generation.state import DecodingState, Hypothesis

Choose = Callable[[Tensor, Sequence[int]], Tensor]
"""Scores (N, V) and the numbers of their targets to the tokens (N,) that are chosen."""


@dataclass(frozen=True)
class NextToken:
    """A token that was chosen.

    Args:
        target: the number of its target.
        id: its id.
        log_prob: its log-probability.
        last: whether the target ends with it.
    """

    target: int
    id: int
    log_prob: float
    last: bool


def argmax(scores: Tensor, targets: Sequence[int]) -> Tensor:
    """The token with the highest score of each target."""
    return scores.argmax(dim=1)


def next_tokens(
    decoding: DecodingState, processors: Sequence[Processor], choose: Choose, limit: int, eos_ids: Sequence[int]
) -> Iterator[NextToken]:
    """The tokens of all targets as they are chosen, step by step.

    Equation: t_i = argmax_t P(t | t_<i, s); or t_i ~ P(t | t_<i, s)
    Source: Sutskever et al. 2014, "Sequence to Sequence Learning", Section 3.2, with one beam

    Args:
        decoding: the sentences, with one target each; of several samples each is a sentence.
        processors: what changes the scores.
        choose: what chooses by the scores.
        limit: greatest length of a target.
        eos_ids: the ids that end one.
    """
    ends = frozenset(eos_ids)
    while decoding.sentences:
        scores = decoding.logits()
        for process in processors:
            scores = process(scores, decoding.ids, decoding.source_ids)
        tokens = choose(scores, decoding.sentences)
        log_probs = scores.log_softmax(dim=1).gather(1, tokens[:, None])[:, 0].tolist()
        decoding.append(tokens)
        full = decoding.length >= limit
        staying: list[int] = []
        found: list[NextToken] = []
        for place, (target, token) in enumerate(zip(decoding.sentences, tokens.tolist(), strict=True)):
            last = full or token in ends
            found.append(NextToken(target, token, log_probs[place], last))
            if not last:
                staying.append(place)
        yield from found
        if len(staying) < len(decoding.sentences):
            decoding.leave(staying)


def collect_hypotheses(tokens: Iterator[NextToken], targets: int, length_penalty: float) -> list[Hypothesis]:
    """The outputs of all targets, in order."""
    found: list[list[NextToken]] = [[] for _ in range(targets)]
    for token in tokens:
        found[token.target].append(token)
    outputs = []
    for chosen in found:
        log_probs = tuple(token.log_prob for token in chosen)
        score = sum(log_probs) / len(log_probs) ** length_penalty
        outputs.append(Hypothesis(tuple(token.id for token in chosen), log_probs, score))
    return outputs


@torch.no_grad()
def greedy_search(
    decoding: DecodingState, processors: Sequence[Processor], limit: int, eos_ids: Sequence[int], length_penalty: float
) -> list[Hypothesis]:
    """The output of each sentence when the most probable token is taken at each step."""
    targets = len(decoding.sentences)
    return collect_hypotheses(next_tokens(decoding, processors, argmax, limit, eos_ids), targets, length_penalty)
