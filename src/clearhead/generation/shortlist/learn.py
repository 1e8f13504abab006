"""Learn a vocabulary shortlist from pairs of sentences."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from clearhead.generation.shortlist.alignment import translation_table
from clearhead.generation.shortlist.shortlist import Shortlist
from clearhead.memory import check_memory
from clearhead.models.config import Seq2SeqConfig
from clearhead.tokenizers.base import TextTokenizer

NUM_COMMON = 2000
"""Number of the most frequent target tokens, which every target may have."""

MAX_TRANSLATIONS = 100
"""Maximum number of target tokens of a source token."""

MIN_PROBABILITY = 1e-4
"""Smallest probability of a target token, given the source token."""

MAX_LINKS = 2**26
"""Maximum number of pairs of a source and a target token in the same sentence pair; they take about 4 GB."""


_BYTES_PER_LINK = 40
"""Lower bound of the memory for a pair of tokens."""

_PAIRS_TOGETHER = 512


def tokenize_pairs(
    pairs: Iterable[tuple[str, str]], tokenizer: TextTokenizer, max_length: int | None
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the token ids of sources and of targets, up to `MAX_LINKS`; blank pairs are skipped.

    Args:
        pairs: sources and targets; the rest of an iterator is left.
        tokenizer: the model's tokenizer.
        max_length: longer sources are truncated to this number of tokens.
    """
    sources: list[list[int]] = []
    targets: list[list[int]] = []
    iterator, links = iter(pairs), 0
    while links < MAX_LINKS and (batch := list(itertools.islice(iterator, _PAIRS_TOGETHER))):
        filled = [(source, target) for source, target in batch if source.strip() and target.strip()]
        sources += [tokens.ids for tokens in tokenizer.encode([source for source, _ in filled], max_length)]
        targets += [tokenizer.target_ids(target)[:max_length] for _, target in filled]
        first = len(sources) - len(filled)
        links += sum(len(source) * len(target) for source, target in zip(sources[first:], targets[first:], strict=True))
    return sources, targets


def learn_shortlist(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], config: Seq2SeqConfig
) -> Shortlist:
    """Return the target tokens that may translate each source token.

    If source and target share a vocabulary, a target may also have the tokens of its source, such as names.

    Args:
        sources: token ids of the sources.
        targets: token ids of their translations, line by line.
        config: the model's config.

    Raises:
        ValueError: there are no pairs, or more than the memory can hold.
    """
    source_size, target_size = config.vocab_size, config.target_vocab_size or config.vocab_size
    if not sources:
        raise ValueError("a shortlist is learned from pairs of sentences; got none")
    links = sum(len(set(source)) * len(target) for source, target in zip(sources, targets, strict=True))
    check_memory(_BYTES_PER_LINK * links, f"learning from {len(sources):,} pairs", "Give fewer pairs.")
    table = translation_table(sources, targets, target_size)
    order = np.lexsort((-table.probability_P, table.source_P))
    source_P, target_P, probability_P = (
        values[order] for values in (table.source_P, table.target_P, table.probability_P)
    )
    first_P = np.searchsorted(source_P, source_P)
    kept = (np.arange(len(source_P)) - first_P < MAX_TRANSLATIONS) & (probability_P >= MIN_PROBABILITY)
    copied = np.arange(source_size if config.target_vocab_size is None else 0)
    pairs = np.unique(np.concatenate([source_P[kept] * target_size + target_P[kept], copied * target_size + copied]))
    frequency_V = np.bincount(np.concatenate([np.asarray(target) for target in targets]), minlength=target_size)
    common_C = np.union1d(np.argsort(-frequency_V, kind="stable")[:NUM_COMMON], np.asarray(config.eos_ids))
    pairs = pairs[~np.isin(pairs % target_size, common_C)]
    starts_S = np.searchsorted(pairs // target_size, np.arange(source_size + 1))
    return Shortlist(
        torch.from_numpy(starts_S), torch.from_numpy(pairs % target_size), torch.from_numpy(common_C), target_size
    )
