"""Tokens as the tensors that a model takes: texts packed in one row, so that no product is spent on padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.data.batching import token_batches
from clearhead.equations import masks
from clearhead.memory import check_memory
from clearhead.models.config import EncoderConfig
from clearhead.tokenizers.base import Tokens

_BATCH_TOKENS = {"cpu": 2048}
"""Tokens in a batch: what stays in the cache of a processor core between two layers."""
_BATCH_TOKENS_ELSEWHERE = 65536
"""The same for accelerators: what keeps all their parts busy."""

_MULTIPLE = 16
"""A row is filled up to a multiple of this: so kernels, and the order of every sum, are alike whatever the batch."""
_MULTIPLE_OF_LONG = 64
"""The same where that adds little: oneDNN makes a kernel for each number of rows, which takes time and memory."""


@dataclass(frozen=True)
class Packed:
    """Texts of like length, one after another in one row.

    Args:
        indices: which texts they are.
        lengths: tokens of each.
        ids: token ids (1, T), with some padding as a last text of its own.
        mask: which token belongs to which text.
    """

    indices: list[int]
    lengths: list[int]
    ids: Tensor
    mask: masks.Mask

    @property
    def tokens(self) -> int:
        """Number of real tokens."""
        return sum(self.lengths)

    def row(self, values: Sequence[Sequence[int]]) -> Tensor:
        """One number for each token of every text, such as its type, in the places of `ids`; 0 at the padding."""
        numbers = [number for index in self.indices for number in values[index]]
        return torch.tensor([numbers + [0] * (self.ids.shape[1] - len(numbers))], device=self.ids.device)

    def unpack(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (1, T, D) as rows (B, L, D), and the bool mask (B, L) of real tokens."""
        longest, starts = max(self.lengths), np.cumsum([0, *self.lengths[:-1]])
        # for all texts at once: an accelerator would have an order to take for each
        ahead = np.repeat(np.arange(len(starts)) * longest - starts, self.lengths)
        place_T = _there(torch.from_numpy(ahead + np.arange(self.tokens)), hidden.device)
        rows = hidden.new_zeros(len(starts) * longest, hidden.shape[2])
        rows.index_copy_(0, place_T, hidden[0, : self.tokens])
        keep = torch.arange(longest) < torch.tensor(self.lengths)[:, None]
        return rows.reshape(len(starts), longest, -1), _there(keep, hidden.device)


def packed_batches(
    tokens: Sequence[Tokens], batch_tokens: int | None, config: EncoderConfig, device: torch.device
) -> Iterator[Packed]:
    """Texts as packed batches, longest first; each text comes once.

    Args:
        tokens: the texts.
        batch_tokens: tokens in a batch; None for what keeps the device busy.
        config: the model's plan: its padding id and its longest input.
        device: where the tensors go.

    Raises:
        ValueError: a batch that does not fit the memory.
    """
    if batch_tokens is None:
        batch_tokens = _BATCH_TOKENS.get(device.type, _BATCH_TOKENS_ELSEWHERE)
    for indices in token_batches([len(text.ids) for text in tokens], batch_tokens):
        lengths = [len(tokens[index].ids) for index in indices]
        check_memory(
            4 * sum(lengths) * (5 * config.d_model + config.ffn_hidden),  # hidden states, projections, feed-forward
            f"a batch of {sum(lengths)} tokens",
            "Use a smaller batch_tokens (--batch-tokens) or a smaller max_length.",
            device,
        )
        ids = [number for index in indices for number in tokens[index].ids]
        missing = -len(ids) % (_MULTIPLE if len(ids) <= 8 * _MULTIPLE_OF_LONG else _MULTIPLE_OF_LONG)
        longest = max(lengths)  # the padding is no text that would be longer than they are
        fill = [min(longest, missing - start) for start in range(0, missing, longest)]
        row = _there(torch.tensor([ids + [config.pad_id] * missing]), device)
        yield Packed(indices, lengths, row, masks.packed(lengths + fill))


def _there(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; a GPU fetches it while it computes."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
