"""Sampled softmax: the targets of a batch and a random sample of the other tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.equations.losses import cross_entropy
from clearhead.layers.embedding import OutputProjection, TokenEmbedding
from clearhead.layers.sampled_softmax import sample_vocabulary


@given(st.data(), st.integers(1, 60), st.integers(1, 70))
def test_sample_has_all_targets_and_distinct_others(data, vocab_size, num_sampled):
    targets = torch.tensor(data.draw(st.lists(st.integers(0, vocab_size - 1), max_size=80)), dtype=torch.long)
    sampled = sample_vocabulary(targets, vocab_size, num_sampled)
    num_targets = len(set(targets.tolist()))
    num_others = min(num_sampled, vocab_size - num_targets)
    assert sampled.ids_K.unique().numel() == sampled.ids_K.numel() == num_targets + num_others
    assert torch.equal(sampled.ids_K[sampled.targets_N], targets)
    weights = sampled.bias_K.exp()
    assert torch.equal(weights[:num_targets], torch.ones(num_targets))
    assert weights.sum().item() == pytest.approx(num_targets if not num_others else vocab_size, rel=1e-5)


def test_sum_of_the_softmax_is_unbiased():
    torch.manual_seed(1)
    logits, targets = torch.randn(50), torch.tensor([3, 9])
    sums = []
    for _ in range(4000):
        sampled = sample_vocabulary(targets, 50, 10)
        sums.append((logits[sampled.ids_K] + sampled.bias_K).exp().sum())
    sums = torch.stack(sums)
    assert abs(sums.mean() - logits.exp().sum()) < 4 * sums.std() / len(sums) ** 0.5


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_sampled", [5, 100])
def test_gradients_are_those_of_the_sampled_logits(bias, num_sampled):
    output = OutputProjection(TokenEmbedding(40, 8), bias=bias, scale=True)
    if bias:
        torch.nn.init.normal_(output.bias)
    hidden, targets = torch.randn(12, 8), torch.randint(40, (12,))
    torch.manual_seed(2)
    weight, sampled_bias, positions = output.sample(targets, num_sampled)
    loss = cross_entropy(output.scale_hidden(hidden) @ weight.T + sampled_bias, positions)
    loss.backward()
    gradient = output.tokens.weight.grad.clone()
    torch.manual_seed(2)
    sampled = sample_vocabulary(targets, 40, num_sampled)
    assert set(gradient.abs().sum(1).nonzero()[:, 0].tolist()) == set(sampled.ids_K.tolist())
    if num_sampled == 100:  # all tokens
        smoothed = output.smoothing_loss(hidden, targets, 0.1)
        smoothed.backward()
        loss, gradient = loss + smoothed, output.tokens.weight.grad.clone()
        output.tokens.weight.grad = None
        full = output.loss(hidden, targets, smoothing=0.1)
        full.backward()
        torch.testing.assert_close(loss, full)
        torch.testing.assert_close(gradient, output.tokens.weight.grad)
