"""Losses against torch, sentence-transformers and plain sums."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from clearhead.equations.losses import (
    binary_cross_entropy,
    contrastive,
    cosine_regression,
    cross_entropy,
    distillation,
    ensemble_log_probs,
    hidden_state_distance,
    l2_penalty,
    margin_mse,
    r_drop,
    squared_error,
)

sizes = st.integers(1, 9)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(sizes, sizes, st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 99))
def test_cross_entropy_equals_torch(n, v, smoothing, seed):
    logits = random(n, v, seed=seed).requires_grad_()
    targets = torch.randint(v, (n,), generator=torch.Generator().manual_seed(seed))
    targets[::3] = -1
    ours = cross_entropy(logits, targets, smoothing=smoothing, ignore_index=-1)
    theirs = functional.cross_entropy(logits, targets, label_smoothing=smoothing, ignore_index=-1, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs)))


def test_cross_entropy_with_a_logit_of_minus_infinity():
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert torch.equal(logits.grad, torch.tensor([[0.5, -0.5, 0.0]]))


def test_cross_entropy_of_16_bits_is_summed_in_32():
    logits = torch.zeros(3, 5, dtype=torch.bfloat16)
    assert cross_entropy(logits, torch.tensor([0, 1, 2])).item() == pytest.approx(3 * math.log(5), rel=1e-6)


def test_invalid_arguments_of_cross_entropy_are_errors():
    with pytest.raises(ValueError, match="0 … 4, or -100 for ignored positions; got 5"):
        cross_entropy(torch.zeros(2, 5), torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="got -1"):
        cross_entropy(torch.zeros(2, 5), torch.tensor([0, -1]))
    with pytest.raises(ValueError, match=r"label smoothing must be from 0 .* got 1\.0"):
        cross_entropy(torch.zeros(2, 5), torch.tensor([0, 1]), smoothing=1.0)


@given(sizes, sizes, st.sampled_from([0.5, 1.0, 4.0]), st.integers(0, 99))
def test_distillation_equals_the_divergence_of_torch(n, v, temperature, seed):
    student, teacher = random(2, n, v, seed=seed)
    parts = [functional.log_softmax(x / temperature, dim=-1) for x in (student, teacher)]
    expected = temperature**2 * functional.kl_div(*parts, log_target=True, reduction="sum")
    torch.testing.assert_close(distillation(student, teacher, temperature=temperature), expected)


def test_distillation_of_equal_logits_is_zero_and_temperatures_must_be_positive():
    logits = random(4, 7)
    assert distillation(logits, logits + 3.0, temperature=2.0).item() == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ValueError, match=r"above 0; got 0\.0"):
        distillation(logits, logits, temperature=0.0)


@given(st.integers(1, 4), sizes, sizes, st.sampled_from([0.5, 1.0, 4.0]), st.integers(0, 99))
def test_several_teachers_are_the_average_of_their_probabilities(k, n, v, temperature, seed):
    student, *teachers = random(k + 1, n, v, seed=seed)
    softened = [functional.softmax(teacher / temperature, dim=-1) for teacher in teachers]
    average = temperature * torch.stack(softened).mean(dim=0).log()
    expected = distillation(student, average, temperature=temperature)
    torch.testing.assert_close(distillation(student, *teachers, temperature=temperature), expected)


@given(st.integers(1, 4), sizes, sizes, st.integers(0, 99))
def test_ensemble_averages_the_probabilities_of_its_models(k, n, v, seed):
    models = random(k, n, v, seed=seed)
    torch.testing.assert_close(ensemble_log_probs(list(models)).exp(), functional.softmax(models, dim=-1).mean(dim=0))


def test_distillation_without_a_teacher_is_an_error():
    with pytest.raises(ValueError, match="at least one teacher"):
        distillation(random(4, 7), temperature=1.0)


def test_distillation_at_a_high_temperature_matches_logits():
    # Section 2.1 of the paper: with zero-mean logits the gradient approaches (student − teacher) / V
    student, teacher = (x - x.mean(dim=-1, keepdim=True) for x in random(2, 3, 5))
    student.requires_grad_()
    distillation(student, teacher, temperature=1e4).backward()
    torch.testing.assert_close(student.grad, (student.detach() - teacher) / 5, rtol=0, atol=1e-3)


@given(sizes, sizes, st.integers(0, 99))
def test_r_drop_is_the_mean_of_both_divergences(n, v, seed):
    one, other = random(2, n, v, seed=seed).log_softmax(dim=-1)
    both = functional.kl_div(one, other, log_target=True, reduction="sum") + functional.kl_div(
        other, one, log_target=True, reduction="sum"
    )
    torch.testing.assert_close(r_drop(one + 2.0, other), both / 2)
    torch.testing.assert_close(r_drop(one, other), r_drop(other, one))


def test_hidden_state_distance_is_summed_over_kept_tokens():
    student, teacher = random(2, 2, 3, 4)
    keep = torch.tensor([[True, True, False], [True, False, False]])
    expected = sum(functional.mse_loss(student[i, j], teacher[i, j]) for i, j in keep.nonzero().tolist())
    teacher[1, 2] = math.nan  # padding may hold any value
    torch.testing.assert_close(hidden_state_distance(student, teacher, keep), expected)
    assert hidden_state_distance(student, student).item() == 0.0


class Encoded(torch.nn.Module):
    """sentence-transformers model that takes vectors as texts."""

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 99))
def test_contrastive_equals_multiple_negatives_ranking(texts, negatives, seed):
    losses = pytest.importorskip("sentence_transformers.losses")
    a, b = random(texts, 4, seed=seed), random(texts * (1 + bool(negatives)), 4, seed=seed + 1)
    theirs = losses.MultipleNegativesRankingLoss(Encoded(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings([a, *b.split(texts)], None)
    torch.testing.assert_close(contrastive(a, b, scale=20.0) / texts, expected.to(torch.float64))


def test_contrastive_requires_a_partner_for_each_text():
    with pytest.raises(ValueError, match="each of 3 texts needs a partner in the same row; got 2 partners"):
        contrastive(random(3, 4), random(2, 4), scale=20.0)


@given(st.integers(1, 6), st.integers(0, 99))
def test_cosine_regression_equals_cosine_similarity_loss(pairs, seed):
    losses = pytest.importorskip("sentence_transformers.losses")
    a, b = random(2, pairs, 4, seed=seed)
    scores = random(pairs, seed=seed + 1)
    expected = losses.CosineSimilarityLoss(Encoded()).compute_loss_from_embeddings([a, b], scores)
    torch.testing.assert_close(cosine_regression(a, b, scores) / pairs, expected)


@given(st.integers(1, 6), st.integers(0, 99))
def test_losses_of_scores_equal_those_of_cross_encoders(pairs, seed):
    first, second, labels = (random(pairs, seed=seed + number) for number in range(3))
    expected = torch.nn.BCEWithLogitsLoss()(first, labels.sigmoid())
    torch.testing.assert_close(binary_cross_entropy(first, labels.sigmoid()) / pairs, expected)
    torch.testing.assert_close(squared_error(first, labels) / pairs, torch.nn.MSELoss()(first, labels))
    expected = torch.nn.MSELoss()(first - second, labels)  # sentence-transformers' MarginMSELoss
    torch.testing.assert_close(margin_mse(first, second, labels) / pairs, expected)
    torch.testing.assert_close(margin_mse(first + 3, second + 3, labels) / pairs, expected)


def test_gradient_of_the_l2_penalty_is_the_scaled_weight():
    weights = [random(3, 4).requires_grad_(), random(5).requires_grad_()]
    penalty = l2_penalty(weights, 0.1)
    assert penalty.item() == pytest.approx(0.05 * sum(float((w.detach() ** 2).sum()) for w in weights))
    for weight, gradient in zip(weights, torch.autograd.grad(penalty, weights), strict=True):
        torch.testing.assert_close(gradient, 0.1 * weight)
    assert l2_penalty(iter(()), 0.1).item() == 0.0
