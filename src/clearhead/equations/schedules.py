"""The course of the learning rate: its factor at each step. Steps are counted from 1, the first update's."""

import math


def inverse_square_root(step: int, warmup: int) -> float:
    """A linear rise to 1, then a fall with the root of the step.

    Equation: min(step / warmup, √(warmup / step))
    Source: Section 5.3, equation 3, without its constant (d_model · warmup)^(−1/2), which the learning rate is here

    Args:
        step: from 1 on.
        warmup: the step at which the factor is 1; with 0 or 1 it falls from the first step on.

    >>> from clearhead.equations.schedules import inverse_square_root
    >>> [inverse_square_root(step, warmup=2) for step in (1, 2, 8)]
    [0.5, 1.0, 0.5]
    """
    warmup = max(1, warmup)
    return min(step / warmup, math.sqrt(warmup / step))


def linear(step: int, warmup: int, steps: int) -> float:
    """A linear rise to 1, then a linear fall, to 0 after the last step.

    Equation: min(step / warmup, (steps + 1 − step) / (steps + 1 − warmup))
    Source: Devlin et al. 2018, "BERT", Appendix A.2

    Args:
        step: from 1 on.
        warmup: the step at which the factor is 1; 0 for a fall from the first step on.
        steps: the last step.

    >>> from clearhead.equations.schedules import linear
    >>> [linear(step, warmup=1, steps=4) for step in (1, 2, 4)]
    [1.0, 0.75, 0.25]
    """
    return _rise(step, warmup) if step < warmup else max(0.0, 1 - _fallen(step, warmup, steps))


def cosine(step: int, warmup: int, steps: int) -> float:
    """A linear rise to 1, then a fall along half a cosine, to 0 after the last step.

    Equation: ½ (1 + cos(π (step − warmup) / (steps + 1 − warmup))), after the rise step / warmup
    Source: Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts

    Args: as in `linear`.

    >>> from clearhead.equations.schedules import cosine
    >>> [round(cosine(step, warmup=1, steps=4), 3) for step in (1, 3, 4)]
    [1.0, 0.5, 0.146]
    """
    return _rise(step, warmup) if step < warmup else 0.5 * (1 + math.cos(math.pi * _fallen(step, warmup, steps)))


def constant(step: int, warmup: int) -> float:
    """A linear rise to 1, which stays.

    Equation: min(step / warmup, 1)
    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", Section 2.2 (gradual warm-up)

    Args: as in `inverse_square_root`.

    >>> from clearhead.equations.schedules import constant
    >>> [constant(step, warmup=4) for step in (1, 4, 9)]
    [0.25, 1.0, 1.0]
    """
    return min(1.0, _rise(step, warmup))


def _rise(step: int, warmup: int) -> float:
    return step / max(1, warmup)


def _fallen(step: int, warmup: int, steps: int) -> float:
    """How much of the fall is behind, from 0 at the warm-up's end to 1 after the last step."""
    warmup = max(1, warmup)
    return min(1.0, (step - warmup) / max(1, steps + 1 - warmup))
