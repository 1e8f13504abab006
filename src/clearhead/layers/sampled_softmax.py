"""Sampled softmax: a training loss over the targets of a batch and a sample of the other tokens."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class SampledVocabulary:
    """The tokens in the softmax of a batch.

    Args:
        ids_K: the targets of the batch in order, then a random sample of the other tokens.
        bias_K: added to their logits: 0 for a target, and for a sampled token ln (V − |T|) / |S|.
        targets_N: position of each target in ids_K.
    """

    ids_K: Int[Tensor, " K"]
    bias_K: Float[Tensor, " K"]
    targets_N: Int[Tensor, " N"]


def sample_vocabulary(targets_N: Int[Tensor, " N"], vocab_size: int, num_sampled: int) -> SampledVocabulary:
    """Return the tokens whose softmax replaces that over the whole vocabulary in a training loss.

    Equation: Σ_{i ∈ T} exp z_i + (V − |T|) / |S| Σ_{i ∈ S} exp z_i, with the targets T of the batch and a random sample
        S of the other tokens, is Σ_i exp z_i on average
    Source: Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation", Section 3; the
        weight makes the sum unbiased

    Args:
        targets_N: target ids from 0 to vocab_size − 1.
        vocab_size: number of tokens V.
        num_sampled: size of S, at least 1; if fewer tokens are left, all of them are taken, and the sum is exact.

    >>> import torch; from clearhead.layers.sampled_softmax import sample_vocabulary
    >>> sample_vocabulary(torch.tensor([7, 2, 7]), vocab_size=10, num_sampled=4).targets_N
    tensor([1, 0, 1])
    """
    is_target_V = torch.zeros(vocab_size, dtype=torch.bool, device=targets_N.device)
    is_target_V[targets_N] = True
    targets, others = is_target_V.nonzero()[:, 0], (~is_target_V).nonzero()[:, 0]
    sample = others[torch.randperm(len(others), device=others.device)[:num_sampled]]
    bias_K = torch.zeros(len(targets) + len(sample), device=targets.device)
    if len(sample):
        bias_K[len(targets) :] = math.log(len(others) / len(sample))
    position_V = is_target_V.cumsum(0) - 1  # among the targets
    return SampledVocabulary(torch.cat([targets, sample]), bias_K, position_V[targets_N])
