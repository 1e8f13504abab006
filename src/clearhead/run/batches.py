"""Tokens as the tensors that a model takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.equations import masks
from clearhead.models.config import EncoderConfig
from clearhead.text.batching import padded_length, token_batches
from clearhead.text.tokenizer import Tokens

BATCH_TOKENS = 2048
"""Tokens in a batch, padding included: what stays in the cache of a processor core between two layers."""


@dataclass(frozen=True)
class Batch:
    """Texts of like length.

    Args:
        indices: which texts they are.
        ids: token ids (B, L), filled up with padding on the right.
        keep: bool (B, L), True at real tokens.
        mask: the same for the model; None where nothing is padding.
        tokens: number of real tokens.
    """

    indices: list[int]
    ids: Tensor
    keep: Tensor
    mask: masks.Mask | None
    tokens: int


def batches(
    tokens: Sequence[Tokens], batch_tokens: int, config: EncoderConfig, device: torch.device
) -> Iterator[Batch]:
    """Texts as batches, longest first; each text comes once.

    Args:
        tokens: the texts.
        batch_tokens: tokens in a batch, padding included.
        config: the model's plan: its padding id and its longest input.
        device: where the tensors go.
    """
    lengths = [len(text.ids) for text in tokens]
    for indices in token_batches(lengths, batch_tokens):
        length = max(1, min(padded_length(lengths[indices[0]]), config.max_len))
        ids = torch.full((len(indices), length), config.pad_id)
        for row, index in enumerate(indices):
            ids[row, : lengths[index]] = torch.tensor(tokens[index].ids, dtype=torch.long)
        # from the lengths, not from the ids: a text may spell the padding token
        keep = torch.arange(length) < torch.tensor([lengths[index] for index in indices])[:, None]
        count = sum(lengths[index] for index in indices)
        ids, keep = ids.to(device), keep.to(device)
        yield Batch(indices, ids, keep, None if keep.all() else masks.padding(keep), count)
