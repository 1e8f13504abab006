"""The largest scores of long rows."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK = 64


def topk(scores: Float[Tensor, "N V"], k: int) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"]]:
    """The k largest scores of each row and their places, largest first: `torch.topk`, in a fraction of its time.

    Source: the k largest numbers lie in the k blocks with the largest maxima; a maximum is found many numbers at a time

    Args:
        scores: the rows.
        k: how many; all of them where there are fewer.

    >>> import torch; from clearhead.kernels.topk import topk
    >>> topk(torch.tensor([[0.1, 0.7, 0.2]]), 2)[1]
    tensor([[1, 2]])
    """
    width = scores.shape[1]
    blocks = width // _BLOCK
    if blocks < 4 * k:
        values, places = scores.topk(min(k, width), dim=1)
        return values, places
    whole = scores[:, : blocks * _BLOCK].reshape(-1, blocks, _BLOCK)
    chosen_NC = whole.amax(dim=2).topk(k, dim=1).indices
    inside = whole.gather(1, chosen_NC[:, :, None].expand(-1, -1, _BLOCK)).flatten(1)
    inside_places = (chosen_NC[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=scores.device)).flatten(1)
    tail = torch.arange(blocks * _BLOCK, width, device=scores.device).expand(len(scores), -1)
    values, at = torch.cat([inside, scores[:, blocks * _BLOCK :]], dim=1).topk(k, dim=1)
    return values, torch.cat([inside_places, tail], dim=1).gather(1, at)
