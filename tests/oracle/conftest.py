"""What both comparisons with torch.nn need."""

import pytest
import torch

from clearhead.kernels import attention


@pytest.fixture
def its_kernel(request, monkeypatch):
    """In float32 attention by the kernel that torch.nn takes too, so that both round alike.

    Layers of width 1 or 2 make of two roundings of one gradient what they like: each norm multiplies their difference
    by up to 1/√ε. What is computed without that kernel is compared in float64, where roundings stay below the bound.
    """
    if request.node.callspec.params["dtype"] == torch.float32:
        monkeypatch.setattr(attention, "_use_stepwise", lambda q, k, v: False)
