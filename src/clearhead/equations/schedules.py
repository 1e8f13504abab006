"""Learning rate schedules: the factor of the learning rate at each update, as a function of the step s.

Steps are counted from 1, the first update. The rate grows linearly over the first w steps (warm-up); without warm-up
(w = 0) the first update has the full rate. The schedules of transformers with the same names count finished updates:
their first update has the rate f(0) = 0.
"""

import math


def inverse_square_root(step: int, warmup: int) -> float:
    """Return the factor of the inverse square root schedule: warm-up, then decay by the root of the step.

    Equation: f(s) = min(s / w, √(w / s))
    Source: Section 5.3, equation 3, whose rate is f(s) · d_model^−0.5 · w^−0.5

    Args:
        step: s, from 1.
        warmup: w; 0 counts as 1.

    Raises:
        ValueError: a step below 1, or a warm-up below 0.

    >>> from clearhead.equations.schedules import inverse_square_root
    >>> [inverse_square_root(step, 4) for step in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    """
    _check(step, warmup)
    warmup = max(warmup, 1)
    return min(step / warmup, math.sqrt(warmup / step))


def linear(step: int, warmup: int, steps: int) -> float:
    """Return the factor of the linear schedule: warm-up, then linear decay to 0 at the last step.

    Equation: f(s) = s / w up to step w, then (n − s) / (n − w) down to 0 at step n
    Source: Devlin et al. 2018, "BERT", Appendix A.2

    Args:
        step: s, from 1.
        warmup: w.
        steps: n, above w: the step at which the rate reaches 0.

    Raises:
        ValueError: a step below 1, a warm-up below 0, or no steps after it.

    >>> from clearhead.equations.schedules import linear
    >>> [linear(step, 4, 12) for step in (1, 4, 8, 12)]
    [0.25, 1.0, 0.5, 0.0]
    """
    _check(step, warmup, steps)
    return step / warmup if step < warmup else 1.0 - _progress(step, warmup, steps)


def cosine(step: int, warmup: int, steps: int) -> float:
    """Return the factor of the cosine schedule: warm-up, then half a cosine down to 0 at the last step.

    Equation: f(s) = s / w up to step w, then ½ (1 + cos(π (s − w) / (n − w)))
    Source: Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts

    Args:
        step, warmup, steps: as in `linear`.

    Raises:
        ValueError: as in `linear`.

    >>> from clearhead.equations.schedules import cosine
    >>> [round(cosine(step, 4, 12), 3) for step in (1, 4, 8, 12)]
    [0.25, 1.0, 0.5, 0.0]
    """
    _check(step, warmup, steps)
    return step / warmup if step < warmup else (1.0 + math.cos(math.pi * _progress(step, warmup, steps))) / 2


def constant(step: int, warmup: int) -> float:
    """Return the factor of the constant schedule: warm-up, then the full rate.

    Equation: f(s) = min(s / w, 1)
    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", Section 2.2 (gradual warm-up)

    Args:
        step, warmup: as in `inverse_square_root`.

    Raises:
        ValueError: as in `inverse_square_root`.

    >>> from clearhead.equations.schedules import constant
    >>> [constant(step, 4) for step in (1, 4, 8)]
    [0.25, 1.0, 1.0]
    """
    _check(step, warmup)
    return min(step / max(warmup, 1), 1.0)


def _progress(step: int, warmup: int, steps: int) -> float:
    """Return the progress from the end of the warm-up (0) to the last step (1), and 1 after it."""
    return min((step - warmup) / (steps - warmup), 1.0)


def _check(step: int, warmup: int, steps: int | None = None) -> None:
    if step < 1:
        raise ValueError(f"steps are counted from 1, the first update; got {step}")
    if warmup < 0:
        raise ValueError(f"a warm-up has 0 steps or more; got {warmup}")
    if steps is not None and steps <= warmup:
        raise ValueError(f"the rate decays after the warm-up: expected more than {warmup} steps, got {steps}")
