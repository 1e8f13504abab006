"""Generate the outputs of sources of any number and length, in batches, with the search strategy of the config."""

from collections.abc import Callable, Iterator, Sequence

import torch

from clearhead.data.batching import token_batches
from clearhead.finite import error_context
from clearhead.generation.beam import BeamSearch
from clearhead.generation.config import GenerationConfig
from clearhead.generation.greedy import GreedySearch
from clearhead.generation.sampling import Sampling
from clearhead.generation.state import GenerationModel, Hypothesis
from clearhead.generation.strategy import EncodedSource, NextToken, SearchStrategy
from clearhead.memory import check_memory

STRATEGIES: tuple[SearchStrategy, ...] = (Sampling(), BeamSearch(), GreedySearch())
"""The search strategies. The first that supports a config is used, so the more specific ones come first."""

_BATCH_TOKENS = {"cpu": 2048}
"""Source tokens in a batch."""
_BATCH_TOKENS_ELSEWHERE = 16384

_STEP_SCORES = {"cpu": 2**25}
"""Maximum number of scores in one step: sentences times beams times vocabulary."""
_STEP_SCORES_ELSEWHERE = 2**27


def strategy_for(config: GenerationConfig) -> SearchStrategy:
    """Return the first strategy that supports a config."""
    return next(strategy for strategy in STRATEGIES if strategy.supports(config))


def generate(
    model: GenerationModel,
    sources: Sequence[EncodedSource],
    config: GenerationConfig,
    on_batch: Callable[[int, int], object] = lambda sources, tokens: None,
) -> list[list[Hypothesis]]:
    """Return the outputs of each source, best first, in the order of the sources.

    Args:
        model: the model, in evaluation mode.
        sources: the sources.
        config: the options.
        on_batch: called after each batch with its number of sources and the number of tokens of their best outputs.

    Raises:
        ValueError: lengths that leave no room for a new token; a search that does not fit the memory.
        NonFiniteError: the log-probabilities of a source hold NaN.
    """
    check_search(model, sources, config)
    strategy = strategy_for(config)
    outputs: list[list[Hypothesis]] = [[] for _ in sources]
    for batch in _batches(model, sources, strategy.rows_per_source(config)):
        with torch.inference_mode(), error_context(index=batch.__getitem__):
            hypotheses = strategy.search(model, [sources[index] for index in batch], config)
        for index, best in zip(batch, hypotheses, strict=True):
            outputs[index] = best
        on_batch(len(batch), sum(len(outputs[index][0].ids) for index in batch))
    return outputs


def stream(model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig) -> Iterator[NextToken]:
    """Yield the tokens of all targets, each as soon as it is chosen; arguments and errors as in `generate`."""
    check_search(model, sources, config)
    yield from strategy_for(config).stream(model, sources, config)


def _batches(model: GenerationModel, sources: Sequence[EncodedSource], rows_per_source: int) -> Iterator[list[int]]:
    """Yield batches of source indices: sources of similar length, with decoder prefixes of the same length."""
    device_type = model.device.type
    vocabulary = model.config.target_vocab_size or model.config.vocab_size
    step_scores = _STEP_SCORES.get(device_type, _STEP_SCORES_ELSEWHERE)
    max_sources = max(1, step_scores // (rows_per_source * vocabulary))
    tokens = _BATCH_TOKENS.get(device_type, _BATCH_TOKENS_ELSEWHERE)
    by_prefix_length: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        by_prefix_length.setdefault(len(source.decoder_prefix), []).append(index)
    for indices in by_prefix_length.values():
        for batch in token_batches([len(sources[index].ids) for index in indices], tokens):
            for first in range(0, len(batch), max_sources):
                yield [indices[position] for position in batch[first : first + max_sources]]


def check_search(model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig) -> None:
    """Check that a single source fits the memory, by a lower bound of the memory of its first steps.

    Raises:
        ValueError: it does not fit, or there are more beams than tokens in the vocabulary.
    """
    strategy, sizes, beams = strategy_for(config), model.config, config.beam_size
    layers, vocabulary = sizes.decoder_num_layers or sizes.num_layers, sizes.target_vocab_size or sizes.vocab_size
    scores = 4 * vocabulary * strategy.score_copies
    cache = 2 * 4 * layers * sizes.d_model * 2  # keys and values of two tokens in each layer
    ancestry = 16 * beams if beams > 1 else 0  # which slots of two tokens belong to each beam
    check_memory(
        strategy.rows_per_source(config) * (scores + cache + ancestry),
        f"a search with {strategy.describe(config)} over the {vocabulary} tokens of the vocabulary",
        "Use fewer: beam_size and num_return_sequences, or num_beams in generation_config.json.",
        model.device,
    )
    if beams > vocabulary:
        raise ValueError(
            f"beam_size is {beams}; give at most the {vocabulary} tokens of the vocabulary, "
            "as beam_size or as num_beams in generation_config.json"
        )
    fewest = min((len(source.allowed) for source in sources if source.allowed is not None), default=vocabulary)
    if beams > fewest:
        raise ValueError(f"beam_size is {beams}; the shortlist allows {fewest} tokens. Use fewer beams or no shortlist")
    longest = max((len(source.ids) for source in sources), default=0)
    if sizes.relative_buckets:
        check_memory(
            2 * 4 * sizes.num_heads * longest**2,
            f"the attention biases of a source of {longest} tokens",
            "Split the source into shorter texts.",
            model.device,
        )
