"""The loss with label smoothing."""

import pytest
import torch
from support.data.training_data import batch_of, logits_of, module_of, predict
from torch.nn import functional


@pytest.mark.parametrize("task", ["text-to-text", "masked-language-model", "classification", "span-answers"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_the_formula(data, task, smoothing):
    module, examples = module_of(data, task, label_smoothing=smoothing)
    batch = batch_of(module, examples)
    prediction = predict(module, batch)
    log_p = torch.log_softmax(logits_of(prediction).double(), -1)
    # span logits cover the longest text of the batch; padding has probability 0
    expected = (
        functional.one_hot(prediction.targets_N, log_p.shape[1]).double() * (1 - smoothing) + smoothing / log_p.shape[1]
    )
    torch.testing.assert_close(module._loss(batch).double(), -(expected * log_p).sum(), rtol=1e-5, atol=1e-4)
