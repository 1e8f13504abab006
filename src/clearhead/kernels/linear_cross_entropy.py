"""Losses over a large vocabulary, computed from hidden states in chunks, without storing all logits.

For each chunk of positions the forward pass computes the logits, the loss and its gradient, and then reuses their
memory. The backward pass only scales these gradients. The sums are those of `equations/losses.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.equations.losses import check_targets
from clearhead.kernels.native import library, training

_LOGITS = {"cpu": 2**22}
"""Logits in a chunk on a device: few enough for a CPU cache, enough for fast matmuls."""
_LOGITS_ELSEWHERE = 2**26
"""Logits in a chunk on other devices: enough to keep a GPU busy."""


def linear_cross_entropy(
    hidden_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    targets_N: Int[Tensor, "N"],
    bias_V: Float[Tensor, "V"] | None = None,
    *,
    smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """Return `cross_entropy` of the logits H Wᵀ + b without storing all logits.

    Source: Section 5.4; the formula is in `equations/losses.py`. The gradient of the logits is p − q, so that
        dL/dH = (p − q) W, dL/dW = (p − q)ᵀ H and dL/db = (p − q)ᵀ 1 follow in the forward pass. Hsu et al. 2024,
        "Liger Kernel", use this method on GPUs

    Args:
        hidden_ND: hidden states; ignored positions are dropped first.
        weight_VD: the output matrix, which may also be the token embedding.
        targets_N, smoothing, ignore_index: as in `cross_entropy`.
        bias_V: bias of the logits, or None.

    Under autocast the matmuls use its dtype; softmax, sums and gradients are in 32 bits. Second
    derivatives are not supported.

    Raises:
        ValueError: as in `cross_entropy`.

    >>> import torch; from clearhead.kernels.linear_cross_entropy import linear_cross_entropy
    >>> linear_cross_entropy(torch.zeros(2, 4), torch.ones(10, 4), torch.tensor([3, -100]))
    tensor(2.3026)
    """
    check_targets(targets_N, len(weight_VD), smoothing, ignore_index)
    counts_N = targets_N != ignore_index
    if not bool(counts_N.all()):
        index_K = counts_N.nonzero()[:, 0]
        hidden_ND, targets_N = hidden_ND.index_select(0, index_K), targets_N.index_select(0, index_K)

    if (isa := _native_isa(hidden_ND, weight_VD)) is not None:
        return _chunked_sum(_native_step(targets_N, bias_V, smoothing, isa), [(hidden_ND, weight_VD, bias_V)], raw=True)
    step = _step(targets_N[:, None], hidden_ND.new_ones(len(targets_N), 1), smoothing)
    return _chunked_sum(step, [(hidden_ND, weight_VD, bias_V)])


def linear_soft_cross_entropy(
    hidden_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    targets_NK: Int[Tensor, "N K"],
    probs_NK: Float[Tensor, "N K"],
    bias_V: Float[Tensor, "V"] | None = None,
    *,
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the cross-entropy with several targets for each position, such as the best tokens of a teacher.

    Equation: L = −Σ_n Σ_v q_nv log p_nv, q_n = (1 − ε) Σ_k probs_nk onehot(targets_nk) + ε / V, p = softmax(H Wᵀ + b)
    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", Section 2. The gradient of the logits
        is p − q

    Args:
        hidden_ND, weight_VD, bias_V: as in `linear_cross_entropy`.
        targets_NK: target ids; the same one may occur twice.
        probs_NK: their probabilities; the sum of each row must be 1.
        smoothing: ε, as in `cross_entropy`.

    Dtypes, gradients and errors are as in `linear_cross_entropy`; no position is ignored.

    >>> import torch; from clearhead.kernels.linear_cross_entropy import linear_soft_cross_entropy
    >>> half = torch.full((1, 2), 0.5)
    >>> linear_soft_cross_entropy(torch.zeros(1, 4), torch.ones(10, 4), torch.tensor([[3, 7]]), half)
    tensor(2.3026)
    """
    check_targets(targets_NK.flatten(), len(weight_VD), smoothing, ignore_index=-100)
    if (isa := _native_isa(hidden_ND, weight_VD)) is not None:
        step = _native_soft_step(targets_NK.long(), probs_NK.float(), bias_V, smoothing, isa)
        return _chunked_sum(step, [(hidden_ND, weight_VD, bias_V)], raw=True)
    return _chunked_sum(_step(targets_NK, probs_NK, smoothing), [(hidden_ND, weight_VD, bias_V)])


def _step(targets_NK: Tensor, probs_NK: Tensor, smoothing: float) -> "Step":
    buffer_CV = torch.empty(0, device=targets_NK.device)

    def step(logits: Sequence[Tensor], rows: slice, needs_grad: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        nonlocal buffer_CV
        buffer_CV = buffer_CV.to(logits[0].dtype).resize_(logits[0].shape)
        loss = _cross_entropy(logits[0], targets_NK[rows].long(), probs_NK[rows], smoothing, buffer_CV)
        return loss, [buffer_CV if needs_grad[0] else None]

    return step


def _native_isa(hidden_ND: Tensor, weight_VD: Tensor) -> str | None:
    """Return the instruction set of the compiled kernel, or None where it does not compute these dtypes."""
    kind = hidden_ND.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_ND.dtype
    usable = kind == "cpu" and hidden_ND.dtype == weight_VD.dtype == torch.float32
    return library.isa_with("cross_entropy") if usable and dtype in (torch.float32, torch.bfloat16) else None


def _native_step(targets_N: Tensor, bias_V: Tensor | None, smoothing: float, isa: str) -> "Step":
    targets_N = targets_N.long().contiguous()
    bias = None if bias_V is None else bias_V.detach().contiguous()

    def step(logits: Sequence[Tensor], rows: slice, needs_grad: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        # one pass instead of eight, in float32 whatever the dtype of the logits
        losses_C = training.cross_entropy(logits[0], bias, targets_N[rows], smoothing, isa)
        return losses_C.sum(), [logits[0] if needs_grad[0] else None]

    return step


def _native_soft_step(
    targets_NK: Tensor, probs_NK: Tensor, bias_V: Tensor | None, smoothing: float, isa: str
) -> "Step":
    """Return the step with the first target alone, corrected for the others: the loss is linear in the targets."""
    with_one = _native_step(targets_NK[:, 0], bias_V, smoothing, isa)
    change_NK = probs_NK * (smoothing - 1)
    change_NK[:, 0] += 1 - smoothing

    def step(logits: Sequence[Tensor], rows: slice, needs_grad: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        targets_CK, change_CK = targets_NK[rows], change_NK[rows]
        chosen_CK = logits[0].gather(1, targets_CK).float()
        if bias_V is not None:
            chosen_CK += bias_V.detach()[targets_CK]
        loss, gradients = with_one(logits, rows, needs_grad)
        logits[0].scatter_add_(1, targets_CK, change_CK.to(logits[0].dtype))  # the gradient, in the same memory
        return loss + (chosen_CK * change_CK).sum(), gradients

    return step


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
    """Return the mean `cross_entropy` of two passes plus their weighted `r_drop`, in one pass over the vocabulary.

    Equation: L = ½ [CE(p) + CE(r)] + α ½ Σ_n [KL(p_n ‖ r_n) + KL(r_n ‖ p_n)], p and r the softmax of H Wᵀ + b of each
    Source: Liang et al. 2021, "R-Drop", equation 3, halved. With d = log p − log r the gradient of the first logits
        is ½ (p − q) + α/2 [p (d − KL(p ‖ r)) + p − r]; that of the second has p and r exchanged

    Args:
        hidden_1_ND, hidden_2_ND: hidden states of the two passes; no position is ignored.
        weight_VD, targets_N, bias_V, smoothing: as in `linear_cross_entropy`.
        weight: α, at least 0.

    Dtypes, gradients and errors are as in `linear_cross_entropy`.

    >>> import torch; from clearhead.kernels.linear_cross_entropy import linear_r_drop
    >>> linear_r_drop(torch.zeros(1, 4), torch.zeros(1, 4), torch.ones(10, 4), torch.tensor([3]), weight=5.0)
    tensor(2.3026)
    """
    check_targets(targets_N, len(weight_VD), smoothing, ignore_index=-100)
    buffer_2CV = torch.empty(0, device=hidden_1_ND.device)

    def step(logits: Sequence[Tensor], rows: slice, needs_grad: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        nonlocal buffer_2CV
        buffer_2CV = buffer_2CV.to(logits[0].dtype).resize_(2, *logits[0].shape)
        loss = _r_drop(logits[0], logits[1], targets_N[rows].long(), smoothing, weight, buffer_2CV)
        return loss, [x if needed else None for x, needed in zip(logits, needs_grad, strict=True)]

    return _chunked_sum(step, [(hidden_1_ND, weight_VD, bias_V), (hidden_2_ND, weight_VD, bias_V)])


def chunked_vocabulary_loss(
    loss: Callable[..., Tensor],
    hiddens: Sequence[Float[Tensor, "N _"]],
    weights: Sequence[Float[Tensor, "V _"]],
    biases: Sequence[Float[Tensor, "V"] | None] | None = None,
    rows: Sequence[Tensor] = (),
) -> Float[Tensor, ""]:
    """Return the sum over positions of any loss of one or more sets of logits, without storing all logits.

    Source: Section 3.4, logits = H W_Eᵀ + b; autograd computes the gradient within each chunk

    Args:
        loss: the loss summed over the positions of a chunk, such as `partial(distillation, temperature=2.0)`. Its
            arguments are the logits (n, V) of each set, then the chunk of each tensor in `rows`. It must depend on no
            other trained tensor.
        hiddens: hidden states of each set, such as student and teacher, without ignored positions.
        weights: the output matrix of each set. No gradients are computed for frozen ones, such as a teacher's.
        biases: the bias of each set, or None; None for no biases.
        rows: further arguments of the loss with one row for each position, such as targets.

    Dtypes and gradients are as in `linear_cross_entropy`.

    Raises:
        ValueError: different numbers of hidden states, weights and biases, or of positions.

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

    def step(logits: Sequence[Tensor], part: slice, needs_grad: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        leaves = [x.detach().requires_grad_(needed) for x, needed in zip(logits, needs_grad, strict=True)]
        with torch.set_grad_enabled(any(needs_grad)):
            value = loss(*leaves, *(row[part] for row in rows))
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = iter(torch.autograd.grad(value, trained) if trained else ())
        return value.detach(), [next(gradients) if leaf.requires_grad else None for leaf in leaves]

    return _chunked_sum(step, list(zip(hiddens, weights, biases, strict=True)))


Step = Callable[[Sequence[Tensor], slice, Sequence[bool]], tuple[Tensor, list[Tensor | None]]]
"""Map the logits of each set, their positions and whether they need gradients to the loss and the gradients."""


def _chunked_sum(step: Step, sets: Sequence[tuple[Tensor, Tensor, Tensor | None]], *, raw: bool = False) -> Tensor:
    """Return the sum of the losses of all chunks; a raw step gets logits in the dtype of the matmul, without biases."""
    tensors = [tensor for part in sets for tensor in part]
    total: Tensor = _Chunked.apply(step, raw, torch.is_grad_enabled(), *tensors)  # type: ignore[no-untyped-call]
    return total


class _Chunked(torch.autograd.Function):
    """The sum of the losses of all chunks, with gradients of hidden states, weights and biases."""

    @staticmethod
    def forward(ctx: Any, step: Step, raw: bool, grad_enabled: bool, *tensors: Tensor | None) -> Tensor:
        needs_grad = [grad_enabled and needed for needed in ctx.needs_input_grad[3:]]
        hidden_ND = tensors[0]
        assert hidden_ND is not None
        kind = hidden_ND.device.type
        autocast_dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        with torch.autocast(kind, enabled=False):
            projections = [
                _Projection(tensors[i : i + 3], needs_grad[i : i + 3], autocast_dtype)
                for i in range(0, len(tensors), 3)
            ]
            loss = torch.zeros((), dtype=projections[0].exact, device=hidden_ND.device)
            for rows in _chunks(len(hidden_ND), max(len(one.weight_VD) for one in projections), kind):
                logits = [one.raw_logits(rows) if raw else one.logits(rows) for one in projections]
                value, gradients = step(logits, rows, [any(one.needs_grad) for one in projections])
                loss += value
                for one, gradient_CV in zip(projections, gradients, strict=True):
                    if gradient_CV is not None:
                        one.accumulate(rows, gradient_CV)
        ctx.save_for_backward(*(gradient for one in projections for gradient in one.gradients()))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *(None if gradient is None else gradient * scale for gradient in ctx.saved_tensors)


class _Projection:
    """The output projection of one set: logits, and the gradients of hidden states, weight and bias.

    Matmuls are in the autocast dtype if there is one, all else in at least 32 bits.
    """

    def __init__(
        self, inputs: Sequence[Tensor | None], needs_grad: Sequence[bool], autocast_dtype: torch.dtype | None
    ) -> None:
        hidden_ND, weight_VD, self.bias_V = inputs
        assert hidden_ND is not None
        assert weight_VD is not None
        dtype = autocast_dtype or torch.promote_types(hidden_ND.dtype, weight_VD.dtype)
        self.inputs, self.needs_grad, self.exact = inputs, needs_grad, torch.promote_types(dtype, torch.float32)
        self.hidden_ND, self.weight_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
        self.d_hidden, self.d_weight, self.d_bias = (
            torch.zeros_like(tensor, dtype=self.exact) if tensor is not None and needed else None
            for tensor, needed in zip(inputs, needs_grad, strict=True)
        )
        # allocating memory for each chunk would cost more than the matmul into it
        self.low_CV = torch.empty(0, dtype=dtype, device=hidden_ND.device)
        self.exact_CV = self.low_CV if dtype == self.exact else self.low_CV.to(self.exact)

    def raw_logits(self, rows: slice) -> Tensor:
        hidden_CD = self.hidden_ND[rows]
        self.low_CV.resize_(len(hidden_CD), len(self.weight_VD))
        return torch.mm(hidden_CD, self.weight_VD.T, out=self.low_CV)

    def logits(self, rows: slice) -> Tensor:
        self.raw_logits(rows)
        if self.exact_CV is not self.low_CV:
            self.exact_CV.resize_(self.low_CV.shape).copy_(self.low_CV)
        return self.exact_CV if self.bias_V is None else self.exact_CV.add_(self.bias_V)

    def accumulate(self, rows: slice, gradient_CV: Tensor) -> None:
        """Add the gradients of a chunk, given that of its logits."""
        low_CV = gradient_CV if gradient_CV.dtype == self.low_CV.dtype else self.low_CV.copy_(gradient_CV)
        if self.d_hidden is not None:
            self.d_hidden[rows] = low_CV @ self.weight_VD
        if self.d_weight is not None and low_CV.dtype == self.exact:
            self.d_weight.addmm_(low_CV.T, self.hidden_ND[rows])
        elif self.d_weight is not None:
            self.d_weight += low_CV.T @ self.hidden_ND[rows]
        if self.d_bias is not None:
            self.d_bias += gradient_CV.sum(dim=0, dtype=self.exact)

    def gradients(self) -> list[Tensor | None]:
        pairs = zip(self.inputs, (self.d_hidden, self.d_weight, self.d_bias), strict=True)
        return [None if grad is None or tensor is None else grad.to(tensor.dtype) for tensor, grad in pairs]


def _cross_entropy(x_CV: Tensor, targets_CK: Tensor, probs_CK: Tensor, smoothing: float, p_CV: Tensor) -> Tensor:
    """Return the loss of a chunk and write the gradient of its logits, p − q, to p."""
    torch.softmax(x_CV, dim=-1, out=p_CV)
    # log Σ exp x = m − log p_m for the largest logit m, whose p is never too small for a logarithm
    log_sum_C1 = x_CV.amax(dim=-1, keepdim=True) - p_CV.amax(dim=-1, keepdim=True).log()
    q_CK = (1 - smoothing) * probs_CK.to(x_CV.dtype)
    loss = log_sum_C1.sum() - (q_CK * x_CV.gather(1, targets_CK)).sum()
    if smoothing:
        loss -= smoothing / x_CV.shape[1] * x_CV.sum()
        p_CV -= smoothing / x_CV.shape[1]
    p_CV.scatter_add_(1, targets_CK, -q_CK)
    return loss


def _r_drop(
    x_CV: Tensor, y_CV: Tensor, targets_C: Tensor, smoothing: float, weight: float, buffer_2CV: Tensor
) -> Tensor:
    """Return the loss of a chunk of two passes and write the gradients of their logits to x and y."""
    p_CV, r_CV = buffer_2CV.unbind()
    loss = torch.zeros((), dtype=x_CV.dtype, device=x_CV.device)
    target_C1 = targets_C[:, None]
    for logits_CV, probs_CV in ((x_CV, p_CV), (y_CV, r_CV)):
        torch.softmax(logits_CV, dim=-1, out=probs_CV)
        logits_CV -= logits_CV.amax(dim=-1, keepdim=True) - probs_CV.amax(dim=-1, keepdim=True).log()  # now log p
        loss -= (1 - smoothing) / 2 * logits_CV.gather(1, target_C1).sum()
        if smoothing:
            loss -= smoothing / (2 * logits_CV.shape[1]) * logits_CV.sum()
    d_CV = x_CV.sub_(y_CV)
    kl_p_C1 = torch.mul(p_CV, d_CV, out=y_CV).sum(dim=-1, keepdim=True)
    kl_r_C1 = -torch.mul(r_CV, d_CV, out=y_CV).sum(dim=-1, keepdim=True)
    loss += weight / 2 * (kl_p_C1 + kl_r_C1).sum()
    half = weight / 2
    torch.mul(d_CV, -half, out=y_CV).add_(0.5 + half * (1 - kl_r_C1)).mul_(r_CV).sub_(p_CV, alpha=half)
    x_CV.mul_(half).add_(0.5 + half * (1 - kl_p_C1)).mul_(p_CV).sub_(r_CV, alpha=half)
    for gradient_CV in (x_CV, y_CV):
        if smoothing:
            gradient_CV -= smoothing / (2 * gradient_CV.shape[1])
        gradient_CV.scatter_add_(1, target_C1, gradient_CV.new_full(target_C1.shape, (smoothing - 1) / 2))
    return loss


def _chunks(positions: int, vocabulary: int, device: str) -> Iterator[slice]:
    size = max(1, _LOGITS.get(device, _LOGITS_ELSEWHERE) // max(1, vocabulary))
    return (slice(start, min(start + size, positions)) for start in range(0, positions, size))
