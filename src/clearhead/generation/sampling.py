"""Sampling: draw tokens at random. With a seed, the draws of a text do not depend on the rest of the batch."""

import hashlib
import secrets
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clearhead.finite import error_context
from clearhead.generation.config import GenerationConfig
from clearhead.generation.greedy import checked_tokens, collect_hypotheses
from clearhead.generation.logits_processors import warp_logits
from clearhead.generation.state import GenerationModel, Hypothesis
from clearhead.generation.strategy import EncodedSource, NextToken, SearchStrategy, start_decoding


class Sampler:
    """Draw a token for each target.

    Each target has a random generator, seeded from the seed, the source and the index of the sample. In float32 a text
    therefore gets the same samples in every batch.

    Args:
        config: temperature, top_k and top_p.
        seed: the seed.
        sources: source ids of each target.
        sample_indices: for each target, its index among the samples of its source.
    """

    def __init__(
        self, config: GenerationConfig, seed: int, sources: Sequence[Sequence[int]], sample_indices: Sequence[int]
    ) -> None:
        self.config = config
        self._generators = [
            torch.Generator().manual_seed(_seed(seed, source, index))
            for source, index in zip(sources, sample_indices, strict=True)
        ]

    def __call__(self, scores: Tensor, targets: Sequence[int]) -> Tensor:
        """Return a token (N,) for each row of scores (N, V), given the target of each row."""
        config = self.config
        warped = warp_logits(scores, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        # inverse transform sampling: torch.multinomial takes one generator for all rows
        cumulative = warped.double().softmax(dim=1).cumsum(dim=1)
        uniform = torch.stack(
            [torch.rand((), generator=self._generators[target], dtype=torch.float64) for target in targets]
        )
        thresholds = uniform.to(cumulative.device)[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, thresholds, right=True)[:, 0].clamp(max=scores.shape[1] - 1)


def _seed(seed: int, source: Sequence[int], index: int) -> int:
    digest = hashlib.blake2b(repr((seed, list(source), index)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 1


class Sampling(SearchStrategy):
    """The strategy for do_sample."""

    score_copies = 8  # it computes probabilities in float64

    def supports(self, config: GenerationConfig) -> bool:
        return config.do_sample

    def rows_per_source(self, config: GenerationConfig) -> int:
        return config.num_return_sequences

    def describe(self, config: GenerationConfig) -> str:
        return f"{config.num_return_sequences} samples"

    def search(
        self, model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig
    ) -> list[list[Hypothesis]]:
        samples = config.num_return_sequences
        targets = [source for source in sources for _ in range(samples)]
        with error_context(index=lambda target: target // samples):
            tokens = self.stream(model, targets, config)
            outputs = collect_hypotheses(tokens, len(targets), config.length_penalty)
        return [outputs[first : first + samples] for first in range(0, len(outputs), samples)]

    def stream(
        self, model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig
    ) -> Iterator[NextToken]:
        seed = secrets.randbits(63) if config.seed is None else config.seed
        indices = [target % config.num_return_sequences for target in range(len(sources))]
        sampler = Sampler(config, seed, [source.ids for source in sources], indices)
        return checked_tokens(start_decoding(model, sources, config), sampler)
