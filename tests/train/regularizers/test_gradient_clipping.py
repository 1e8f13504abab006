"""Gradient clipping."""

import pytest
import torch
from support.data.training_data import batch_of, module_of


@pytest.mark.parametrize("greatest", [0.01, 1e6, False])
def test_clipping_scales_the_gradient_and_keeps_its_direction(data, greatest):
    module, examples = module_of(data, gradient_clipping=greatest)
    module._loss(batch_of(module, examples)).backward()
    parameters = list(module.model.parameters())
    before = torch.cat([parameter.grad.flatten() for parameter in parameters])
    module.configure_gradient_clipping(torch.optim.SGD(parameters, 0.1))
    after = torch.cat([parameter.grad.flatten() for parameter in parameters])
    assert module.gradient_norm == pytest.approx(before.norm().item(), rel=1e-4)
    expected = min(1.0, 0.01 / before.norm().item()) if greatest == 0.01 else 1.0
    torch.testing.assert_close(after, before * expected, rtol=1e-3, atol=1e-8)
