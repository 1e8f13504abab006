"""Measure the speed of a run, and estimate the time that is left."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_RECENT_STEPS = 20
"""Steps over which the current speed is averaged."""

_MAX_ESTIMATE_STEPS, _MAX_ESTIMATE_SECONDS = 10, 5.0
"""Measured steps or seconds after which the duration of the run is estimated."""


@dataclass(frozen=True)
class _Mark:
    """Time, without pauses, and number of tokens at the end of a step."""

    seconds: float
    num_tokens: int

    def tokens_per_second(self, later: "_Mark") -> float:
        """Return the speed from this mark to a later one."""
        return (later.num_tokens - self.num_tokens) / max(later.seconds - self.seconds, 1e-9)


class SpeedMeter:
    """Measure tokens per second without validations and checkpoints, and the time left with them.

    Example:
        >>> from clearhead.train.loop.speed import SpeedMeter
        >>> meter = SpeedMeter()
        >>> for step in (1, 2): meter.finish_step(step, num_tokens=500)
        >>> meter.seconds_left(2), meter.tokens_per_second() > 0
        (0.0, True)
    """

    def __init__(self) -> None:
        self._num_tokens, self._pauses = 0, 0.0
        self._row = self._mark()
        self._recent: deque[_Mark] = deque([self._row], maxlen=_RECENT_STEPS + 1)
        self._first_step = self._step = 0
        self._first_end = self._row.seconds

    def _mark(self) -> _Mark:
        return _Mark(time.perf_counter() - self._pauses, self._num_tokens)

    def finish_step(self, step: int, num_tokens: int) -> None:
        """Record the end of a step with this number of tokens."""
        self._num_tokens += num_tokens
        self._step = step
        if not self._first_step:  # it also loads kernels and starts threads
            self._first_step, self._first_end = step, time.perf_counter()
            self._recent.clear()
        self._recent.append(self._mark())

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of a block, such as a validation, from the tokens per second."""
        start = time.perf_counter()
        yield
        self._pauses += time.perf_counter() - start

    def row_speed(self) -> float:
        """Return the tokens per second since the last call, for a row of metrics.csv."""
        last, self._row = self._row, self._mark()
        return last.tokens_per_second(self._row)

    def tokens_per_second(self) -> float | None:
        """Return the tokens per second of the recent steps; None after the first step, which is slower."""
        return self._recent[0].tokens_per_second(self._recent[-1]) if len(self._recent) > 1 else None

    def seconds_left(self, total_steps: int) -> float | None:
        """Return an estimate of the time left, with pauses; None after the first step."""
        measured = self._step - self._first_step
        if not measured:
            return None
        return (time.perf_counter() - self._first_end) / measured * (total_steps - self._step)

    def is_estimate_due(self, total_steps: int) -> bool:
        """Return whether enough steps were measured to estimate the duration of the run."""
        measured = self._step - self._first_step
        enough = min(_MAX_ESTIMATE_STEPS, max(1, total_steps // 10))
        return measured >= enough or (measured > 0 and time.perf_counter() - self._first_end > _MAX_ESTIMATE_SECONDS)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> [format_duration(seconds) for seconds in (0.4, 42.0, 200.0, 7260.0, 200_000.0)]
    ['0 s', '42 s', '3 min 20 s', '2 h 1 min', '2 d 7 h']
    """
    rounded = round(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if rounded >= size:
            return f"{rounded // size} {unit} {rounded % size // smaller_size} {smaller}"
    return f"{rounded} s"
