"""The loss with sampled softmax: training samples, validation does not, and R-Drop compares the same tokens."""

import pytest
import torch
from support.data.training_data import batch_of, kl, logits_of, predict, ready, recipe
from torch.nn import functional


def sampling(data, num_sampled, **regularizers):
    """Return a training module with sampled softmax, and a batch."""
    spec = recipe(data, "text-to-text", objective={"sampled_softmax": num_sampled}, regularize=regularizers)
    module, examples = ready(spec, data / "run")
    return module, batch_of(module, examples)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_training_loss_is_that_of_the_sampled_logits(data, r_drop, smoothing):
    module, batch = sampling(data, 7, r_drop=r_drop, dropout=0.2, label_smoothing=smoothing)
    torch.manual_seed(5)
    loss = module._loss(batch)
    torch.manual_seed(5)
    first = predict(module, batch)
    passes = [first, predict(module, batch)] if r_drop else [first]
    weight, bias, targets = first.vocabulary()
    assert len(weight) == first.targets_N.unique().numel() + 7
    logits = [(one.hidden_ND @ weight.T + bias).double() for one in passes]
    expected = sum(functional.cross_entropy(one, targets, reduction="sum") for one in logits) / len(logits)
    for one in passes:  # smoothing is over all tokens
        all_logits = logits_of(one).double()
        of_targets = all_logits.gather(1, one.targets_N[:, None])[:, 0]
        expected = expected + smoothing * (of_targets - all_logits.mean(1)).sum() / len(passes)
    if r_drop:
        expected = expected + r_drop * (kl(*logits) + kl(*reversed(logits))) / 2
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-4)


def test_validation_loss_is_over_the_whole_vocabulary(data):
    module, batch = sampling(data, 1)
    plain, _ = ready(recipe(data, "text-to-text"), data / "run")
    plain.model.load_state_dict(module.model.state_dict())
    for each in (module, plain):
        each.model.eval()
    torch.testing.assert_close(module._loss(batch), plain._loss(batch))
    module.model.train()
    assert predict(module, batch).num_sampled == 1
