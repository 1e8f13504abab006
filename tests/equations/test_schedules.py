"""The course of the learning rate, against transformers' own."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from clearhead.equations import schedules

OURS = {
    "inverse_square_root": lambda step, warmup, steps: schedules.inverse_square_root(step, warmup),
    "linear": schedules.linear,
    "cosine": schedules.cosine,
    "constant": lambda step, warmup, steps: schedules.constant(step, warmup),
}


def theirs(name, warmup, steps):
    """The factors of transformers' schedule, which counts from 0 and ends one step later than ours."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    make = {
        "inverse_square_root": lambda: transformers.get_inverse_sqrt_schedule(optimizer, warmup),
        "linear": lambda: transformers.get_linear_schedule_with_warmup(optimizer, warmup, steps + 1),
        "cosine": lambda: transformers.get_cosine_schedule_with_warmup(optimizer, warmup, steps + 1),
        "constant": lambda: transformers.get_constant_schedule_with_warmup(optimizer, warmup),
    }[name]()
    return [make.lr_lambdas[0](step) for step in range(steps + 1)]


@pytest.mark.parametrize("name", OURS)
@given(warmup=st.integers(1, 30), more=st.integers(1, 60))
def test_as_transformers(name, warmup, more):
    steps = warmup + more
    wanted = theirs(name, warmup, steps)
    found = [OURS[name](step, warmup, steps) for step in range(1, steps + 1)]
    assert found == pytest.approx(wanted[1:], abs=1e-9)


@pytest.mark.parametrize("name", OURS)
@given(warmup=st.integers(0, 30), steps=st.integers(1, 100))
def test_never_above_one_nor_below_zero_and_one_at_the_end_of_the_rise(name, warmup, steps):
    factors = [OURS[name](step, warmup, max(steps, warmup)) for step in range(1, max(steps, warmup) + 1)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert max(factors) == pytest.approx(1.0)
    assert factors[max(warmup, 1) - 1] == pytest.approx(1.0)
    rise = factors[: max(warmup, 1)]
    assert rise == sorted(rise)
    assert factors[max(warmup, 1) - 1 :] == sorted(factors[max(warmup, 1) - 1 :], reverse=True)
