"""The state of a search: targets, memory and caches of a batch of sentences. Finished sentences are dropped."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.generation.beam_cache import as_beam_cache
from clearhead.models.config import Seq2SeqConfig

_keeps_outputs: ContextVar[bool] = ContextVar("keeps_outputs", default=False)


@contextlib.contextmanager
def keep_outputs() -> Iterator[None]:
    """Keep the model's outputs unchanged during a search, for callers that store them, such as a trace.

    Without it, a search computes log-probabilities in place of the logits, which saves half of that step's time.
    """
    token = _keeps_outputs.set(True)
    try:
        yield
    finally:
        _keeps_outputs.reset(token)


@dataclass(frozen=True)
class Hypothesis:
    """One output for a source.

    Args:
        ids: ids of the new tokens, including the end token if there is one, without start token and forced prefix.
        log_probs: log-probability of each token, after the logits processors.
        score: sum of the log-probabilities, divided by the number of tokens to the power of the length penalty.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float


@dataclass(frozen=True, eq=False)
class AllowedTokens:
    """The tokens that a target may have.

    Args:
        common_C: ids of the tokens that every target may have, ascending; one tensor for all targets.
        extra_E: ids of the other tokens of this target, ascending.
    """

    common_C: Int[Tensor, "C"]
    extra_E: Int[Tensor, "E"]

    def __len__(self) -> int:
        return len(self.common_C) + len(self.extra_E)

    def ids(self) -> Int[Tensor, "A"]:
        """Return all ids, ascending."""
        return torch.cat([self.common_C, self.extra_E]).sort().values


@runtime_checkable
class GenerationModel(Protocol):
    """Interface of an encoder–decoder for a search: `Seq2Seq`, or an exported model."""

    @property
    def config(self) -> Seq2SeqConfig:
        """The model's config."""

    @property
    def device(self) -> torch.device:
        """The device of token ids and logits."""

    def encode(self, ids: Tensor, mask: Any) -> Tensor:
        """Return the memory, as `Seq2Seq.encode`."""

    def decode(self, target_ids: Tensor, memory: Tensor, mask: Any, memory_mask: Any, cache: Any) -> Tensor:
        """Return the logits, as `Seq2Seq.decode`."""

    def cache(self) -> Any:
        """Return an empty cache: that of `Seq2Seq.cache`, or one with the methods of `BeamDecoderCache`."""


@runtime_checkable
class FusedModel(Protocol):
    """Interface of a `GenerationModel` that finds the most probable tokens without returning all logits."""

    def fuses(self, cache: object) -> bool:
        """Return whether `restrict` and `best_tokens` support a cache that `cache()` returned.

        Otherwise the search calls `GenerationModel.decode`.
        """

    def restrict(self, cache: Any, allowed: Sequence[AllowedTokens]) -> None:
        """Restrict `best_tokens` to some tokens for each sentence of an empty cache."""

    def best_tokens(
        self,
        target_ids: Tensor,
        memory: Tensor,
        memory_mask: Any,
        cache: Any,
        count: int,
        excluded: Sequence[int],
        *,
        renormalize: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities (N, C) of the most probable next tokens, and these tokens, best first.

        Args:
            target_ids, memory, memory_mask, cache: as in `GenerationModel.decode`.
            count: number of tokens C.
            excluded: tokens that are not chosen.
            renormalize: whether the probabilities of the other tokens sum to 1.
        """


class DecodingState:
    """Targets, memory and caches of a batch of sentences.

    Args:
        model: the model, in evaluation mode.
        source_ids: (B, M), padded.
        keep: bool (B, M), True at real tokens.
        decoder_prefix: (B, P) first target ids: the start token, and a forced prefix after it.
        allowed: tokens that may follow in the target of each sentence; None for all.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: GenerationModel,
        source_ids: Int[Tensor, "B M"],
        keep: Bool[Tensor, "B M"],
        decoder_prefix: Int[Tensor, "B P"],
        allowed: Sequence[AllowedTokens] | None = None,
    ) -> None:
        self.model, self.num_beams = model, 1
        self.source_ids, self.keep = source_ids, keep
        self.memory = self._encode()
        self.ids, self.prefix_length = decoder_prefix, decoder_prefix.shape[1]
        self.sentences = list(range(len(source_ids)))
        self._cache = as_beam_cache(model.cache())
        self._allowed = allowed
        self._excluded_BV: Tensor | None = None
        if allowed is not None and isinstance(model, FusedModel) and model.fuses(self._cache):
            model.restrict(self._cache, allowed)

    @property
    def length(self) -> int:
        """Number of tokens of each target so far, including its prefix."""
        return self.ids.shape[1]

    @torch.no_grad()
    def logits(self) -> Float[Tensor, "N V"]:
        """Return the logits of the next token of each target, in float32. The caller may write into them."""
        new = self.ids[:, self._cache.length :]
        logits = self.model.decode(new, self.memory, None, masks.padding(self.keep), self._cache)[:, -1].float()
        logits = logits.clone() if _keeps_outputs.get() else logits
        if self._allowed is not None:
            excluded_SV = self._excluded_tokens(self._allowed, logits)[self.sentences]
            logits.view(len(excluded_SV), -1, logits.shape[1]).masked_fill_(excluded_SV[:, None], -torch.inf)
        return logits

    def _excluded_tokens(self, allowed: Sequence[AllowedTokens], logits: Tensor) -> Bool[Tensor, "B V"]:
        """Return which tokens the target of each sentence may not have."""
        if self._excluded_BV is None:
            self._excluded_BV = torch.ones(len(allowed), logits.shape[1], dtype=torch.bool, device=logits.device)
            for excluded_V, tokens in zip(self._excluded_BV, allowed, strict=True):
                excluded_V[tokens.ids().to(logits.device)] = False
        return self._excluded_BV

    @property
    def is_fused(self) -> bool:
        """Whether the next step can call `best_tokens`: the model supports it, and no caller keeps its logits."""
        return isinstance(self.model, FusedModel) and self.model.fuses(self._cache) and not _keeps_outputs.get()

    @torch.no_grad()
    def best_tokens(
        self, count: int, excluded: Sequence[int], *, renormalize: bool
    ) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"]]:
        """Return the log-probabilities of the most probable next tokens of each target, and these tokens, best first.

        Args: as in `FusedModel`.
        """
        assert isinstance(self.model, FusedModel)
        new, mask = self.ids[:, self._cache.length :], masks.padding(self.keep)
        return self.model.best_tokens(new, self.memory, mask, self._cache, count, excluded, renormalize=renormalize)

    def _encode(self) -> Float[Tensor, "B M D"]:
        """Return the memory; sources of different lengths are packed, so that no computation is spent on padding."""
        if not isinstance(self.model, nn.Module) or bool(self.keep.all()):  # exported encoders take padded rows only
            return self.model.encode(self.source_ids, masks.padding(self.keep))
        packed = self.model.encode(self.source_ids[self.keep][None], masks.packed(self.keep.sum(dim=1).tolist()))
        memory = packed.new_zeros(*self.keep.shape, packed.shape[2])
        memory[self.keep] = packed[0]
        return memory

    def source_rows(self) -> Int[Tensor, "N M"]:
        """Return the source ids of each target."""
        return self.source_ids.repeat_interleave(self.num_beams, dim=0)

    def expand_beams(self, num_beams: int) -> None:
        """Repeat each target as the beams of its sentence, in consecutive rows."""
        self.num_beams = num_beams
        self.ids = self.ids.repeat_interleave(num_beams, dim=0)
        self._cache.expand_beams(num_beams)

    def append(self, tokens: Int[Tensor, "N"], rows: Int[Tensor, "N"] | None = None) -> None:
        """Append a token to each target.

        Args:
            tokens: the tokens.
            rows: for each new target, the row of the target that it continues; None to continue each by itself.
        """
        if rows is not None:
            self.ids = self.ids[rows]
            self._cache.reorder(rows)
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)

    def drop_finished(self, unfinished: list[int]) -> Int[Tensor, "N"]:
        """Keep only the sentences at these positions, and return the rows of the targets that remain."""
        kept = torch.tensor(unfinished, dtype=torch.long, device=self.ids.device)
        rows = (kept[:, None] * self.num_beams + torch.arange(self.num_beams, device=kept.device)).flatten()
        self.sentences = [self.sentences[index] for index in unfinished]
        self.source_ids, self.keep, self.memory = self.source_ids[kept], self.keep[kept], self.memory[kept]
        self.ids = self.ids[rows]
        self._cache.reorder(rows, kept)
        return rows
