"""Batches of texts packed in one row, so that no computation is spent on padding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.data.batching import token_batches
from clearhead.equations import masks
from clearhead.memory import check_memory
from clearhead.models.config import EncoderConfig
from clearhead.tokenizers.base import Tokens

_BATCH_TOKENS = {"cpu": 2048}
"""Tokens in a batch on a CPU: few enough that the activations stay in a core's cache between two layers."""
_BATCH_TOKENS_ELSEWHERE = 65536
"""Tokens in a batch on an accelerator: enough to occupy all its units."""

_MULTIPLE = 16
"""Rows are padded to a multiple of this, so that kernels and summation order are the same for every batch."""
_MULTIPLE_OF_LONG = 64
"""The same for long rows. oneDNN makes a kernel for each number of rows, which takes time and memory."""


HiddenStates = tuple[list[int], Tensor, Tensor]
"""Indices of texts, their hidden states (B, L, D) and the (B, L) mask of real tokens."""


@dataclass(frozen=True)
class PackedBatch:
    """Texts of similar length, concatenated in one row.

    Args:
        indices: index of each text.
        lengths: number of tokens of each text.
        ids: token ids (1, T); padding at the end counts as separate texts.
        mask: separates the texts: tokens of different texts do not attend to each other.
    """

    indices: list[int]
    lengths: list[int]
    ids: Tensor
    mask: masks.Mask

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding."""
        return sum(self.lengths)

    def pack_values(self, values: Sequence[Sequence[int]]) -> Tensor:
        """Return one integer for each token, such as its token type, in the layout of `ids`; 0 at the padding.

        Args:
            values: for each text of the whole input, one integer for each of its tokens.
        """
        row = [value for index in self.indices for value in values[index]]
        return torch.tensor([row + [0] * (self.ids.shape[1] - len(row))], device=self.ids.device)

    def unpack(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states (1, T, D) as a padded batch (B, L, D), and the bool mask (B, L) of real tokens."""
        longest, starts = max(self.lengths), np.cumsum([0, *self.lengths[:-1]])
        # one copy for all texts: with a copy for each, an accelerator would wait for many small commands
        shift = np.repeat(np.arange(len(starts)) * longest - starts, self.lengths)
        indices_T = _move(torch.from_numpy(shift + np.arange(self.num_tokens)), hidden.device)
        rows = hidden.new_zeros(len(starts) * longest, hidden.shape[2])
        rows.index_copy_(0, indices_T, hidden[0, : self.num_tokens])
        keep = torch.arange(longest) < torch.tensor(self.lengths)[:, None]
        return rows.reshape(len(starts), longest, -1), _move(keep, hidden.device)


def default_batch_tokens(device: torch.device) -> int:
    """Return the number of tokens in a batch that is fast on a device."""
    return _BATCH_TOKENS.get(device.type, _BATCH_TOKENS_ELSEWHERE)


def packed_batches(
    tokens: Sequence[Tokens], batch_tokens: int | None, config: EncoderConfig, device: torch.device
) -> Iterator[PackedBatch]:
    """Yield texts as packed batches, longest first; each text occurs once.

    Args:
        tokens: the texts.
        batch_tokens: number of tokens in a batch; None for the default of the device.
        config: the model's config, for its padding id and sizes.
        device: the device of the tensors.

    Raises:
        ValueError: a batch that does not fit the memory.
    """
    if batch_tokens is None:
        batch_tokens = default_batch_tokens(device)
    for indices in token_batches([len(text.ids) for text in tokens], batch_tokens):
        lengths = [len(tokens[index].ids) for index in indices]
        check_memory(
            4 * sum(lengths) * (5 * config.d_model + config.ffn_hidden),  # hidden states, projections, feed-forward
            f"a batch of {sum(lengths)} tokens",
            "Use a smaller batch_tokens (--batch-tokens) or a smaller max_length.",
            device,
        )
        ids = [token for index in indices for token in tokens[index].ids]
        missing = -len(ids) % (_MULTIPLE if len(ids) <= 8 * _MULTIPLE_OF_LONG else _MULTIPLE_OF_LONG)
        longest = max(lengths)  # padding is split into texts no longer than this, so that the longest text stays so
        padding = [min(longest, missing - start) for start in range(0, missing, longest or 1)]
        row = _move(torch.tensor([ids + [config.pad_id] * missing]), device)
        yield PackedBatch(indices, lengths, row, masks.packed(lengths + padding))


def check_not_empty(tokens: Sequence[Tokens]) -> None:
    """Check that each text has a token, for a model that cannot compute a result without one.

    Raises:
        ValueError: a text has none.
    """
    if not all(text.ids for text in tokens):
        raise ValueError("a text has no tokens: the model's tokenizer adds none, and knows no part of the text")


def hidden_states(
    encoder: nn.Module,
    tokens: Sequence[Tokens],
    batch_tokens: int | None,
    config: EncoderConfig,
    device: torch.device,
    on_batch: Callable[[int, int], object] = lambda texts, tokens: None,
) -> Iterator[HiddenStates]:
    """Yield the hidden states of texts, batch by batch.

    Args:
        encoder: the encoder; it is set to evaluation mode.
        tokens, batch_tokens, config, device: as in `packed_batches`.
        on_batch: called after each batch with the number of its texts and tokens.

    Raises:
        ValueError: a batch that does not fit the memory.
    """
    encoder.eval()
    for batch in packed_batches(tokens, batch_tokens, config, device):
        if batch.num_tokens:
            with torch.inference_mode():
                hidden, keep = batch.unpack(encoder(batch.ids, batch.mask))
        else:  # empty texts of a tokenizer without special tokens
            hidden = torch.zeros(len(batch.indices), 1, config.d_model, device=device)
            keep = torch.zeros(len(batch.indices), 1, dtype=torch.bool, device=device)
        yield batch.indices, hidden, keep
        on_batch(len(batch.indices), batch.num_tokens)


def _move(x: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; the copy to a GPU runs while the GPU computes."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
