"""Generate with several models at once: an ensemble averages their probabilities."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.equations.losses import ensemble_log_probs
from clearhead.generation.beam_cache import as_beam_cache
from clearhead.generation.state import GenerationModel
from clearhead.pipelines.text_to_text import TextToText
from clearhead.tokenizers.base import MultilingualTokenizer


def combine(pipelines: Sequence[TextToText]) -> TextToText:
    """Return a pipeline that generates with several models; its tokenizer and options are those of the first.

    Args:
        pipelines: pipelines with the same tokens, at least one.

    Raises:
        ValueError: different tokens.
    """
    first, *others = pipelines
    for other in others:
        if _tokens(other) != _tokens(first):
            raise ValueError(
                f"{first.name} and {other.name} have different tokens: their probabilities have no average"
            )
    if others:
        first.inference_model = Ensemble([pipeline.inference_model for pipeline in pipelines])
        limits = [pipeline.max_length for pipeline in pipelines if pipeline.max_length is not None]
        first.max_length = min(limits, default=None)
    return first


def _tokens(pipeline: TextToText) -> tuple[object, ...]:
    config, tokenizer = pipeline.model.config, pipeline.tokenizer
    assert isinstance(tokenizer, MultilingualTokenizer)
    return tokenizer.vocabulary(), config.pad_id, config.start_id, config.eos_ids


class Ensemble(nn.Module):
    """Encoder–decoders that generate together, as a `GenerationModel`.

    Equation: P(t_i | t_<i, s) = 1/K Σ_k P_k(t_i | t_<i, s)
    Source: Freitag et al. 2017, "Ensemble Distillation for Neural Machine Translation"

    Args:
        models: models with the same tokens, in evaluation mode. They may have different sizes.

    The memory is that of all models, side by side.
    """

    def __init__(self, models: Sequence[GenerationModel]) -> None:
        super().__init__()
        self.models = list(models)
        self.widths = [model.config.d_model for model in models]
        lengths = [model.config.max_len for model in models if model.config.max_len is not None]
        self.config = replace(models[0].config, max_len=min(lengths, default=None))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.models[0].device

    def encode(self, ids: Int[Tensor, "B M"], mask: Any = None) -> Float[Tensor, "B M D"]:
        """Return the memories; arguments as in `Seq2Seq.encode`."""
        return torch.cat([model.encode(ids, mask) for model in self.models], dim=-1)

    def decode(
        self, target_ids: Int[Tensor, "N L"], memory: Float[Tensor, "B M D"], mask: Any, memory_mask: Any, cache: Any
    ) -> Float[Tensor, "N L V"]:
        """Return the log-probabilities of the token after each target token; arguments as in `Seq2Seq.decode`."""
        parts = zip(self.models, memory.split_with_sizes(self.widths, dim=-1), cache.members, strict=True)
        return ensemble_log_probs(
            [model.decode(target_ids, own, mask, memory_mask, member).float() for model, own, member in parts]
        )

    def cache(self) -> "EnsembleCache":
        """Return an empty cache."""
        return EnsembleCache([as_beam_cache(model.cache()) for model in self.models])


class EnsembleCache:
    """The caches of all models, with the methods of a `BeamDecoderCache`.

    Args:
        members: the cache of each model.
    """

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = members

    @property
    def length(self) -> int:
        """Number of tokens stored."""
        length: int = self.members[0].length
        return length

    def expand_beams(self, num_beams: int) -> None:
        """Make each row of the target `num_beams` beams."""
        for member in self.members:
            member.expand_beams(num_beams)

    def reorder(self, rows: Int[Tensor, "N"], memory_rows: Int[Tensor, "S"] | None = None) -> None:
        """Keep these beams and, where given, these sentences, as `BeamDecoderCache.reorder`."""
        for member in self.members:
            member.reorder(rows, memory_rows)
