"""Sources of any number and length to hypotheses: in batches, by the search that the settings ask for."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from clearhead.data.batching import token_batches
from clearhead.finite import check_scores, naming
from clearhead.generation.beam import LOG_PROBS, beam_search
from clearhead.generation.config import GenerationConfig
from clearhead.generation.greedy import Choose, NextToken, argmax, collect_hypotheses, next_tokens
from clearhead.generation.logits_processors import processors
from clearhead.generation.sampling import Sampler
from clearhead.generation.state import DecodingState, GenerationModel, Hypothesis
from clearhead.memory import check_memory

_BATCH_TOKENS = {"cpu": 2048}
"""Source tokens in a batch."""
_BATCH_TOKENS_ELSEWHERE = 16384

_STEP_SCORES = {"cpu": 2**25}
"""Scores that one step may hold: sentences times beams times vocabulary."""
_STEP_SCORES_ELSEWHERE = 2**27


@dataclass(frozen=True)
class EncodedSource:
    """A source on its way through the model.

    Args:
        ids: its token ids.
        prompt: the ids that its target is given: the start token, and what is forced after it.
    """

    ids: Sequence[int]
    prompt: tuple[int, ...]


_STEP_COPIES = {False: 2, True: 8}
"""Float32 copies of a step's scores: of a search, and of sampling, which computes probabilities in float64."""


def search(
    model: GenerationModel, sources: Sequence[EncodedSource], settings: GenerationConfig
) -> list[list[Hypothesis]]:
    """The outputs of each source, best first, in the order of the sources.

    Args:
        model: the model, in evaluation mode.
        sources: the sources.
        settings: how to generate.

    Raises:
        ValueError: lengths that leave nothing to generate; a search that does not fit the memory.
        NonFiniteError: the log-probabilities for a source hold NaN.
    """
    _check_memory(model, sources, settings)
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for batch in _batches(model, sources, settings):
        with torch.inference_mode(), naming(index=batch.__getitem__):
            outputs = _together(model, [sources[index] for index in batch], settings)
        for index, best in zip(batch, outputs, strict=True):
            found[index] = best
    return found


def stream(model: GenerationModel, sources: Sequence[EncodedSource], settings: GenerationConfig) -> Iterator[NextToken]:
    """The tokens of all targets as they are chosen, greedily or by draws; arguments and errors as in `search`."""
    _check_memory(model, sources, settings)
    decoding, limit = _decoding(model, sources, settings)
    choose: Choose = argmax
    if settings.do_sample:
        seed = secrets.randbits(63) if settings.seed is None else settings.seed
        numbers = [place % settings.num_return_sequences for place in range(len(sources))]
        choose = Sampler(settings, seed, [source.ids for source in sources], numbers)
    ends = end_ids(model, settings)
    changes = processors(settings, decoding.prompt, limit, ends)
    for token in next_tokens(decoding, changes, choose, limit, ends):
        check_scores([token.log_prob], LOG_PROBS, [token.target])
        yield token


def end_ids(model: GenerationModel, settings: GenerationConfig) -> tuple[int, ...]:
    """The ids that end a target: the settings', else the model's."""
    return model.config.eos_ids if settings.eos_ids is None else settings.eos_ids


def _batches(
    model: GenerationModel, sources: Sequence[EncodedSource], settings: GenerationConfig
) -> Iterator[list[int]]:
    """Sources that are computed together: of like length, with prompts of the same length."""
    kind = model.device.type
    rows = settings.beam_size * (settings.num_return_sequences if settings.do_sample else 1)
    vocabulary = model.config.target_vocab_size or model.config.vocab_size
    most = max(1, _STEP_SCORES.get(kind, _STEP_SCORES_ELSEWHERE) // (rows * vocabulary))
    tokens = _BATCH_TOKENS.get(kind, _BATCH_TOKENS_ELSEWHERE)
    by_prompt: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        by_prompt.setdefault(len(source.prompt), []).append(index)
    for indices in by_prompt.values():
        for batch in token_batches([len(sources[index].ids) for index in indices], tokens):
            for first in range(0, len(batch), most):
                yield [indices[place] for place in batch[first : first + most]]


def _check_memory(model: GenerationModel, sources: Sequence[EncodedSource], settings: GenerationConfig) -> None:
    """Raise a ValueError where a single source does not fit the memory: a lower bound of what its first steps hold."""
    config, beams = model.config, settings.beam_size
    samples = settings.num_return_sequences if settings.do_sample else 1
    layers, vocabulary = config.decoder_num_layers or config.num_layers, config.target_vocab_size or config.vocab_size
    scores = 4 * vocabulary * _STEP_COPIES[settings.do_sample]
    cache = 2 * 4 * layers * config.d_model * 2  # keys and values of two tokens in each layer
    beams_by_slots = 16 * beams if beams > 1 else 0  # which of two tokens' slots each beam descends from
    count = f"{samples} samples" if settings.do_sample else f"{beams} beams"
    check_memory(
        samples * beams * (scores + cache + beams_by_slots),
        f"a search with {count} over the {vocabulary} tokens of the vocabulary",
        "Use fewer: beam_size and num_return_sequences, or num_beams in generation_config.json.",
        model.device,
    )
    if beams > vocabulary:
        raise ValueError(f"beam_size is {beams}; give at most the {vocabulary} tokens of the vocabulary")
    longest = max((len(source.ids) for source in sources), default=0)
    if config.relative_buckets:
        check_memory(
            2 * 4 * config.num_heads * longest**2,
            f"the attention biases of a source of {longest} tokens",
            "Split the source into shorter texts.",
            model.device,
        )


def _together(
    model: GenerationModel, sources: Sequence[EncodedSource], settings: GenerationConfig
) -> list[list[Hypothesis]]:
    """The outputs of a batch, best first."""
    if settings.beam_size > 1:
        decoding, limit = _decoding(model, sources, settings)
        ends = end_ids(model, settings)
        return beam_search(decoding, processors(settings, decoding.prompt, limit, ends), settings, limit, ends)
    each = settings.num_return_sequences
    several = [source for source in sources for _ in range(each)]
    with naming(index=lambda target: target // each):
        found = collect_hypotheses(stream(model, several, settings), len(several), settings.length_penalty)
    return [found[first : first + each] for first in range(0, len(found), each)]


def _decoding(
    model: GenerationModel, sources: Sequence[EncodedSource], settings: GenerationConfig
) -> tuple[DecodingState, int]:
    """A batch of sources to decode, and the greatest length of their targets."""
    device = model.device
    longest = max(len(source.ids) for source in sources)
    rows = [[*source.ids, *[model.config.pad_id] * (longest - len(source.ids))] for source in sources]
    lengths_B1 = torch.tensor([[len(source.ids)] for source in sources], device=device)
    keep_BM = torch.arange(longest, device=device) < lengths_B1
    prompt_BP = torch.tensor([source.prompt for source in sources], device=device)
    limit = settings.greatest_length(prompt_BP.shape[1], model.config.max_len)
    return DecodingState(model, torch.tensor(rows, device=device), keep_BM, prompt_BP), limit
