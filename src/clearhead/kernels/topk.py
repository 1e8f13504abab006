"""Top-k selection in long rows."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK_SIZE = 64


def topk(scores: Float[Tensor, "N V"], k: int) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"]]:
    """Return the k largest scores of each row and their indices, largest first; faster than `torch.topk`.

    Source: the k largest values are within the k blocks with the largest maxima; maxima are computed with vector
        instructions

    Args:
        scores: rows of scores.
        k: number of scores; all of a shorter row.

    >>> import torch; from clearhead.kernels.topk import topk
    >>> topk(torch.tensor([[0.1, 0.7, 0.2]]), 2)[1]
    tensor([[1, 2]])
    """
    width = scores.shape[1]
    blocks = width // _BLOCK_SIZE
    if blocks < 4 * k:
        values, indices = scores.topk(min(k, width), dim=1)
        return values, indices
    in_blocks = scores[:, : blocks * _BLOCK_SIZE].reshape(-1, blocks, _BLOCK_SIZE)
    chosen_NC = in_blocks.amax(dim=2).topk(k, dim=1).indices
    candidates = in_blocks.gather(1, chosen_NC[:, :, None].expand(-1, -1, _BLOCK_SIZE)).flatten(1)
    columns = torch.arange(_BLOCK_SIZE, device=scores.device)
    candidate_indices = (chosen_NC[:, :, None] * _BLOCK_SIZE + columns).flatten(1)
    rest_indices = torch.arange(blocks * _BLOCK_SIZE, width, device=scores.device).expand(len(scores), -1)
    values, positions = torch.cat([candidates, scores[:, blocks * _BLOCK_SIZE :]], dim=1).topk(k, dim=1)
    return values, torch.cat([candidate_indices, rest_indices], dim=1).gather(1, positions)
