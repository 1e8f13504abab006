"""Chunked losses against their oracles: values, and gradients of hidden states, weights and biases."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Seq2Seq, Seq2SeqConfig
from clearhead.equations.losses import cross_entropy, distillation, r_drop
from clearhead.kernels import linear_cross_entropy as chunked
from clearhead.kernels.linear_cross_entropy import (
    chunked_vocabulary_loss,
    linear_cross_entropy,
    linear_r_drop,
    linear_soft_cross_entropy,
)
from clearhead.kernels.native import library, training


@pytest.fixture(params=[2**22, 20], ids=["one chunk", "many chunks"])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(chunked, "_LOGITS", {"cpu": request.param})


@pytest.fixture(params=["compiled", "PyTorch"])
def _kernel(request, monkeypatch):
    if request.param == "PyTorch":
        monkeypatch.setattr(library, "isa_with", lambda function: None)


def parts(n, d, v, *, bias=True, dtype=torch.float32):
    """Return hidden states, weight, bias and targets, a third of them ignored."""
    hidden, weight = torch.randn(n, d, dtype=dtype), torch.randn(v, d, dtype=dtype)
    targets = torch.randint(v, (n,))
    targets[::3] = -100
    tensors = [hidden, weight, torch.randn(v, dtype=dtype) if bias else None]
    return [None if x is None else x.requires_grad_() for x in tensors], targets


def plain(hidden, weight, targets, bias=None, **options):
    logits = hidden @ weight.T
    return cross_entropy(logits if bias is None else logits + bias, targets, **options)


def assert_same(ours, theirs, inputs, bound=1e-5):
    """Assert equal losses, and gradients with a small error relative to their norm."""
    torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)
    inputs = [x for x in inputs if x is not None]
    for mine, expected in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        assert mine.dtype == expected.dtype
        assert float((mine - expected).norm()) <= bound * max(1.0, float(expected.norm()))


@pytest.mark.usefixtures("_chunks", "_kernel")
@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 70), st.sampled_from([0.0, 0.1]), st.booleans())
def test_values_and_gradients_equal_the_oracle(n, d, v, smoothing, bias):
    (hidden, weight, b), targets = parts(n, d, v, bias=bias)
    ours = 3 * linear_cross_entropy(hidden, weight, targets, b, smoothing=smoothing)
    assert_same(ours, 3 * plain(hidden, weight, targets, b, smoothing=smoothing), [hidden, weight, b])


def soft_targets(n, k, v):
    """Return k target ids for each position, some of them twice, and their probabilities."""
    return torch.randint(v, (n, k)), torch.softmax(torch.randn(n, k), dim=-1)


def plain_soft(hidden, weight, targets, probs, bias=None, smoothing=0.0):
    logits = hidden @ weight.T
    log_p = torch.log_softmax(logits if bias is None else logits + bias, dim=-1)
    q = torch.zeros_like(log_p).scatter_add(1, targets, probs)
    return -(((1 - smoothing) * q + smoothing / len(weight)) * log_p).sum()


@pytest.mark.usefixtures("_chunks", "_kernel")
@given(
    st.integers(0, 12),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 70),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)
def test_several_targets_equal_the_formula(n, k, d, v, smoothing, bias):
    (hidden, weight, b), _ = parts(n, d, v, bias=bias)
    targets, probs = soft_targets(n, k, v)
    ours = 3 * linear_soft_cross_entropy(hidden, weight, targets, probs, b, smoothing=smoothing)
    assert_same(ours, 3 * plain_soft(hidden, weight, targets, probs, b, smoothing), [hidden, weight, b])


@pytest.mark.usefixtures("_kernel")
def test_several_targets_under_autocast_are_close():
    (hidden, weight, b), _ = parts(40, 8, 30)
    targets, probs = soft_targets(40, 4, 30)
    exact = linear_soft_cross_entropy(hidden, weight, targets, probs, b, smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        low = linear_soft_cross_entropy(hidden, weight, targets, probs, b, smoothing=0.1)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, exact, rtol=2e-2, atol=1e-2)
    for result, expected in zip(*(torch.autograd.grad(x, [hidden, weight]) for x in (low, exact)), strict=True):
        assert float((result - expected).norm()) <= 0.05 * float(expected.norm())


@pytest.mark.parametrize("isa", library.supported())
@given(st.integers(1, 5), st.integers(1, 70), st.sampled_from([0.0, 0.1]), st.booleans(), st.booleans())
def test_compiled_kernels_equal_the_oracle(isa, n, v, smoothing, bias, half):
    dtype = torch.bfloat16 if half else torch.float32
    logits, targets = (20 * torch.randn(n, v)).to(dtype), torch.randint(v, (n,))
    b = torch.randn(v) if bias else None
    x = (logits.float() + (0 if b is None else b)).requires_grad_()
    expected = cross_entropy(x, targets, smoothing=smoothing)
    (gradient,) = torch.autograd.grad(expected, x)
    losses = training.cross_entropy(logits, b, targets, smoothing, isa)
    torch.testing.assert_close(losses.sum(), expected.detach(), rtol=1e-5, atol=1e-4)
    # the same rounding to bfloat16, up to one unit in the last place
    torch.testing.assert_close(logits.float(), gradient, rtol=2**-8 if half else 1e-4, atol=1e-5)


@pytest.mark.usefixtures("_chunks")
@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 11), st.sampled_from([0.0, 0.1]), st.booleans())
def test_r_drop_equals_mean_loss_plus_divergence(n, d, v, smoothing, bias):
    (one, weight, b), _ = parts(n, d, v, bias=bias)
    other, targets = torch.randn(n, d, requires_grad=True), torch.randint(v, (n,))
    ours = 3 * linear_r_drop(one, other, weight, targets, b, smoothing=smoothing, weight=1.7)
    logits = [hidden @ weight.T + (0 if b is None else b) for hidden in (one, other)]
    mean = sum(cross_entropy(x, targets, smoothing=smoothing) for x in logits) / 2
    assert_same(ours, 3 * (mean + 1.7 * r_drop(*logits)), [one, other, weight, b])


@pytest.mark.slow
@pytest.mark.usefixtures("_chunks")
def test_r_drop_gradient_with_one_trained_pass():
    (one, weight, b), targets = parts(7, 3, 5, dtype=torch.float64)
    other, targets = torch.randn(7, 3, dtype=torch.float64, requires_grad=True), targets.clamp(min=0)

    def loss(*tensors):
        return linear_r_drop(*tensors[:3], targets, tensors[3], smoothing=0.1, weight=2.5)

    assert torch.autograd.gradcheck(loss, [one, other, weight, b])
    ours = torch.autograd.grad(loss(one, other.detach(), weight, b), [one, weight])
    logits = [hidden @ weight.T + b for hidden in (one, other.detach())]
    mean = sum(cross_entropy(x, targets, smoothing=0.1) for x in logits) / 2
    for result, expected in zip(ours, torch.autograd.grad(mean + 2.5 * r_drop(*logits), [one, weight]), strict=True):
        torch.testing.assert_close(result, expected)


def test_r_drop_under_autocast_is_close():
    (one, weight, b), targets = parts(40, 8, 30)
    other, targets = one.detach() + 0.3 * torch.randn(40, 8), targets.clamp(min=0)
    exact = linear_r_drop(one, other, weight, targets, b, weight=2.0)
    with torch.autocast("cpu", torch.bfloat16):
        low = linear_r_drop(one, other, weight, targets, b, weight=2.0)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, exact, rtol=2e-2, atol=1e-2)
    for result, expected in zip(*(torch.autograd.grad(x, [one, weight]) for x in (low, exact)), strict=True):
        assert float((result - expected).norm()) <= 0.05 * float(expected.norm())


@pytest.mark.usefixtures("_chunks")
def test_tied_matrix_gets_both_gradients():
    (_, weight, _), targets = parts(9, 4, 7)
    ids = torch.randint(7, (9,))
    losses = [loss(torch.tanh(weight[ids]), weight, targets) for loss in (linear_cross_entropy, plain)]
    assert_same(*losses, [weight])


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("trained", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_frozen_tensors_get_no_gradient(trained):
    tensors, targets = parts(9, 4, 7)
    for number, tensor in enumerate(tensors):
        tensor.requires_grad_(number in trained)
    hidden, weight, bias = tensors
    losses = [loss(hidden, weight, targets, bias, smoothing=0.1) for loss in (linear_cross_entropy, plain)]
    assert_same(*losses, [tensors[number] for number in trained])


@pytest.mark.slow
@pytest.mark.usefixtures("_chunks")
def test_gradients_pass_gradcheck():
    tensors, targets = parts(7, 3, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda hidden, weight, bias: linear_cross_entropy(hidden, weight, targets, bias, smoothing=0.1), tensors
    )
    second = [x.detach().clone().requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(
        lambda h, w, b, g: chunked_vocabulary_loss(r_drop, [h, g], [w, w], [b, b]), [*tensors, second[0] + 1]
    )


def test_without_targets_loss_and_gradients_are_zero():
    (hidden, weight, bias), _ = parts(4, 3, 5)
    for rows in (0, 4):
        loss = linear_cross_entropy(hidden[:rows], weight, torch.full((rows,), -100), bias)
        assert loss.item() == 0.0
        assert all(not gradient.any() for gradient in torch.autograd.grad(loss, [hidden, weight, bias]))


def test_without_gradients_no_gradient_is_computed(monkeypatch):
    (hidden, weight, bias), targets = parts(9, 4, 7)
    expected = plain(hidden, weight, targets, bias)
    monkeypatch.setattr(chunked._Projection, "accumulate", None)
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, targets, bias)
        pair = chunked_vocabulary_loss(r_drop, [hidden, hidden + 1], [weight, weight])
    assert not loss.requires_grad
    assert not pair.requires_grad
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(linear_cross_entropy(hidden.detach(), weight.detach(), targets, bias.detach()), loss)


def test_under_autocast_matmuls_are_bfloat16_and_sums_float32():
    (hidden, weight, bias), targets = parts(64, 16, 50)
    exact = plain(hidden, weight, targets, bias, smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, bias, smoothing=0.1)
        rounded = plain(hidden, weight, targets, bias, smoothing=0.1)
    assert loss.dtype == torch.float32
    assert loss.item() != exact.item()
    torch.testing.assert_close(loss, rounded, rtol=1e-5, atol=0)
    tensors = [hidden, weight, bias]
    for mine, expected in zip(torch.autograd.grad(loss, tensors), torch.autograd.grad(exact, tensors), strict=True):
        assert mine.dtype == torch.float32
        assert torch.cosine_similarity(mine.flatten(), expected.flatten(), dim=0) > 0.9995


def test_bfloat16_weights_have_bfloat16_gradients():
    (hidden, weight, _), targets = parts(64, 16, 50)
    low = [x.detach().to(torch.bfloat16).requires_grad_() for x in (hidden, weight)]
    loss = linear_cross_entropy(*low, targets)
    assert loss.dtype == torch.float32
    for mine, expected in zip(
        torch.autograd.grad(loss, low),
        torch.autograd.grad(plain(hidden, weight, targets), [hidden, weight]),
        strict=True,
    ):
        assert mine.dtype == torch.bfloat16
        assert torch.cosine_similarity(mine.float().flatten(), expected.flatten(), dim=0) > 0.9995


def test_errors_name_an_invalid_target():
    (hidden, weight, _), _ = parts(2, 3, 5)
    with pytest.raises(ValueError, match="0 … 4, or -100 for ignored positions; got 7"):
        linear_cross_entropy(hidden, weight, torch.tensor([0, 7]))


@pytest.mark.usefixtures("_chunks")
@given(st.integers(0, 9), st.integers(1, 5), st.integers(1, 11), st.booleans())
def test_r_drop_of_two_passes_through_one_matrix(n, d, v, bias):
    (one, weight, b), _ = parts(n, d, v, bias=bias)
    other = torch.randn(n, d, requires_grad=True)
    ours = chunked_vocabulary_loss(r_drop, [one, other], [weight, weight], [b, b])
    logits = [x @ weight.T + (0 if b is None else b) for x in (one, other)]
    assert_same(ours, r_drop(*logits), [one, other, weight, b])


@pytest.mark.usefixtures("_chunks")
def test_distillation_from_a_teacher_of_another_width():
    (student, weight, bias), _ = parts(9, 4, 7)
    teacher, matrix = torch.randn(9, 6), torch.randn(7, 6)
    loss = partial(distillation, temperature=2.0)
    ours = chunked_vocabulary_loss(loss, [student, teacher], [weight, matrix], [bias, None])
    assert_same(ours, loss(student @ weight.T + bias, teacher @ matrix.T), [student, weight, bias])


@pytest.mark.usefixtures("_chunks")
def test_rows_are_chunked_like_positions():
    (hidden, weight, bias), targets = parts(9, 4, 7)
    loss = partial(cross_entropy, smoothing=0.1)
    ours = chunked_vocabulary_loss(loss, [hidden], [weight], [bias], [targets])
    assert_same(ours, plain(hidden, weight, targets, bias, smoothing=0.1), [hidden, weight, bias])


def test_mismatched_sets_are_errors():
    x, weight = torch.zeros(3, 4), torch.zeros(5, 4)
    with pytest.raises(ValueError, match="got 2 sets, 1 weights, 2 biases"):
        chunked_vocabulary_loss(r_drop, [x, x], [weight])
    with pytest.raises(ValueError, match=r"of the same positions; got \[2, 3\]"):
        chunked_vocabulary_loss(cross_entropy, [x], [weight], None, [torch.zeros(2)])


@pytest.mark.parametrize("options", [{}, {"output_bias": True}, {"output_scale": True}])
def test_loss_of_a_model_equals_the_loss_of_its_logits(options):
    config = Seq2SeqConfig(vocab_size=30, d_model=8, ffn_hidden=16, num_heads=2, num_layers=1, drop_prob=0.0, **options)
    model = Seq2Seq(config)
    if model.output.bias is not None:
        torch.nn.init.normal_(model.output.bias)
    ids, target_ids, following = torch.randint(30, (3, 2, 6)).unbind()
    following[:, 4:] = -100
    keep = torch.arange(6) < torch.tensor([[6], [4]])
    inputs = ids, target_ids, keep[:, None, None], (following != -100)[:, None, None]
    states = model.hidden(*inputs)
    torch.testing.assert_close(model.output(states), model(*inputs))
    ours = model.output.loss(states, following, smoothing=0.1)
    theirs = cross_entropy(model(*inputs).flatten(0, 1), following.flatten(), smoothing=0.1)
    assert_same(ours, theirs, list(model.parameters()))
