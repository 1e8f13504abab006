"""The loss with R-Drop."""

import pytest
import torch
from support.data.training_data import batch_of, kl, logits_of, module_of, predict
from torch.nn import functional

from clearhead.train.tasks.predictions import task_loss


@pytest.mark.parametrize("task", ["text-to-text", "masked-language-model", "classification", "span-answers"])
def test_r_drop_is_the_mean_loss_of_two_passes_and_their_divergence(data, task):
    module, examples = module_of(data, task, r_drop=3.0, dropout=0.3)
    batch = batch_of(module, examples)
    torch.manual_seed(5)
    loss = module._loss(batch)
    torch.manual_seed(5)
    one, two = predict(module, batch), predict(module, batch)
    losses = [
        functional.cross_entropy(logits_of(prediction).double(), prediction.targets_N, reduction="sum")
        for prediction in (one, two)
    ]
    divergence = (kl(logits_of(one), logits_of(two)) + kl(logits_of(two), logits_of(one))) / 2
    assert divergence > 1e-4
    torch.testing.assert_close(loss.double(), sum(losses) / 2 + 3.0 * divergence, rtol=1e-4, atol=1e-4)


def test_r_drop_is_zero_for_equal_passes(data):
    module, examples = module_of(data, r_drop=3.0, dropout=0.3)
    batch = batch_of(module, examples)
    module.model.eval()
    torch.testing.assert_close(module._loss(batch), task_loss(predict(module, batch)))
