"""Beam search: keep several hypotheses of each sentence, all of the same length, and continue the best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.finite import check_scores
from clearhead.generation.config import GenerationConfig
from clearhead.generation.logits_processors import Processor, excluded_tokens
from clearhead.generation.state import DecodingState, GenerationModel, Hypothesis
from clearhead.generation.strategy import (
    LOG_PROBS,
    EncodedSource,
    NextToken,
    SearchStrategy,
    start_decoding,
)
from clearhead.kernels.topk import topk

_EXCLUDED = -1.0e9
"""Added to the score of an excluded candidate; the value of transformers, so that ties are broken in the same way."""


@torch.no_grad()
def beam_search(
    state: DecodingState,
    processors: Sequence[Processor],
    config: GenerationConfig,
    max_length: int,
    eos_ids: Sequence[int],
) -> list[list[Hypothesis]]:
    """Return the best finished hypotheses of each sentence, best first.

    Equation: score(t) = Σ_i log P(t_i | t_<i, s) / |t|^α
    Source: Section 6.1 of "Attention Is All You Need"; Wu et al. 2016, "Google's Neural Machine Translation System",
        Section 7, whose length penalty is another. When a sentence stops is transformers' rule

    Each step considers the 2 · beam_size best continuations of a sentence, or more with several end tokens. Those of
    the first beam_size that end are finished; the best beam_size that do not end continue.

    Args:
        state: the sentences, with one target each.
        processors: logits processors; they receive log-probabilities.
        config: beam_size, length_penalty α, early_stopping and num_return_sequences.
        max_length: maximum length of a target, including its prefix.
        eos_ids: ids that end a target.

    Raises:
        NonFiniteError: the log-probabilities of a sentence hold NaN.
    """
    beams = config.beam_size
    finished: list[list[Hypothesis]] = [[] for _ in state.sentences]
    device = state.ids.device
    running_SB = torch.full((len(state.sentences), beams), _EXCLUDED, device=device)
    running_SB[:, 0] = 0.0
    log_probs_NT = torch.zeros(len(state.sentences) * beams, 0, device=device)
    ends = torch.tensor(eos_ids, device=device, dtype=torch.long)
    while True:
        candidates = _best_continuations(state, processors, running_SB, max(2, 1 + len(eos_ids)) * beams)
        check_scores(candidates.scores_SC[:, 0].tolist(), LOG_PROBS, state.sentences)  # topk ranks NaN first
        is_full = state.length + 1 >= max_length
        ended_SC = torch.isin(candidates.tokens_SC, ends) | is_full
        new = state.length + 1 - state.prefix_length
        _add_finished(finished, state, candidates, ended_SC[:, :beams], log_probs_NT, config)
        if is_full:
            break
        running_SB, columns_SB = (candidates.scores_SC + ended_SC * _EXCLUDED).topk(beams, dim=1)
        rows = candidates.rows_SC.gather(1, columns_SB).flatten()
        state.append(candidates.tokens_SC.gather(1, columns_SB).flatten(), rows)
        chosen_N1 = candidates.log_probs_SC.gather(1, columns_SB).flatten()[:, None]
        log_probs_NT = torch.cat([log_probs_NT[rows], chosen_N1], dim=1)
        best_running = running_SB[:, 0].tolist()
        unfinished = [
            index
            for index, sentence in enumerate(state.sentences)
            if _can_improve(finished[sentence], best_running[index], new, max_length - state.prefix_length, config)
        ]
        if not unfinished:
            break
        if len(unfinished) < len(state.sentences):
            kept_rows = state.drop_finished(unfinished)
            running_SB, log_probs_NT = running_SB[unfinished], log_probs_NT[kept_rows]
    return [hypotheses[: config.num_return_sequences] for hypotheses in finished]


@dataclass(frozen=True)
class _Candidates:
    """Continuations (S, C) of S sentences, best first.

    Args:
        scores_SC: sum of the log-probabilities of each.
        rows_SC: row of the target that each continues.
        tokens_SC: last token of each.
        log_probs_SC: log-probability of that token.
    """

    scores_SC: Tensor
    rows_SC: Tensor
    tokens_SC: Tensor
    log_probs_SC: Tensor


def _best_continuations(
    state: DecodingState, processors: Sequence[Processor], running_SB: Tensor, count: int
) -> _Candidates:
    """Run one step of the decoder, and return the best continuations of each sentence.

    Args:
        state: the sentences; before the first step, the beams of a sentence share one target.
        processors: logits processors.
        running_SB: sum of the log-probabilities of each beam.
        count: number of continuations C.
    """
    beams = running_SB.shape[1]
    each_NC, tokens_NC = _best_tokens(state, processors, count)
    if state.num_beams < beams:
        state.expand_beams(beams)
        each_NC, tokens_NC = (x_NC.repeat_interleave(beams, dim=0) for x_NC in (each_NC, tokens_NC))
    total_SC = (each_NC.view(-1, beams, each_NC.shape[1]) + running_SB[:, :, None]).flatten(1)
    top_SC, indices_SC = total_SC.topk(count, dim=1)
    first_row_S1 = torch.arange(len(top_SC), device=top_SC.device)[:, None] * beams
    rows_SC = first_row_S1 + indices_SC // each_NC.shape[1]
    tokens_SC, chosen_SC = (x_NC.reshape(total_SC.shape).gather(1, indices_SC) for x_NC in (tokens_NC, each_NC))
    return _Candidates(top_SC, rows_SC, tokens_SC, chosen_SC)


def _best_tokens(state: DecodingState, processors: Sequence[Processor], count: int) -> tuple[Tensor, Tensor]:
    """Return the best next tokens (N, C) of each target and their log-probabilities, after the processors."""
    excluded = excluded_tokens(processors, state.length)
    if state.is_fused and excluded is not None:
        return state.best_tokens(count, excluded, renormalize=False)
    logits_NV = state.logits()
    scores_NV = torch.log_softmax(logits_NV, dim=1, out=logits_NV)  # in place: allocating took half of the time
    for process in processors:
        scores_NV = process(scores_NV, state.ids, state.source_rows())
    return topk(scores_NV, count)


def _add_finished(
    finished: list[list[Hypothesis]],
    state: DecodingState,
    candidates: _Candidates,
    ended_SB: Tensor,
    log_probs_NT: Tensor,
    config: GenerationConfig,
) -> None:
    """Add the candidates that ended to the finished hypotheses of their sentences, which keep the best beam_size."""
    new = state.length + 1 - state.prefix_length
    ended = ended_SB.nonzero(as_tuple=True)
    fields = (candidates.rows_SC, candidates.tokens_SC, candidates.scores_SC, candidates.log_probs_SC)
    columns = [ended[0].tolist(), *(field_SC[ended].tolist() for field_SC in fields)]
    for index, row, token, total, log_prob in zip(*columns, strict=True):
        hypotheses = finished[state.sentences[index]]
        if hypotheses and total < _EXCLUDED / 2:
            continue  # not a real beam: there are fewer hypotheses than beams
        score = total / new**config.length_penalty
        if len(hypotheses) == config.beam_size and score <= hypotheses[-1].score:
            continue
        ids = (*state.ids[row, state.prefix_length :].tolist(), token)
        hypotheses.append(Hypothesis(ids, (*log_probs_NT[row].tolist(), log_prob), score))
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        del hypotheses[config.beam_size :]


def _can_improve(finished: list[Hypothesis], running: float, new: int, max_new: int, config: GenerationConfig) -> bool:
    """Return whether a running hypothesis of a sentence can still become one of the best.

    Args:
        finished: finished hypotheses of the sentence.
        running: sum of log-probabilities of the best running hypothesis.
        new: its number of new tokens.
        max_new: maximum number of new tokens.
        config: the rule, early_stopping, and the length penalty.
    """
    if len(finished) < config.beam_size:
        return True
    if config.early_stopping is True:
        return False
    at_any_length = config.early_stopping == "never" and config.length_penalty > 0
    possible: float = running / (max_new if at_any_length else new) ** config.length_penalty
    return possible > finished[-1].score


class BeamSearch(SearchStrategy):
    """The strategy for several beams."""

    score_copies = 2

    def supports(self, config: GenerationConfig) -> bool:
        return config.beam_size > 1

    def rows_per_source(self, config: GenerationConfig) -> int:
        return config.beam_size

    def describe(self, config: GenerationConfig) -> str:
        return f"{config.beam_size} beams"

    def search(
        self, model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig
    ) -> list[list[Hypothesis]]:
        task = start_decoding(model, sources, config)
        return beam_search(task.state, task.processors, config, task.max_length, task.eos_ids)

    def stream(
        self, model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig
    ) -> Iterator[NextToken]:
        raise ValueError("a beam search chooses its tokens at the end: a stream requires beam_size=1")
