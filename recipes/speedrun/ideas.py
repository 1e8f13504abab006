"""Ideas of the speedrun that Clearhead does not have: each changes the model or its training in a few lines.

`compare.py` trains with one of them at a time. None of them is needed to train `multi30k.yaml`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.layers.dropout import Dropout
from clearhead.layers.embedding import Embedding
from clearhead.layers.feedforward import PositionwiseFeedForward
from clearhead.models.seq2seq import Seq2Seq
from clearhead.tokenizers.tokenizer import Tokenizer

ChangePairs = Callable[[list[Any], np.random.Generator], list[Any]]
"""Changes the token ids of a batch's pairs, with a random generator."""


@dataclass(frozen=True)
class Idea:
    """The changes that an idea makes; None for no change.

    Args:
        change_model: changes a new model in place.
        before_update: called with the model and the finished share of the training, from 0 to 1.
        change_pairs: returns the function that changes the pairs of a batch, given the tokenizer.
        change_batches: returns the batches of an epoch, given its number from 0 and the rows of each batch.
        optimizer: builds the optimizer from the model, the learning rate and the number of warmup steps.
    """

    change_model: Callable[[Seq2Seq], None] | None = None
    before_update: Callable[[nn.Module, float], None] | None = None
    change_pairs: Callable[[Tokenizer], ChangePairs] | None = None
    change_batches: Callable[[int, list[np.ndarray]], list[np.ndarray]] | None = None
    optimizer: Callable[[nn.Module, float, int], torch.optim.Optimizer] | None = None


def squared_relu(model: Seq2Seq) -> None:
    """FFN(x) = max(0, x W₁ + b₁)² W₂ + b₂ (So et al. 2021, "Primer")."""
    for module in model.modules():
        if isinstance(module, PositionwiseFeedForward):
            module.activation = _SquaredReLU()


class _SquaredReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x).square()


def qk_norm(model: Seq2Seq) -> None:
    """Queries and keys have root mean square 1 in each head (Henry et al. 2020, "Query-Key Normalization")."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.__class__ = _NormalizedSelfAttention
        elif isinstance(module, CrossAttention):
            module.__class__ = _NormalizedCrossAttention
            module.q.__class__ = _NormalizedQueries
            module.q.head_dim = module.head_dim


def _normalized(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:]).to(x.dtype)  # autocast computes it in float32


class _NormalizedSelfAttention(MultiHeadAttention):
    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(qkv)
        return _normalized(q), _normalized(k), v


class _NormalizedCrossAttention(CrossAttention):
    def _project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super()._project_memory(memory)
        return _normalized(k), v


class _NormalizedQueries(nn.Linear):
    head_dim: int

    def forward(self, x: Tensor) -> Tensor:
        return _normalized(super().forward(x).unflatten(-1, (-1, self.head_dim))).flatten(-2)


def value_residual(model: Seq2Seq) -> None:
    """The values of each self-attention are averaged with those of the first layer (Zhou et al. 2024)."""
    for stack in (model.encoder, model.decoder):
        first: list[Tensor] = []
        for layer in stack.layers:
            layer.attention.__class__ = _AveragedSelfAttention
            layer.attention.first, layer.attention.is_last = first, layer is stack.layers[-1]


class _AveragedSelfAttention(MultiHeadAttention):
    first: list[Tensor]
    """The values of the first layer, which all layers of a stack share; empty between passes."""
    is_last: bool

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(qkv)
        if not self.first:
            self.first.append(v)
            return q, k, v
        return q, k, (v + (self.first.pop() if self.is_last else self.first[0])) / 2


def scale_the_output(model: Seq2Seq) -> None:
    """The logits are divided by √d_model instead of multiplying embeddings by it, as in T5 (Raffel et al. 2020).

    A new model computes the same; its embeddings are √d_model as large, so that each update changes them less.
    """
    weight = model.output.tokens.weight
    with torch.no_grad():
        weight *= weight.shape[1] ** 0.5
    model.output.scale = True
    for module in model.modules():
        if isinstance(module, Embedding):
            module.scale = False


def dropout_that_grows(model: nn.Module, share: float) -> None:
    """Dropout grows from 0 to twice its rate, linearly (Liu et al. 2023, "Dropout Reduces Underfitting", Section 5)."""
    for module in model.modules():
        if isinstance(module, Dropout):
            if not hasattr(module, "mean_prob"):
                module.mean_prob = module.drop_prob
            module.drop_prob = 2 * share * module.mean_prob


SPLIT_RATE = 0.1
"""Probability that a token is split."""


def split_tokens(tokenizer: Tokenizer) -> ChangePairs:
    """Tokens are split into the two that they were merged from, and those again, each with probability 0.1.

    Source: a variant of Provilkov et al. 2020, "BPE-Dropout", which skips merges instead of undoing them
    """
    model = json.loads(tokenizer.backend.to_str())["model"]
    vocabulary = model["vocab"]
    parts_V2 = np.full((tokenizer.backend.get_vocab_size(), 2), -1)  # -1: no merge made this token
    for left, right in reversed(model["merges"]):  # the first merge of a token comes last, and stays
        parts_V2[vocabulary[left + right]] = vocabulary[left], vocabulary[right]

    def split(pairs: list[Any], generator: np.random.Generator) -> list[Any]:
        texts = [np.asarray(pair[side], dtype=np.int64) for pair in pairs for side in ("source", "target")]
        ids, text_of = np.concatenate(texts), np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        is_new = np.ones(len(ids), dtype=bool)
        while True:
            chosen = is_new & (parts_V2[ids, 0] >= 0) & (generator.random(len(ids)) < SPLIT_RATE)
            if not chosen.any():
                break
            parts, counts = parts_V2[ids[chosen]], 1 + chosen
            first = (np.cumsum(counts) - counts)[chosen]
            ids, text_of, is_new = (np.repeat(values, counts) for values in (ids, text_of, chosen))
            ids[first], ids[first + 1] = parts[:, 0], parts[:, 1]
        ends = np.searchsorted(text_of, np.arange(len(texts)), side="right")
        changed = iter(np.split(ids, ends[:-1]))
        return [{"source": next(changed), "target": next(changed)} for _ in pairs]

    return split


HALVED_BATCHES = 100
"""Number of batches that are divided into two."""


def batches_that_grow(epoch: int, batches: list[np.ndarray]) -> list[np.ndarray]:
    """The first batches have half the size (Smith et al. 2018, "Don't Decay the Learning Rate, Increase the ...")."""
    if epoch > 0:
        return batches
    halves = [half for rows in batches[:HALVED_BATCHES] for half in (rows[::2], rows[1::2]) if len(half)]
    return halves + batches[HALVED_BATCHES:]


def schedule_free(model: nn.Module, learning_rate: float, warmup_steps: int) -> Any:
    """AdamW with an average of the weights in place of a decaying rate, from the authors' package schedulefree.

    Source: Defazio et al. 2024, "The Road Less Scheduled"
    """
    import schedulefree

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return schedulefree.AdamWScheduleFreeClosure(
        parameters, lr=learning_rate, betas=(0.95, 0.98), warmup_steps=warmup_steps
    )
