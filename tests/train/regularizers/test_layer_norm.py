"""Models without layer normalization."""

import pytest
import torch
from support.data.training_data import batch_of, module_of

from clearhead.layers.norm import LayerNorm, RMSNorm


@pytest.mark.parametrize("task", ["text-to-text", "masked-language-model", "classification"])
def test_layer_norm_false_removes_all_norms(data, task):
    outputs = []
    for on in (True, False):
        module, examples = module_of(data, task, layer_norm=on)
        norms = [module for module in module.model.modules() if isinstance(module, LayerNorm | RMSNorm)]
        assert bool(norms) == on
        outputs.append(module._loss(batch_of(module, examples)))
    assert not torch.allclose(*outputs)


def test_residual_without_norm_is_a_sum(data):
    module, _ = module_of(data, layer_norm=False)
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(module.model.encoder.layers[0].attention_residual(x, torch.sin), x + torch.sin(x))
