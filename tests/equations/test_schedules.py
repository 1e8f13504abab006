"""Learning rate schedules against transformers and the paper's formula."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from clearhead.equations import schedules

names = pytest.mark.parametrize("name", ["inverse_square_root", "linear", "cosine", "constant"])


def factor(name, step, warmup, steps):
    function = getattr(schedules, name)
    return function(step, warmup, steps) if name in ("linear", "cosine") else function(step, warmup)


def theirs(name, warmup, steps):
    """Return the factor of transformers, for a number of finished updates."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    make = {
        "inverse_square_root": lambda: transformers.get_inverse_sqrt_schedule(optimizer, warmup),
        "linear": lambda: transformers.get_linear_schedule_with_warmup(optimizer, warmup, steps),
        "cosine": lambda: transformers.get_cosine_schedule_with_warmup(optimizer, warmup, steps),
        "constant": lambda: transformers.get_constant_schedule_with_warmup(optimizer, warmup),
    }
    return make[name]().lr_lambdas[0]


@names
@given(st.integers(1, 60), st.integers(0, 20), st.integers(1, 40))
def test_factors_equal_transformers(name, step, warmup, rest):
    if name == "inverse_square_root":
        warmup = max(warmup, 1)  # without warm-up transformers uses a time scale of 10,000
    expected = theirs(name, warmup, warmup + rest)
    step = min(step, warmup + rest)  # their cosine rises again after the last step
    assert factor(name, step, warmup, warmup + rest) == pytest.approx(expected(step), abs=1e-9)


@given(st.integers(1, 10000))
def test_rate_equals_the_paper(step):
    expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert schedules.inverse_square_root(step, 4000) * 512**-0.5 * 4000**-0.5 == pytest.approx(expected)
    assert expected < 0.00071


@names
@given(st.integers(0, 20), st.integers(1, 40))
def test_factors_rise_to_one_and_stay_between_zero_and_one(name, warmup, rest):
    result = [factor(name, step, warmup, warmup + rest) for step in range(1, warmup + 2 * rest)]
    assert all(0.0 <= one <= 1.0 for one in result)
    assert result[: max(warmup, 1)] == sorted(result[: max(warmup, 1)])
    if warmup:
        assert result[warmup - 1] == 1.0


@names
def test_invalid_steps_are_errors(name):
    with pytest.raises(ValueError, match="counted from 1, the first update; got 0"):
        factor(name, 0, 4, 12)
    with pytest.raises(ValueError, match="0 steps or more; got -1"):
        factor(name, 1, -1, 12)
    if name in ("linear", "cosine"):
        with pytest.raises(ValueError, match="more than 12 steps, got 12"):
            factor(name, 1, 12, 12)
