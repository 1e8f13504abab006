"""Beam search: several hypotheses for each sentence, all of the same length, the best of which go on."""

from collections.abc import Sequence

import torch

from clearhead.finite import check_scores
from clearhead.generation.config import GenerationConfig
from clearhead.generation.logits_processors import Processor
from clearhead.generation.state import DecodingState, Hypothesis
from clearhead.kernels.topk import topk

_OUT = -1.0e9
"""Added to the score of what must not be chosen; as in transformers, so that ties fall alike."""


LOG_PROBS = "log-probabilities"
"""The name of a search's scores in error messages."""


@torch.no_grad()
def beam_search(
    decoding: DecodingState,
    processors: Sequence[Processor],
    settings: GenerationConfig,
    limit: int,
    eos_ids: Sequence[int],
) -> list[list[Hypothesis]]:
    """The best finished hypotheses of each sentence, best first.

    Equation: score(t) = Σ_i log P(t_i | t_<i, s) / |t|^α
    Source: Section 6.1 of "Attention Is All You Need"; Wu et al. 2016, "Google's Neural Machine Translation System",
        Section 7, whose length penalty is another. When a sentence stops is transformers' rule

    Args:
        decoding: the sentences, with one target each.
        processors: what changes the log-probabilities.
        settings: beam_size, length_penalty α, early_stopping and num_return_sequences.
        limit: greatest length of a target, its prompt included.
        eos_ids: the ids that end one.

    Raises:
        NonFiniteError: the log-probabilities of a sentence hold NaN.

    At each step the 2 · beam_size best continuations of a sentence are looked at (more with several end tokens). Those
    of the first beam_size that end are finished; the best beam_size that do not end go on.
    """
    beams, sentences = settings.beam_size, len(decoding.sentences)
    finished: list[list[Hypothesis]] = [[] for _ in range(sentences)]
    device = decoding.ids.device
    running_SB = torch.full((sentences, beams), _OUT, device=device)
    running_SB[:, 0] = 0.0
    log_probs_NT = torch.zeros(sentences * beams, 0, device=device)
    candidates = max(2, 1 + len(eos_ids)) * beams
    ends = torch.tensor(eos_ids, device=device, dtype=torch.long)
    while True:
        logits_NV = decoding.logits()
        scores_NV = torch.log_softmax(logits_NV, dim=1, out=logits_NV)  # in place: half of the time was writing anew
        sources = decoding.sources()
        for process in processors:
            scores_NV = process(scores_NV, decoding.ids, sources)
        each_NC, tokens_NC = topk(scores_NV, candidates)
        if decoding.num_beams < beams:  # until its first tokens are chosen a sentence's beams are one
            decoding.expand_beams(beams)
            each_NC, tokens_NC = (x_NC.repeat_interleave(beams, dim=0) for x_NC in (each_NC, tokens_NC))
        total_SC = (each_NC.view(-1, beams, each_NC.shape[1]) + running_SB[:, :, None]).flatten(1)
        top_SC, places_SC = total_SC.topk(candidates, dim=1)
        first_row_S1 = torch.arange(len(top_SC), device=device)[:, None] * beams
        rows_SC = first_row_S1 + places_SC // each_NC.shape[1]
        tokens_SC, chosen_SC = (x_NC.reshape(total_SC.shape).gather(1, places_SC) for x_NC in (tokens_NC, each_NC))
        check_scores(top_SC[:, 0].tolist(), LOG_PROBS, decoding.sentences)  # NaN is the largest for topk
        ended_SC = torch.isin(tokens_SC, ends) | (decoding.length + 1 >= limit)
        new = decoding.length + 1 - decoding.prompt
        for place, column in ended_SC[:, :beams].nonzero().tolist():
            row = int(rows_SC[place, column])
            ids = (*decoding.ids[row, decoding.prompt :].tolist(), int(tokens_SC[place, column]))
            each = (*log_probs_NT[row].tolist(), float(chosen_SC[place, column]))
            score = float(top_SC[place, column]) / new**settings.length_penalty
            held = finished[decoding.sentences[place]]
            if held and float(top_SC[place, column]) < _OUT / 2:
                continue  # a beam that never was alive: there are fewer hypotheses than were asked for
            held.append(Hypothesis(ids, each, score))
            held.sort(key=lambda hypothesis: -hypothesis.score)
            del held[beams:]
        if decoding.length + 1 >= limit:
            break
        running_SB, columns_SB = (top_SC + ended_SC * _OUT).topk(beams, dim=1)
        rows = rows_SC.gather(1, columns_SB).flatten()
        decoding.append(tokens_SC.gather(1, columns_SB).flatten(), rows)
        log_probs_NT = torch.cat([log_probs_NT[rows], chosen_SC.gather(1, columns_SB).flatten()[:, None]], dim=1)
        best_running = running_SB[:, 0].tolist()
        staying = [
            place
            for place, sentence in enumerate(decoding.sentences)
            if _can_improve(finished[sentence], best_running[place], new, limit - decoding.prompt, settings)
        ]
        if not staying:
            break
        if len(staying) < len(decoding.sentences):
            kept = decoding.leave(staying)
            running_SB, log_probs_NT = running_SB[staying], log_probs_NT[kept]
    return [held[: settings.num_return_sequences] for held in finished]


def _can_improve(
    finished: list[Hypothesis], running: float, new: int, longest: int, settings: GenerationConfig
) -> bool:
    """Whether a sentence's beams can still find something that counts.

    Args:
        finished: its finished hypotheses.
        running: the sum of log-probabilities of the best that goes on.
        new, longest: new tokens that this one has, and could have.
        settings: the rule.
    """
    if len(finished) < settings.beam_size:
        return True
    if settings.early_stopping is True:
        return False
    far = settings.early_stopping == "never" and settings.length_penalty > 0
    possible: float = running / (longest if far else new) ** settings.length_penalty
    return possible > finished[-1].score
