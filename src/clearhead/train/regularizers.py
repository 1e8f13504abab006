"""The regularisers: what each switch does to the model, to the optimiser and to the loss."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.equations import losses
from clearhead.kernels.linear_cross_entropy import chunked_vocabulary_loss, linear_r_drop
from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.layers.embedding import Embedding
from clearhead.layers.feedforward import GatedFeedForward, PositionwiseFeedForward
from clearhead.layers.norm import LayerNorm, RMSNorm
from clearhead.layers.residual import PostNorm, PreNorm
from clearhead.models.heads import OutputHead
from clearhead.stacks.decoder import Decoder
from clearhead.stacks.encoder import Encoder
from clearhead.train.recipe.recipe import Dropout, Optimizer
from clearhead.train.tasks.base import ClassPredictions, EmbeddingPredictions, Prediction, TokenPredictions


def set_dropout(model: nn.Module, rates: Dropout) -> None:
    """Sets a model's dropout by place."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention | CrossAttention):
            module.drop_prob = rates.attention
        elif isinstance(module, PositionwiseFeedForward | GatedFeedForward):
            module.dropout.p = rates.feed_forward
        elif isinstance(module, PostNorm | PreNorm | OutputHead):  # before a head: BERT's hidden_dropout_prob is both
            module.dropout.p = rates.residual
        elif isinstance(module, Embedding):
            module.dropout.p = rates.embedding


def set_layer_drop(model: nn.Module, rate: float) -> None:
    """Sets the probability with which a layer of a model's stacks is left out in training."""
    for module in model.modules():
        if isinstance(module, Encoder | Decoder):
            module.layer_drop = rate


def remove_norms(model: nn.Module) -> None:
    """Makes every norm of a model the identity."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, LayerNorm | RMSNorm):
                setattr(module, name, nn.Identity())


def decayed_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The trained parameters that decay and penalty hold small: matrices, no biases and no norms."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim > 1]


def optimizer(model: nn.Module, told: Optimizer, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with its decoupled decay on matrices alone.

    Equation: w ← w − η (m̂ / (√v̂ + ε) + λ w)
    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", Algorithm 2
    """
    decayed = decayed_parameters(model)
    known = {id(parameter) for parameter in decayed}
    rest = [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in known]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=told.learning_rate,
        betas=told.betas,
        eps=told.eps,
        fused=True,
    )


def task_loss(guess: Prediction, smoothing: float = 0.0) -> Tensor:
    """The loss of a guess against the data, summed."""
    match guess:
        case TokenPredictions():
            return guess.output.loss(guess.hidden_ND, guess.targets_N, smoothing=smoothing)
        case ClassPredictions():
            return losses.cross_entropy(guess.logits_NC, guess.targets_N, smoothing=smoothing)
        case EmbeddingPredictions():
            return guess.loss
    raise AssertionError(guess)


def r_drop_loss(one: Prediction, other: Prediction, smoothing: float, weight: float) -> Tensor:
    """R-Drop: the mean loss of two guesses of the same batch, and their divergence times a weight; summed."""
    if isinstance(one, TokenPredictions) and isinstance(other, TokenPredictions):
        first, second = (side.output.scale_hidden(side.hidden_ND) for side in (one, other))
        matrix, bias = one.output.tokens.weight, one.output.bias
        return linear_r_drop(first, second, matrix, one.targets_N, bias, smoothing=smoothing, weight=weight)
    assert isinstance(one, ClassPredictions)
    assert isinstance(other, ClassPredictions)
    mean = (task_loss(one, smoothing) + task_loss(other, smoothing)) / 2
    return mean + weight * losses.r_drop(one.logits_NC, other.logits_NC)


def distillation_loss(student: Prediction, teacher: Prediction, temperature: float) -> Tensor:
    """The divergence of a guess from a teacher's, summed; of vectors their distance."""
    if isinstance(student, TokenPredictions) and isinstance(teacher, TokenPredictions):
        return _over_vocabulary(partial(losses.distillation, temperature=temperature), student, teacher)
    if isinstance(student, ClassPredictions) and isinstance(teacher, ClassPredictions):
        return losses.distillation(student.logits_NC, teacher.logits_NC, temperature=temperature)
    assert isinstance(student, EmbeddingPredictions)
    assert isinstance(teacher, EmbeddingPredictions)
    one = torch.nn.functional.normalize(student.vectors_ND, dim=-1)
    return (one - torch.nn.functional.normalize(teacher.vectors_ND, dim=-1)).square().sum()


def hidden_state_loss(student: Prediction, teacher: Prediction) -> Tensor:
    """The mean squared distance of last hidden states, summed over positions."""
    assert isinstance(student, TokenPredictions)
    assert isinstance(teacher, TokenPredictions)
    return losses.hidden_state_distance(student.hidden_ND, teacher.hidden_ND)


def _over_vocabulary(
    loss: Callable[[Tensor, Tensor], Tensor], one: TokenPredictions, other: TokenPredictions
) -> Tensor:
    sides = (one, other)
    return chunked_vocabulary_loss(
        loss,
        [side.output.scale_hidden(side.hidden_ND) for side in sides],
        [side.output.tokens.weight for side in sides],
        [side.output.bias for side in sides],
    )
