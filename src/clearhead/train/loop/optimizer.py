"""The optimizer of a recipe: AdamW, or Muon for the matrices of the layers with AdamW for everything else."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.train.recipe.sections import OptimizerSection
from clearhead.train.regularizers.weight_decay import decayed_parameters

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration, chosen by Jordan et al. 2024 for a steep start."""


def create_optimizer(
    model: nn.Module, settings: OptimizerSection, weight_decay: float, matmul_dtype: torch.dtype | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe, with decoupled weight decay on matrices only.

    Args:
        model: the model to train.
        settings: the recipe's section.
        weight_decay: λ.
        matmul_dtype: dtype in which Muon orthogonalizes; None for the weights' own.

    Raises:
        ValueError: Muon for a model without trained matrices in its layers.
    """
    blocks = dict(matrix_blocks(model)) if settings.name == "muon" else {}
    if settings.name == "muon" and not blocks:
        raise ValueError(
            "optimizer.name is muon, but no layer has a trained weight matrix; choose adamw, or remove names from "
            "model.freeze"
        )
    decayed = {parameter: None for parameter in decayed_parameters(model) if parameter not in blocks}
    others = [p for p in model.parameters() if p.requires_grad and p not in blocks and p not in decayed]
    groups = [{"params": list(decayed), "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    adam: dict[str, Any] = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.eps}
    if not blocks:
        return torch.optim.AdamW(groups, **adam, fused=True)
    rate = settings.matrix_learning_rate or settings.learning_rate
    return MuonAndAdamW(
        blocks, groups, matrix_lr=rate, matrix_weight_decay=weight_decay, matmul_dtype=matmul_dtype, **adam
    )


def matrix_blocks(model: nn.Module) -> Iterator[tuple[nn.Parameter, list[int]]]:
    """Yield the trained weight matrices of the layers, each with the rows of its projections.

    Embeddings, output layers and heads are not among them: their rows belong to tokens or labels. [Q; K; V] counts as
    three projections.
    """
    for name, module in model.named_modules():
        if ".layers." not in f".{name}.":
            continue
        for child_name, child in module.named_children():
            if isinstance(child, nn.Linear) and child.weight.requires_grad:
                weight = child.get_parameter("weight")
                yield weight, _projections(module, child_name, len(weight))


def _projections(module: nn.Module, name: str, rows: int) -> list[int]:
    if isinstance(module, MultiHeadAttention) and name == "qkv":
        shared = module.num_kv_heads * module.head_dim
        return [rows - 2 * shared, shared, shared]
    if isinstance(module, CrossAttention) and name == "kv":
        return [rows // 2, rows // 2]
    return [rows]


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for matrices, AdamW for all other parameters, as one optimizer with one state.

    Equation: M ← μ M + G; W ← W − η (0.2 √max(rows, columns) · orthogonal(G + μ M) + λ W)
    Source: Jordan et al. 2024, "Muon"; the factor of Liu et al. 2025, "Muon is Scalable for LLM Training", equation 4

    Args:
        blocks: each matrix with the rows of its projections, which are orthogonalized one by one.
        groups: parameter groups of AdamW.
        matrix_lr, matrix_weight_decay: η and λ of the matrices. With the factor above, their update is as large
            as AdamW's, so that one rate suits both.
        momentum: μ.
        matmul_dtype: dtype of the orthogonalization; None for that of the matrices.
        lr, betas, eps: AdamW's.
    """

    def __init__(
        self,
        blocks: dict[nn.Parameter, list[int]],
        groups: list[dict[str, Any]],
        *,
        matrix_lr: float,
        matrix_weight_decay: float,
        momentum: float = 0.95,
        matmul_dtype: torch.dtype | None = None,
        **adam: Any,
    ) -> None:
        self._blocks, self._matmul_dtype = list(blocks.values()), matmul_dtype
        self._adamw = torch.optim.AdamW(groups, **adam, fused=True) if groups else None
        matrices = {"params": list(blocks), "lr": matrix_lr, "weight_decay": matrix_weight_decay, "momentum": momentum}
        super().__init__([matrices, *(self._adamw.param_groups if self._adamw else [])], defaults={})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        matrices, *others = self.param_groups
        self._step_matrices(matrices)
        if self._adamw is not None:
            # both share groups and state, which the scheduler and a resumed run replace here
            self._adamw.param_groups, self._adamw.state = others, self.state
            self._adamw.step()
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        trained = [(p, rows) for p, rows in zip(group["params"], self._blocks, strict=True) if p.grad is not None]
        directions = []
        for parameter, rows in trained:
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum = state["momentum_buffer"].mul_(group["momentum"]).add_(parameter.grad)
            directions += parameter.grad.add(momentum, alpha=group["momentum"]).split(rows)
        updates = iter(orthogonalize(directions, self._matmul_dtype))
        for parameter, rows in trained:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            for weight in parameter.split(rows):
                weight.add_(next(updates), alpha=-group["lr"] * 0.2 * max(weight.shape) ** 0.5)


def orthogonalize(
    matrices: list[Float[Tensor, "_ _"]], dtype: torch.dtype | None = None, steps: int = 5
) -> list[Tensor]:
    """Return for each matrix U Σ Vᵀ about U Vᵀ: all singular values between 0.7 and 1.2.

    Equation: X ← a X + (b A + c A²) X with A = X Xᵀ, from X = G / ‖G‖
    Source: Jordan et al. 2024, "Muon"

    Args:
        matrices: of any shapes; those of one shape are computed together.
        dtype: dtype of the matmuls; None for that of the matrices. bfloat16 is exact enough for an approximation.
        steps: number of iterations.

    >>> import torch; from clearhead.train.loop.optimizer import orthogonalize
    >>> torch.linalg.svdvals(orthogonalize([torch.diag(torch.tensor([1.0, 4.0]))])[0]).round(decimals=1)
    tensor([0.7000, 0.7000])
    """
    a, b, c = NEWTON_SCHULZ
    wide = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T for matrix in matrices]
    results: list[Tensor] = [matrices[0]] * len(matrices)
    for shape in dict.fromkeys(matrix.shape for matrix in wide):
        members = [index for index, matrix in enumerate(wide) if matrix.shape == shape]
        x = torch.stack([wide[index] for index in members])
        x = (x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)).to(dtype)
        for _ in range(steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        for index, one in zip(members, x.to(matrices[0].dtype), strict=True):
            results[index] = one if matrices[index].shape == shape else one.T
    return results
