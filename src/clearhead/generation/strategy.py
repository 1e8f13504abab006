"""Interface of the search strategies, and the first step of a search.

To add a strategy, write a subclass of `SearchStrategy` in its own file, and add it to `STRATEGIES` in `generate.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from clearhead.generation.config import GenerationConfig
from clearhead.generation.logits_processors import Processor, logits_processors
from clearhead.generation.state import AllowedTokens, DecodingState, GenerationModel, Hypothesis

LOG_PROBS = "log-probabilities"
"""Name of a search's scores in error messages."""


@dataclass(frozen=True)
class EncodedSource:
    """A tokenized source, with the beginning of its target.

    Args:
        ids: token ids.
        decoder_prefix: first ids of the target: the start token, and a forced prefix after it.
        allowed: the tokens that the target may have; None for all.
    """

    ids: Sequence[int]
    decoder_prefix: tuple[int, ...]
    allowed: AllowedTokens | None = None


@dataclass(frozen=True)
class NextToken:
    """A chosen token.

    Args:
        target: index of its target.
        id: token id.
        log_prob: log-probability.
        is_last: whether the target ends with it.
    """

    target: int
    id: int
    log_prob: float
    is_last: bool


class SearchStrategy(ABC):
    """A way to choose the tokens of targets.

    `score_copies` is the number of float32 copies of a step's scores that it allocates.
    """

    score_copies: ClassVar[int]

    @abstractmethod
    def supports(self, config: GenerationConfig) -> bool:
        """Return whether the strategy implements the options of a config."""

    @abstractmethod
    def rows_per_source(self, config: GenerationConfig) -> int:
        """Return the number of targets that the strategy decodes for each source."""

    @abstractmethod
    def describe(self, config: GenerationConfig) -> str:
        """Return the number of targets in words, for error messages, such as "5 beams"."""

    @abstractmethod
    def search(
        self, model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig
    ) -> list[list[Hypothesis]]:
        """Return the outputs of each source, best first.

        Raises:
            NonFiniteError: the scores of a source hold NaN.
        """

    @abstractmethod
    def stream(
        self, model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig
    ) -> Iterator[NextToken]:
        """Yield the tokens of all targets, each as soon as it is chosen.

        Raises:
            ValueError: the strategy chooses its tokens at the end only.
            NonFiniteError: the scores of a source hold NaN.
        """


@dataclass(frozen=True)
class DecodingTask:
    """A batch of sources to decode.

    Args:
        state: targets, memory and caches.
        processors: logits processors.
        max_length: maximum length of a target, including its prefix.
        eos_ids: ids that end a target.
    """

    state: DecodingState
    processors: list[Processor]
    max_length: int
    eos_ids: tuple[int, ...]


def start_decoding(model: GenerationModel, sources: Sequence[EncodedSource], config: GenerationConfig) -> DecodingTask:
    """Encode a batch of sources, whose decoder prefixes have the same length.

    Args:
        model: the model, in evaluation mode.
        sources: the sources.
        config: the options.

    Raises:
        ValueError: the lengths leave no room for a new token.
    """
    device = model.device
    longest = max(len(source.ids) for source in sources)
    rows = [[*source.ids, *[model.config.pad_id] * (longest - len(source.ids))] for source in sources]
    lengths_B1 = torch.tensor([[len(source.ids)] for source in sources], device=device)
    keep_BM = torch.arange(longest, device=device) < lengths_B1
    prefix_BP = torch.tensor([source.decoder_prefix for source in sources], device=device)
    max_length = config.max_target_length(prefix_BP.shape[1], model.config.max_len)
    state = DecodingState(model, torch.tensor(rows, device=device), keep_BM, prefix_BP, _allowed_tokens(model, sources))
    eos_ids = resolve_eos_ids(model, config)
    processors = logits_processors(config, state.prefix_length, max_length, eos_ids)
    return DecodingTask(state, processors, max_length, eos_ids)


def _allowed_tokens(model: GenerationModel, sources: Sequence[EncodedSource]) -> list[AllowedTokens] | None:
    """Return the tokens that the target of each source may have; None if there is no limit."""
    common_C = next((source.allowed.common_C for source in sources if source.allowed is not None), None)
    if common_C is None:
        return None
    every_V = torch.arange(model.config.target_vocab_size or model.config.vocab_size)
    every = AllowedTokens(common_C, every_V[~torch.isin(every_V, common_C)])
    return [source.allowed or every for source in sources]


def resolve_eos_ids(model: GenerationModel, config: GenerationConfig) -> tuple[int, ...]:
    """Return the ids that end a target: the config's, else the model's."""
    return model.config.eos_ids if config.eos_ids is None else config.eos_ids
