"""Drawing tokens at random, in such a way that a seed says what is drawn, whatever else is in the batch."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.generation.config import GenerationConfig
from clearhead.generation.logits_processors import warp_logits


class Sampler:
    """Draws a token for each target.

    Each target has a generator of its own, seeded by the seed, its source and the number of the sample: so a text gives
    the same samples alone and in any company, in float32.

    Args:
        settings: temperature, top_k and top_p.
        seed: the seed.
        sources: the source ids of each target.
        numbers: which of its source's samples each target is.
    """

    def __init__(
        self, settings: GenerationConfig, seed: int, sources: Sequence[Sequence[int]], numbers: Sequence[int]
    ) -> None:
        self.settings = settings
        self._generators = [
            torch.Generator().manual_seed(_seed(seed, source, number))
            for source, number in zip(sources, numbers, strict=True)
        ]

    def __call__(self, scores: Tensor, targets: Sequence[int]) -> Tensor:
        """A token (N,) for each row of scores (N, V), the rows being of these targets."""
        settings = self.settings
        cooled = warp_logits(scores, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
        # by the inverse of the distribution function: torch.multinomial takes one generator for all rows
        reached = cooled.double().softmax(dim=1).cumsum(dim=1)
        drawn = torch.stack(
            [torch.rand((), generator=self._generators[target], dtype=torch.float64) for target in targets]
        )
        tokens = torch.searchsorted(reached, drawn.to(reached.device)[:, None] * reached[:, -1:], right=True)
        return tokens[:, 0].clamp(max=scores.shape[1] - 1)


def _seed(seed: int, source: Sequence[int], number: int) -> int:
    digest = hashlib.blake2b(repr((seed, list(source), number)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 1
