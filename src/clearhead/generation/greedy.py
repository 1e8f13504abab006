"""Greedy search: choose the most probable token at each step."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from clearhead.finite import check_scores
from clearhead.generation.config import GenerationConfig
from clearhead.generation.logits_processors import Processor, excluded_tokens
from clearhead.generation.state import DecodingState, GenerationModel, Hypothesis
from clearhead.generation.strategy import (
    LOG_PROBS,
    DecodingTask,
    EncodedSource,
    NextToken,
    SearchStrategy,
    start_decoding,
)

Choose = Callable[[Tensor, Sequence[int]], Tensor]
"""Chooses tokens (N,) from scores (N, V) and the indices of their targets."""


def argmax(scores: Tensor, targets: Sequence[int]) -> Tensor:
    """Return the token with the highest score of each target."""
    return scores.argmax(dim=1)


def next_tokens(
    state: DecodingState, processors: Sequence[Processor], choose: Choose, max_length: int, eos_ids: Sequence[int]
) -> Iterator[NextToken]:
    """Yield the tokens of all targets step by step.

    Equation: t_i = argmax_t P(t | t_<i, s); or t_i ~ P(t | t_<i, s)
    Source: Sutskever et al. 2014, "Sequence to Sequence Learning", Section 3.2, with one beam

    Args:
        state: the sentences, with one target each; each sample of a source counts as a sentence.
        processors: logits processors.
        choose: chooses a token of each target from the scores.
        max_length: maximum length of a target, including its prefix.
        eos_ids: ids that end a target.
    """
    ends = frozenset(eos_ids)
    while state.sentences:
        excluded = excluded_tokens(processors, state.length)
        if choose is argmax and state.is_fused and excluded is not None:
            log_probs_N1, tokens_N1 = state.best_tokens(1, excluded, renormalize=True)
            tokens = tokens_N1[:, 0]
        else:
            scores = state.logits()
            for process in processors:
                scores = process(scores, state.ids, state.source_ids)
            tokens = choose(scores, state.sentences)
            log_probs_N1 = scores.log_softmax(dim=1).gather(1, tokens[:, None])
        log_probs = log_probs_N1[:, 0].tolist()
        state.append(tokens)
        is_full = state.length >= max_length
        unfinished: list[int] = []
        chosen: list[NextToken] = []
        for index, (target, token) in enumerate(zip(state.sentences, tokens.tolist(), strict=True)):
            is_last = is_full or token in ends
            chosen.append(NextToken(target, token, log_probs[index], is_last))
            if not is_last:
                unfinished.append(index)
        yield from chosen
        if len(unfinished) < len(state.sentences):
            state.drop_finished(unfinished)


def checked_tokens(task: DecodingTask, choose: Choose) -> Iterator[NextToken]:
    """Yield tokens as `next_tokens` does, and check their log-probabilities.

    Raises:
        NonFiniteError: the log-probabilities of a target hold NaN.
    """
    for token in next_tokens(task.state, task.processors, choose, task.max_length, task.eos_ids):
        check_scores([token.log_prob], LOG_PROBS, [token.target])
        yield token


def collect_hypotheses(tokens: Iterator[NextToken], num_targets: int, length_penalty: float) -> list[Hypothesis]:
    """Return the output of each target, in order."""
    by_target: list[list[NextToken]] = [[] for _ in range(num_targets)]
    for token in tokens:
        by_target[token.target].append(token)
    outputs = []
    for chosen in by_target:
        log_probs = tuple(token.log_prob for token in chosen)
        score = sum(log_probs) / len(log_probs) ** length_penalty
        outputs.append(Hypothesis(tuple(token.id for token in chosen), log_probs, score))
    return outputs


@torch.no_grad()
def greedy_search(
    state: DecodingState,
    processors: Sequence[Processor],
    max_length: int,
    eos_ids: Sequence[int],
    length_penalty: float,
) -> list[Hypothesis]:
    """Return the output of each sentence when the most probable token is chosen at each step; as `next_tokens`."""
    tokens = next_tokens(state, processors, argmax, max_length, eos_ids)
    return collect_hypotheses(tokens, len(state.sentences), length_penalty)


class GreedySearch(SearchStrategy):
    """The strategy for one beam without sampling."""

    score_copies = 2

    def supports(self, config: GenerationConfig) -> bool:
        return config.beam_size == 1 and not config.do_sample

    def rows_per_source(self, config: GenerationConfig) -> int:
        return 1

    def describe(self, config: GenerationConfig) -> str:
        return "1 beam"

    def search(
        self, model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig
    ) -> list[list[Hypothesis]]:
        tokens = self.stream(model, sources, config)
        return [[output] for output in collect_hypotheses(tokens, len(sources), config.length_penalty)]

    def stream(
        self, model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig
    ) -> Iterator[NextToken]:
        return checked_tokens(start_decoding(model, sources, config), argmax)
