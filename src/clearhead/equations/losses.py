"""Training losses as equations: the oracles of the faster kernels, and the definitions of the other losses.

Each returns the **sum** over positions, texts or pairs, in at least 32 bits. The training loop divides it by the total
count over all chunks and processes, so that their number does not change the gradient. N is the number of positions, V
the size of the vocabulary.
"""

import math
from collections.abc import Iterable, Sequence

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
    """Return the cross-entropy with label smoothing, summed over all positions but ignore_index.

    Equation: L = −Σ_n Σ_v q_nv log p_nv, p = softmax(logits), q = (1 − ε) onehot(t) + ε / V
    Source: Section 5.4; Szegedy et al. 2016, "Rethinking the Inception Architecture", Section 7. torch's
        `label_smoothing` is equal; fairseq gives ε / (V − 1) to each of the other tokens, a slightly larger ε

    Args:
        logits_NV: logits of all tokens.
        targets_N: ids of the correct tokens.
        smoothing: ε, from 0 up to, not including, 1.
        ignore_index: target of ignored positions, such as padding.

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
    # 0 · log 0 is 0: a logit of −∞ costs nothing unless smoothing gives the token a probability
    return -torch.where(q_NV == 0, 0.0, q_NV * log_p_NV).sum()


def distillation(
    student_logits_NV: Float[Tensor, "N V"], *teacher_logits_NV: Float[Tensor, "N V"], temperature: float
) -> Float[Tensor, ""]:
    """Return the distillation loss: the divergence of softened student and teacher probabilities, summed.

    Equation: L = T² Σ_n Σ_v p_nv (log p_nv − log s_nv), p = 1/K Σ_k softmax(teacher_k / T), s = softmax(student / T)
    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", Section 2; T² keeps the
        scale of the gradient

    Args:
        student_logits_NV: logits of the student, the model in training.
        teacher_logits_NV: logits of each teacher.
        temperature: T, above 0.

    Raises:
        ValueError: a temperature that is not above 0, or no teacher.

    >>> import torch; from clearhead.equations.losses import distillation
    >>> distillation(torch.zeros(2, 10), torch.zeros(2, 10), temperature=2.0)
    tensor(0.)
    """
    if not temperature > 0:
        raise ValueError(f"the temperature must be above 0; got {temperature}")
    if not teacher_logits_NV:
        raise ValueError("distillation needs the logits of at least one teacher")
    log_s_NV = torch.log_softmax(_exact(student_logits_NV) / temperature, dim=-1)
    log_p_NV = ensemble_log_probs([_exact(logits_NV) / temperature for logits_NV in teacher_logits_NV])
    return temperature * temperature * (log_p_NV.exp() * (log_p_NV - log_s_NV)).sum()


def ensemble_log_probs(logits: Sequence[Float[Tensor, "*batch V"]]) -> Float[Tensor, "*batch V"]:
    """Return the log-probabilities of an ensemble, which averages the probabilities of its models.

    Equation: log 1/K Σ_k softmax(logits_k)
    Source: Freitag et al. 2017, "Ensemble Distillation for Neural Machine Translation"

    Args:
        logits: logits of each model, at least one.

    >>> import torch; from clearhead.equations.losses import ensemble_log_probs
    >>> ensemble_log_probs([torch.zeros(2), torch.zeros(2)]).exp()
    tensor([0.5000, 0.5000])
    """
    if len(logits) == 1:
        return torch.log_softmax(logits[0], dim=-1)
    log_p = torch.stack([torch.log_softmax(one, dim=-1) for one in logits])
    return torch.logsumexp(log_p, dim=0) - math.log(len(logits))


def hidden_state_distance(
    student: Float[Tensor, "*batch D"],
    teacher: Float[Tensor, "*batch D"],
    keep: Bool[Tensor, "*batch"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean squared distance of student and teacher hidden states, summed over the kept tokens.

    Equation: L = Σ_n ‖h_n − g_n‖² / D, h the student's, g the teacher's
    Source: Romero et al. 2015, "FitNets", equation 3; Jiao et al. 2020, "TinyBERT", equation 8. A student of another
        width needs a learned linear map first

    Args:
        student, teacher: hidden states.
        keep: True at the tokens to compare; None for all.

    >>> import torch; from clearhead.equations.losses import hidden_state_distance
    >>> hidden_state_distance(torch.zeros(2, 3, 4), torch.ones(2, 3, 4))
    tensor(6.)
    """
    if keep is not None:
        student, teacher = student[keep], teacher[keep]
    return (_exact(student) - _exact(teacher)).square().mean(dim=-1).sum()


def r_drop(logits_1_NV: Float[Tensor, "N V"], logits_2_NV: Float[Tensor, "N V"]) -> Float[Tensor, ""]:
    """Return the R-Drop loss: the symmetric divergence of two forward passes with dropout, summed over positions.

    Equation: L = ½ Σ_n [KL(p_n ‖ r_n) + KL(r_n ‖ p_n)], p = softmax(logits_1), r = softmax(logits_2)
    Source: Liang et al. 2021, "R-Drop", equation 2

    Args:
        logits_1_NV, logits_2_NV: logits of the two passes.

    >>> import torch; from clearhead.equations.losses import r_drop
    >>> r_drop(torch.zeros(2, 10), torch.zeros(2, 10))
    tensor(0.)
    """
    log_p_NV = torch.log_softmax(_exact(logits_1_NV), dim=-1)
    log_r_NV = torch.log_softmax(_exact(logits_2_NV), dim=-1)
    return ((log_p_NV.exp() - log_r_NV.exp()) * (log_p_NV - log_r_NV)).sum() / 2


def contrastive(a_BD: Float[Tensor, "B D"], b_CD: Float[Tensor, "C D"], *, scale: float) -> Float[Tensor, ""]:
    """Return the contrastive loss with in-batch negatives, summed over the texts.

    Equation: L = −Σ_i log (exp(scale · cos(a_i, b_i)) / Σ_j exp(scale · cos(a_i, b_j)))
    Source: Henderson et al. 2017, "Efficient Natural Language Response Suggestion", Section 4.4; with cosines,
        sentence-transformers' MultipleNegativesRankingLoss

    Args:
        a_BD: vectors of texts.
        b_CD: vectors of their partners, in the same order; further rows are hard negatives.
        scale: factor of the cosines, 1 / temperature.

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
    """Return the squared error of the cosines of pairs against gold scores, summed over the pairs.

    Equation: L = Σ_i (cos(a_i, b_i) − score_i)²
    Source: Reimers and Gurevych 2019, "Sentence-BERT", Section 3; sentence-transformers' CosineSimilarityLoss

    Args:
        a_BD, b_BD: vectors of the two texts of each pair.
        scores_B: gold similarities, on the scale of the cosine.

    >>> import torch; from clearhead.equations.losses import cosine_regression
    >>> cosine_regression(torch.ones(2, 4), torch.ones(2, 4), torch.tensor([1.0, 0.0]))
    tensor(1.)
    """
    cosine_B = (functional.normalize(_exact(a_BD), dim=-1) * functional.normalize(_exact(b_BD), dim=-1)).sum(dim=-1)
    return (cosine_B - scores_B).square().sum()


def binary_cross_entropy(scores_N: Float[Tensor, "N"], targets_N: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """Return the binary cross-entropy of scores, summed over them.

    Equation: L = −Σ_n [y_n log σ(s_n) + (1 − y_n) log (1 − σ(s_n))]
    Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT", equation 1

    Args:
        scores_N: scores s before the sigmoid.
        targets_N: labels y from 0 to 1.

    >>> import torch; from clearhead.equations.losses import binary_cross_entropy
    >>> binary_cross_entropy(torch.zeros(2), torch.tensor([1.0, 0.0]))
    tensor(1.3863)
    """
    return functional.binary_cross_entropy_with_logits(_exact(scores_N), _exact(targets_N), reduction="sum")


def squared_error(scores_N: Float[Tensor, "N"], targets_N: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """Return the squared error of scores, summed over them.

    Equation: L = Σ_n (s_n − y_n)²
    Source: sentence-transformers' MSELoss of cross-encoders

    Args:
        scores_N: scores s.
        targets_N: gold scores y, or those of a teacher.

    >>> import torch; from clearhead.equations.losses import squared_error
    >>> squared_error(torch.zeros(2), torch.tensor([1.0, 2.0]))
    tensor(5.)
    """
    return (_exact(scores_N) - _exact(targets_N)).square().sum()


def margin_mse(
    positive_N: Float[Tensor, "N"], negative_N: Float[Tensor, "N"], margin_N: Float[Tensor, "N"]
) -> Float[Tensor, ""]:
    """Return the squared error of score margins against those of a teacher, summed over the triples.

    Equation: L = Σ_n ((s⁺_n − s⁻_n) − (t⁺_n − t⁻_n))²
    Source: Hofstätter et al. 2020, "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
        Distillation", equation 8

    Args:
        positive_N, negative_N: scores s⁺ and s⁻ of the relevant and the other document of each query.
        margin_N: margins t⁺ − t⁻ of the teacher.

    >>> import torch; from clearhead.equations.losses import margin_mse
    >>> margin_mse(torch.tensor([3.0]), torch.tensor([1.0]), torch.tensor([1.5]))
    tensor(0.2500)
    """
    return squared_error(positive_N - negative_N, margin_N)


def l2_penalty(parameters: Iterable[Tensor], coefficient: float) -> Float[Tensor, ""]:
    """Return the L2 penalty on weights, to add to the loss.

    Equation: L = λ / 2 · Σ_w w²
    Source: Krogh and Hertz 1991, "A Simple Weight Decay Can Improve Generalization". With Adam it differs from
        AdamW's decoupled decay in the optimizer, w ← w − η λ w (Loshchilov and Hutter 2019)

    Args:
        parameters: the weights to penalize.
        coefficient: λ.

    >>> import torch; from clearhead.equations.losses import l2_penalty
    >>> l2_penalty([torch.ones(2, 3), torch.ones(4)], 0.1)
    tensor(0.5000)
    """
    squares = [_exact(parameter).square().sum() for parameter in parameters]
    return coefficient / 2 * torch.stack(squares).sum() if squares else torch.zeros(())


def check_targets(targets_N: Int[Tensor, "N"], size: int, smoothing: float, ignore_index: int) -> None:
    """Raise a ValueError for targets outside the vocabulary (on the CPU only) or a smoothing out of range."""
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"label smoothing must be from 0 up to, not including, 1; got {smoothing}")
    if targets_N.device.type != "cpu":
        return
    wrong = targets_N[((targets_N < 0) | (targets_N >= size)) & (targets_N != ignore_index)]
    if len(wrong):
        raise ValueError(
            f"targets must be in 0 … {size - 1}, or {ignore_index} for ignored positions; got {int(wrong[0])}"
        )


def _exact(x: Tensor) -> Tensor:
    """Convert to at least 32 bits: a sum over the vocabulary in 16 bits would lose small terms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
