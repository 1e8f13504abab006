"""Contestants that do the same work in turn, each in a process of its own."""

import multiprocessing
import random
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from clearhead.benchmark.hardware import peak_memory

Work = Callable[[Sequence[Any]], Any]
"""Does the work on some items, and gives what came out."""


@dataclass(frozen=True)
class Candidate:
    """One way to do the work.

    Args:
        make: called in the process of this contestant alone; gives the work. A function of a module, so that another
            process finds it.
        given: what it is called with.
    """

    make: Callable[..., Work]
    given: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Measurements:
    """What was measured of one contestant.

    Args:
        name: its name.
        rates: units of work a second, in each round.
        median: of the rates.
        ratio: to the first contestant's rate in the same round, the median over the rounds.
        lowest, highest: of that ratio over the rounds.
        loaded_mib: memory of its process before the first work.
        peak_mib: the most memory that its process ever held.
    """

    name: str
    rates: list[float]
    median: float
    ratio: float
    lowest: float
    highest: float
    loaded_mib: float
    peak_mib: float


@dataclass(frozen=True)
class Contest:
    """The figures of all contestants, in their order, and what came out of the items of the check."""

    figures: list[Measurements]
    outputs: dict[str, Any]


def run_benchmark(
    contestants: Mapping[str, Candidate],
    items: Sequence[Any],
    units: Callable[[Sequence[Any]], float],
    *,
    rounds: int = 5,
    check: Sequence[Any] = (),
    said: Callable[[str], None] = lambda line: None,
) -> Contest:
    """Lets all contestants do the same work, in turn, several times.

    A machine drifts: what stands side by side was measured side by side, and is compared within its round. In each
    round the items come in another order, and the contestants too.

    Args:
        contestants: by their names; the first is what the others are compared with.
        items: the work of a round.
        units: how much work some items are, such as their tokens.
        rounds: how many, after one that warms up and is not counted.
        check: items whose outputs are kept, for a comparison; they are the warming up as well, with the items.
        said: told what was measured, as it is.

    Raises:
        ValueError: fewer than one round, or a contestant that failed, with its error.
    """
    if rounds < 1:
        raise ValueError(f"a contest has one round or more; got {rounds}")
    context, chance = multiprocessing.get_context("spawn"), random.Random(0)
    runners: dict[str, _Runner] = {}
    try:
        for name, contestant in contestants.items():
            runners[name] = _Runner(context, name, contestant)
        outputs = {name: runner.work(check or items, keep=bool(check))[1] for name, runner in runners.items()}
        for runner in runners.values():
            runner.work(items)
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(rounds):
            order, turn = list(items), list(runners)
            chance.shuffle(order)
            chance.shuffle(turn)
            for name in turn:
                rates[name].append(units(order) / runners[name].work(order)[0])
            said(f"round {number + 1}: " + ", ".join(f"{name} {rates[name][-1]:,.0f}" for name in rates))
        memory = {name: runner.memory() for name, runner in runners.items()}
    finally:
        for runner in runners.values():
            runner.stop()
    first = rates[next(iter(contestants))]
    figures = []
    for name, found in rates.items():
        ratios = [rate / other for rate, other in zip(found, first, strict=True)]
        middle = statistics.median(ratios)
        figures.append(
            Measurements(name, found, statistics.median(found), middle, min(ratios), max(ratios), *memory[name])
        )
    return Contest(figures, outputs)


class _Runner:
    """A contestant's process, from outside."""

    def __init__(self, context: Any, name: str, contestant: Candidate) -> None:
        self.name = name
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, contestant), daemon=True)
        self.process.start()
        there.close()
        self.loaded: float = self._answer()

    def work(self, items: Sequence[Any], *, keep: bool = False) -> tuple[float, Any]:
        """Seconds, and what came out if it is kept."""
        self.pipe.send((list(items), keep))
        seconds, output = self._answer()
        return seconds, output

    def memory(self) -> tuple[float, float]:
        self.pipe.send(None)
        return self.loaded, self._answer()

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(timeout=10)
        self.process.kill()

    def _answer(self) -> Any:
        try:
            failed, answer = self.pipe.recv()
        except EOFError:
            raise ValueError(f"{self.name} ended without an answer; was there memory enough?") from None
        if failed:
            raise ValueError(f"{self.name} failed: {answer}")
        return answer


def _serve(pipe: Connection, contestant: Candidate) -> None:
    """A contestant's process, from inside: until the other end is closed."""
    try:
        work = contestant.make(*contestant.given)
        pipe.send((False, peak_memory()))
        while True:
            asked = pipe.recv()
            if asked is None:
                pipe.send((False, peak_memory()))
                continue
            items, keep = asked
            start = time.perf_counter()
            output = work(items)
            pipe.send((False, (time.perf_counter() - start, output if keep else None)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except ValueError as error:  # its message says what to do
        pipe.send((True, str(error)))
    except Exception as error:
        traceback.print_exc()
        pipe.send((True, f"{type(error).__name__}: {error}"))
