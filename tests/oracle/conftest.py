"""Fixtures of the comparisons with torch.nn."""

import pytest
import torch

from clearhead.kernels import stepwise_attention


@pytest.fixture
def its_kernel(request, monkeypatch):
    """Use torch.nn's attention kernel in float32, for equal rounding errors.

    In layers of width 1 or 2 each norm multiplies a rounding error by up to 1/√ε. Other kernels are compared in
    float64, where rounding errors stay below the tolerance.
    """
    if request.node.callspec.params["dtype"] == torch.float32:
        monkeypatch.setattr(stepwise_attention, "_is_short", lambda call: False)
