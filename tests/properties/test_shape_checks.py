"""The shape checks of the test run report a wrong shape, and end after the first calls of a function."""

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from support.shapes import CALLS, check_first_calls
from torch import Tensor

from clearhead.equations.attention import scaled_dot_product


@jaxtyped(typechecker=check_first_calls)
def columns(x: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    """Return the argument, or its first row if it is negative, which is a wrong result."""
    return x if x.sum() >= 0 else x[0]


def test_only_the_first_calls_are_checked():
    with pytest.raises(TypeCheckError, match="n 3"):
        columns(torch.zeros(2, 2))
    with pytest.raises(TypeCheckError, match="n 3"):
        columns(-torch.ones(2, 3))
    for _ in range(CALLS):
        columns(torch.zeros(2, 3))
    assert columns(torch.zeros(2, 2)).shape == (2, 2)


def test_the_library_is_checked():
    assert hasattr(scaled_dot_product, "__wrapped__")
