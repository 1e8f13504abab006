"""The losses of training, written out: the oracles of the faster forms, and the definitions of the rest.

Each gives the **sum** over what counts, in 32 bits at least: whoever trains divides by the number that counts, over
all chunks and all machines, so that neither changes the gradient. N is the number of positions, V of logits the
vocabulary.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


def cross_entropy(
    logits_NV: Float[Tensor, "N V"],
    targets_N: Int[Tensor, "N"],
    *,
    smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """How surprising the targets are to the model, with label smoothing; summed over the positions that count.

    Equation: L = −Σ_n Σ_v q_nv log p_nv, p = softmax(logits), q = (1 − ε) onehot(t) + ε / V
    Source: Section 5.4; Szegedy et al. 2016, "Rethinking the Inception Architecture", Section 7. torch's
        `label_smoothing` is the same; fairseq gives ε / (V − 1) to each of the other tokens, a slightly larger ε

    Args:
        logits_NV: scores of the tokens.
        targets_N: the ids of the right ones.
        smoothing: ε, from 0 up to, not including, 1.
        ignore_index: the target of positions that do not count, such as padding.

    Raises:
        ValueError: a target outside the vocabulary (checked on the CPU), or a smoothing out of range.

    >>> import torch; from clearhead.equations.losses import cross_entropy
    >>> cross_entropy(torch.zeros(2, 10), torch.tensor([3, -100]))
    tensor(2.3026)
    """
    check_targets(targets_N, logits_NV.shape[1], smoothing, ignore_index)
    counts_N = targets_N != ignore_index
    log_p_NV = torch.log_softmax(_exact(logits_NV[counts_N]), dim=-1)
    onehot_NV = functional.one_hot(targets_N[counts_N].long(), logits_NV.shape[1])
    q_NV = (1 - smoothing) * onehot_NV.to(log_p_NV.dtype) + smoothing / logits_NV.shape[1]
    # 0 · log 0 is 0: a token that is ruled out by −∞ has no share, unless smoothing gives it one
    return -torch.where(q_NV == 0, 0.0, q_NV * log_p_NV).sum()


def distillation(
    student_logits_NV: Float[Tensor, "N V"], teacher_logits_NV: Float[Tensor, "N V"], *, temperature: float
) -> Float[Tensor, ""]:
    """How far the student's softened probabilities are from the teacher's; summed over positions.

    Equation: L = T² Σ_n Σ_v p_nv (log p_nv − log s_nv), p = softmax(teacher / T), s = softmax(student / T)
    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", Section 2; T² keeps the gradient's size

    Args:
        student_logits_NV: scores of the model in training.
        teacher_logits_NV: scores of the model that it learns from.
        temperature: T, above 0.

    Raises:
        ValueError: a temperature that is not above 0.

    >>> import torch; from clearhead.equations.losses import distillation
    >>> distillation(torch.zeros(2, 10), torch.zeros(2, 10), temperature=2.0)
    tensor(0.)
    """
    if not temperature > 0:
        raise ValueError(f"a temperature is above 0; got {temperature}")
    log_s_NV = torch.log_softmax(_exact(student_logits_NV) / temperature, dim=-1)
    log_p_NV = torch.log_softmax(_exact(teacher_logits_NV) / temperature, dim=-1)
    return temperature**2 * (log_p_NV.exp() * (log_p_NV - log_s_NV)).sum()


def hidden_state_distance(
    student: Float[Tensor, "*batch D"],
    teacher: Float[Tensor, "*batch D"],
    keep: Bool[Tensor, "*batch"] | None = None,
) -> Float[Tensor, ""]:
    """How far the student's hidden states are from the teacher's; summed over the tokens that are kept.

    Equation: L = Σ_n ‖h_n − g_n‖² / D, h the student's, g the teacher's
    Source: Romero et al. 2015, "FitNets", equation 3; Jiao et al. 2020, "TinyBERT", equation 8. A student of another
        width comes here through a learned linear map

    Args:
        student, teacher: hidden states.
        keep: True at the tokens that count; None for all.

    >>> import torch; from clearhead.equations.losses import hidden_state_distance
    >>> hidden_state_distance(torch.zeros(2, 3, 4), torch.ones(2, 3, 4))
    tensor(6.)
    """
    if keep is not None:
        student, teacher = student[keep], teacher[keep]
    return (_exact(student) - _exact(teacher)).square().mean(dim=-1).sum()


def r_drop(logits_1_NV: Float[Tensor, "N V"], logits_2_NV: Float[Tensor, "N V"]) -> Float[Tensor, ""]:
    """How far two passes over the same text, each with its own dropout, are apart; summed over positions.

    Equation: L = ½ Σ_n [KL(p_n ‖ r_n) + KL(r_n ‖ p_n)], p = softmax(logits_1), r = softmax(logits_2)
    Source: Liang et al. 2021, "R-Drop", equation 2

    Args:
        logits_1_NV, logits_2_NV: scores of the two passes.

    >>> import torch; from clearhead.equations.losses import r_drop
    >>> r_drop(torch.zeros(2, 10), torch.zeros(2, 10))
    tensor(0.)
    """
    log_p_NV = torch.log_softmax(_exact(logits_1_NV), dim=-1)
    log_r_NV = torch.log_softmax(_exact(logits_2_NV), dim=-1)
    return ((log_p_NV.exp() - log_r_NV.exp()) * (log_p_NV - log_r_NV)).sum() / 2


def contrastive(a_BD: Float[Tensor, "B D"], b_CD: Float[Tensor, "C D"], *, scale: float) -> Float[Tensor, ""]:
    """How well each text's partner is told from all the others of the batch; summed over the texts.

    Equation: L = −Σ_i log (exp(scale · cos(a_i, b_i)) / Σ_j exp(scale · cos(a_i, b_j)))
    Source: Henderson et al. 2017, "Efficient Natural Language Response Suggestion", Section 4.4; with cosines,
        sentence-transformers' MultipleNegativesRankingLoss

    Args:
        a_BD: vectors of texts.
        b_CD: vectors of their partners, in the same order; further rows are hard negatives.
        scale: what the cosines are multiplied with, 1 / temperature.

    Raises:
        ValueError: fewer partners than texts.

    >>> import torch; from clearhead.equations.losses import contrastive
    >>> contrastive(torch.eye(2), torch.eye(2), scale=20.0).item() < 1e-6
    True
    """
    if len(b_CD) < len(a_BD):
        raise ValueError(
            f"each of {len(a_BD)} texts needs a partner in the same row; got {len(b_CD)} partners. "
            "Hard negatives come after the partners"
        )
    cosine_BC = functional.normalize(_exact(a_BD), dim=-1) @ functional.normalize(_exact(b_CD), dim=-1).T
    return cross_entropy(scale * cosine_BC, torch.arange(len(a_BD), device=a_BD.device))


def cosine_regression(
    a_BD: Float[Tensor, "B D"], b_BD: Float[Tensor, "B D"], scores_B: Float[Tensor, "B"]
) -> Float[Tensor, ""]:
    """How far the cosines of pairs are from the scores that people gave them; summed over the pairs.

    Equation: L = Σ_i (cos(a_i, b_i) − score_i)²
    Source: Reimers and Gurevych 2019, "Sentence-BERT", Section 3; sentence-transformers' CosineSimilarityLoss

    Args:
        a_BD, b_BD: vectors of the two texts of each pair.
        scores_B: how similar they are, on the cosine's scale.

    >>> import torch; from clearhead.equations.losses import cosine_regression
    >>> cosine_regression(torch.ones(2, 4), torch.ones(2, 4), torch.tensor([1.0, 0.0]))
    tensor(1.)
    """
    cosine_B = (functional.normalize(_exact(a_BD), dim=-1) * functional.normalize(_exact(b_BD), dim=-1)).sum(dim=-1)
    return (cosine_B - scores_B).square().sum()


def l2_penalty(parameters: Iterable[Tensor], coefficient: float) -> Float[Tensor, ""]:
    """Weight decay as a part of the loss: large weights cost.

    Equation: L = λ / 2 · Σ_w w²
    Source: Krogh and Hertz 1991, "A Simple Weight Decay Can Improve Generalization". With Adam it is another method
        than AdamW's decoupled decay, w ← w − η λ w (Loshchilov and Hutter 2019), which the optimizer does itself

    Args:
        parameters: the weights that decay.
        coefficient: λ.

    >>> import torch; from clearhead.equations.losses import l2_penalty
    >>> l2_penalty([torch.ones(2, 3), torch.ones(4)], 0.1)
    tensor(0.5000)
    """
    squares = [_exact(parameter).square().sum() for parameter in parameters]
    return coefficient / 2 * torch.stack(squares).sum() if squares else torch.zeros(())


def check_targets(targets_N: Int[Tensor, "N"], size: int, smoothing: float, ignore_index: int) -> None:
    """Raises a ValueError for targets outside the vocabulary (where looking does not mean waiting for an accelerator)
    and for a smoothing out of range."""
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"label smoothing is a share from 0 up to, not including, 1; got {smoothing}")
    if targets_N.device.type != "cpu":
        return
    wrong = targets_N[((targets_N < 0) | (targets_N >= size)) & (targets_N != ignore_index)]
    if len(wrong):
        raise ValueError(
            f"targets lie in 0 … {size - 1}, or are {ignore_index} where they do not count; got {int(wrong[0])}"
        )


def _exact(x: Tensor) -> Tensor:
    """In 32 bits at least: a sum over a vocabulary in 16 would lose its small terms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
