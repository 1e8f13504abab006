"""Losses over a large vocabulary, from the hidden states before it: the logits of all positions never exist at once.

Chunk after chunk of positions, the logits are made, used for the loss and for its gradient, and written over by the
next ones: the backward pass only scales what the forward pass found. The sums are those of `losses.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.equations.losses import check_targets

_LOGITS = {"cpu": 2**21}
"""How many logits exist at once: few enough for a processor's cache, enough to keep an accelerator busy."""


def linear_cross_entropy(
    hidden_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    targets_N: Int[Tensor, "N"],
    bias_V: Float[Tensor, "V"] | None = None,
    *,
    smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """`cross_entropy` of the logits H Wᵀ + b, which are never held together.

    Source: Section 5.4; the formula is stated in `losses.py`. The gradient by the logits is p − q, so that
        dL/dH = (p − q) W, dL/dW = (p − q)ᵀ H and dL/db = (p − q)ᵀ 1: found while the logits are at hand. On GPUs, Hsu
        et al. 2024, "Liger Kernel", do likewise

    Args:
        hidden_ND: hidden states; those whose target does not count are left out before anything is computed.
        weight_VD: the output matrix, which may be the embedding's as well.
        targets_N, smoothing, ignore_index: as in `cross_entropy`.
        bias_V: added to the logits.

    Under autocast the matrix products are computed in its numbers; softmax, sums and gradients have 32 bits. There is
    no second derivative.

    Raises:
        ValueError: as `cross_entropy`.

    >>> import torch; from clearhead.kernels.linear_cross_entropy import linear_cross_entropy
    >>> linear_cross_entropy(torch.zeros(2, 4), torch.ones(10, 4), torch.tensor([3, -100]))
    tensor(2.3026)
    """
    check_targets(targets_N, len(weight_VD), smoothing, ignore_index)
    counts_N = targets_N != ignore_index
    if not bool(counts_N.all()):
        place_K = counts_N.nonzero()[:, 0]
        hidden_ND, targets_N = hidden_ND.index_select(0, place_K), targets_N.index_select(0, place_K)

    room_CV = torch.empty(0, device=hidden_ND.device)

    def step(logits: Sequence[Tensor], rows: slice, wanted: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        nonlocal room_CV
        room_CV = room_CV.to(logits[0].dtype).resize_(logits[0].shape)
        loss = _cross_entropy(logits[0], targets_N[rows].long(), smoothing, room_CV)
        return loss, [room_CV if wanted[0] else None]

    return _summed(step, [(hidden_ND, weight_VD, bias_V)])


def linear_r_drop(
    hidden_1_ND: Float[Tensor, "N D"],
    hidden_2_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    targets_N: Int[Tensor, "N"],
    bias_V: Float[Tensor, "V"] | None = None,
    *,
    smoothing: float = 0.0,
    weight: float,
) -> Float[Tensor, ""]:
    """The mean `cross_entropy` of two passes and, times a weight, their `r_drop`, from one walk over the vocabulary.

    Equation: L = ½ [CE(p) + CE(r)] + α ½ Σ_n [KL(p_n ‖ r_n) + KL(r_n ‖ p_n)], p and r the softmax of H Wᵀ + b of each
    Source: Liang et al. 2021, "R-Drop", equation 3, halved. With d = log p − log r the gradient by the first logits is
        ½ (p − q) + α/2 [p (d − KL(p ‖ r)) + p − r], by the second the same with the two exchanged

    Args:
        hidden_1_ND, hidden_2_ND: hidden states of the two passes, at positions that all count.
        weight_VD, targets_N, bias_V, smoothing: as in `linear_cross_entropy`.
        weight: α, from 0 on.

    Numbers, gradients and errors are as in `linear_cross_entropy`.

    >>> import torch; from clearhead.kernels.linear_cross_entropy import linear_r_drop
    >>> linear_r_drop(torch.zeros(1, 4), torch.zeros(1, 4), torch.ones(10, 4), torch.tensor([3]), weight=5.0)
    tensor(2.3026)
    """
    check_targets(targets_N, len(weight_VD), smoothing, ignore_index=-100)
    room_2CV = torch.empty(0, device=hidden_1_ND.device)

    def step(logits: Sequence[Tensor], rows: slice, wanted: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        nonlocal room_2CV
        room_2CV = room_2CV.to(logits[0].dtype).resize_(2, *logits[0].shape)
        loss = _r_drop(logits[0], logits[1], targets_N[rows].long(), smoothing, weight, room_2CV)
        return loss, [x if needed else None for x, needed in zip(logits, wanted, strict=True)]

    return _summed(step, [(hidden_1_ND, weight_VD, bias_V), (hidden_2_ND, weight_VD, bias_V)])


def chunked_vocabulary_loss(
    loss: Callable[..., Tensor],
    hiddens: Sequence[Float[Tensor, "N _"]],
    weights: Sequence[Float[Tensor, "V _"]],
    biases: Sequence[Float[Tensor, "V"] | None] | None = None,
    rows: Sequence[Tensor] = (),
) -> Float[Tensor, ""]:
    """Any sum over positions of a loss of one or several sets of logits, which are never held together.

    Source: Section 3.4, logits = H W_Eᵀ + b; the gradient within each chunk is autograd's

    Args:
        loss: from the logits (n, V) of some positions, one tensor for each set, then their part of each of `rows`, to
            the sum of the loss over these positions, such as `partial(distillation, temperature=2.0)`. It must depend
            on nothing else that is trained.
        hiddens: hidden states of each set, only the positions that count, such as student's and teacher's.
        weights: the output matrix of each set. What needs no gradient, such as the teacher, costs none.
        biases: the bias of each set, or None; None for no biases.
        rows: what else the loss takes by position, such as targets.

    Numbers and gradients are as in `linear_cross_entropy`.

    Raises:
        ValueError: not as many weights or biases as sets of hidden states, or sets or rows of different lengths.

    >>> import torch; from clearhead.equations.losses import r_drop
    >>> from clearhead.kernels.linear_cross_entropy import chunked_vocabulary_loss
    >>> chunked_vocabulary_loss(r_drop, [torch.ones(3, 4), torch.ones(3, 4)], [torch.ones(10, 4)] * 2)
    tensor(0.)
    """
    biases = [None] * len(hiddens) if biases is None else biases
    if not len(hiddens) == len(weights) == len(biases) > 0:
        raise ValueError(
            f"each set of hidden states has a weight, and a bias or None; got {len(hiddens)} sets, {len(weights)} "
            f"weights, {len(biases)} biases"
        )
    lengths = {len(part) for part in (*hiddens, *rows)}
    if len(lengths) > 1:
        raise ValueError(f"all sets of hidden states, and rows, are of the same positions; got {sorted(lengths)}")

    def step(logits: Sequence[Tensor], part: slice, wanted: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        leaves = [x.detach().requires_grad_(needed) for x, needed in zip(logits, wanted, strict=True)]
        with torch.set_grad_enabled(any(wanted)):
            found = loss(*leaves, *(row[part] for row in rows))
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        given = iter(torch.autograd.grad(found, asked) if asked else ())
        return found.detach(), [next(given) if leaf.requires_grad else None for leaf in leaves]

    return _summed(step, list(zip(hiddens, weights, biases, strict=True)))


Step = Callable[[Sequence[Tensor], slice, Sequence[bool]], tuple[Tensor, list[Tensor | None]]]
"""From the logits of each set, the positions that they are of, and whether a gradient is wanted: loss and gradients."""


def _summed(step: Step, sets: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> Tensor:
    tensors = [tensor for one in sets for tensor in one]
    total: Tensor = _Chunked.apply(step, torch.is_grad_enabled(), *tensors)  # type: ignore[no-untyped-call]
    return total


class _Chunked(torch.autograd.Function):
    """The sum of a step's losses over all chunks, with the gradients of the tensors that made the logits."""

    @staticmethod
    def forward(ctx: Any, step: Step, grad_enabled: bool, *tensors: Tensor | None) -> Tensor:
        wanted = [grad_enabled and needed for needed in ctx.needs_input_grad[2:]]
        hidden_ND = tensors[0]
        assert hidden_ND is not None
        kind = hidden_ND.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        with torch.autocast(kind, enabled=False):
            maps = [_Map(tensors[i : i + 3], wanted[i : i + 3], low) for i in range(0, len(tensors), 3)]
            loss = torch.zeros((), dtype=maps[0].exact, device=hidden_ND.device)
            for rows in _chunks(len(hidden_ND), max(len(one.weight_VD) for one in maps), kind):
                found, gradients = step([one.logits(rows) for one in maps], rows, [any(one.wanted) for one in maps])
                loss += found
                for one, gradient_CV in zip(maps, gradients, strict=True):
                    if gradient_CV is not None:
                        one.add(rows, gradient_CV)
        ctx.save_for_backward(*(gradient for one in maps for gradient in one.gradients()))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(None if gradient is None else gradient * scale for gradient in ctx.saved_tensors)


class _Map:
    """From hidden states to logits, and from the logits' gradient to those of hidden states, weight and bias.

    Products are in `low` numbers if such are given, all else in 32 bits at least.
    """

    def __init__(self, given: Sequence[Tensor | None], wanted: Sequence[bool], low: torch.dtype | None) -> None:
        hidden_ND, weight_VD, self.bias_V = given
        assert hidden_ND is not None
        assert weight_VD is not None
        numbers = low or torch.promote_types(hidden_ND.dtype, weight_VD.dtype)
        self.given, self.wanted, self.exact = given, wanted, torch.promote_types(numbers, torch.float32)
        self.hidden_ND, self.weight_VD = hidden_ND.to(numbers), weight_VD.to(numbers)
        self.d_hidden, self.d_weight, self.d_bias = (
            torch.zeros_like(tensor, dtype=self.exact) if tensor is not None and needed else None
            for tensor, needed in zip(given, wanted, strict=True)
        )
        # fresh memory for each chunk would cost more than the product that fills it
        self.low_CV = torch.empty(0, dtype=numbers, device=hidden_ND.device)
        self.exact_CV = self.low_CV if numbers == self.exact else self.low_CV.to(self.exact)

    def logits(self, rows: slice) -> Tensor:
        hidden_CD = self.hidden_ND[rows]
        self.low_CV.resize_(len(hidden_CD), len(self.weight_VD))
        torch.mm(hidden_CD, self.weight_VD.T, out=self.low_CV)
        if self.exact_CV is not self.low_CV:
            self.exact_CV.resize_(self.low_CV.shape).copy_(self.low_CV)
        return self.exact_CV if self.bias_V is None else self.exact_CV.add_(self.bias_V)

    def add(self, rows: slice, gradient_CV: Tensor) -> None:
        """Adds what a chunk's logits owe to the gradients."""
        low_CV = gradient_CV if self.exact_CV is self.low_CV else self.low_CV.copy_(gradient_CV)
        if self.d_hidden is not None:
            self.d_hidden[rows] = low_CV @ self.weight_VD
        if self.d_weight is not None and low_CV.dtype == self.exact:
            self.d_weight.addmm_(low_CV.T, self.hidden_ND[rows])
        elif self.d_weight is not None:
            self.d_weight += low_CV.T @ self.hidden_ND[rows]
        if self.d_bias is not None:
            self.d_bias += gradient_CV.sum(dim=0)

    def gradients(self) -> list[Tensor | None]:
        found = zip(self.given, (self.d_hidden, self.d_weight, self.d_bias), strict=True)
        return [None if owed is None or tensor is None else owed.to(tensor.dtype) for tensor, owed in found]


def _cross_entropy(x_CV: Tensor, targets_C: Tensor, smoothing: float, p_CV: Tensor) -> Tensor:
    """A chunk's loss; p − q, its gradient by the logits, is left in p."""
    target_C1 = targets_C[:, None]
    torch.softmax(x_CV, dim=-1, out=p_CV)
    # log Σ exp x = m − log p_m, where m is the largest: its p is never too small for a logarithm
    log_sum_C1 = x_CV.amax(dim=-1, keepdim=True) - p_CV.amax(dim=-1, keepdim=True).log()
    loss = (log_sum_C1 - (1 - smoothing) * x_CV.gather(1, target_C1)).sum()
    if smoothing:
        loss -= smoothing / x_CV.shape[1] * x_CV.sum()
        p_CV -= smoothing / x_CV.shape[1]
    p_CV.scatter_add_(1, target_C1, p_CV.new_full(target_C1.shape, smoothing - 1))
    return loss


def _r_drop(x_CV: Tensor, y_CV: Tensor, targets_C: Tensor, smoothing: float, weight: float, room_2CV: Tensor) -> Tensor:
    """A chunk's loss of two passes; its gradients by their logits are left in x and y."""
    p_CV, r_CV = room_2CV.unbind()
    loss = torch.zeros((), dtype=x_CV.dtype, device=x_CV.device)
    target_C1 = targets_C[:, None]
    for logits_CV, shares_CV in ((x_CV, p_CV), (y_CV, r_CV)):
        torch.softmax(logits_CV, dim=-1, out=shares_CV)
        logits_CV -= logits_CV.amax(dim=-1, keepdim=True) - shares_CV.amax(dim=-1, keepdim=True).log()  # now log p
        loss -= (1 - smoothing) / 2 * logits_CV.gather(1, target_C1).sum()
        if smoothing:
            loss -= smoothing / (2 * logits_CV.shape[1]) * logits_CV.sum()
    d_CV = x_CV.sub_(y_CV)
    of_p_C1 = torch.mul(p_CV, d_CV, out=y_CV).sum(dim=-1, keepdim=True)
    of_r_C1 = -torch.mul(r_CV, d_CV, out=y_CV).sum(dim=-1, keepdim=True)
    loss += weight / 2 * (of_p_C1 + of_r_C1).sum()
    half = weight / 2
    torch.mul(d_CV, -half, out=y_CV).add_(0.5 + half * (1 - of_r_C1)).mul_(r_CV).sub_(p_CV, alpha=half)
    x_CV.mul_(half).add_(0.5 + half * (1 - of_p_C1)).mul_(p_CV).sub_(r_CV, alpha=half)
    for gradient_CV in (x_CV, y_CV):
        if smoothing:
            gradient_CV -= smoothing / (2 * gradient_CV.shape[1])
        gradient_CV.scatter_add_(1, target_C1, gradient_CV.new_full(target_C1.shape, (smoothing - 1) / 2))
    return loss


def _chunks(positions: int, vocabulary: int, device: str) -> Iterator[slice]:
    size = max(1, _LOGITS.get(device, 2**26) // max(1, vocabulary))
    return (slice(start, min(start + size, positions)) for start in range(0, positions, size))
