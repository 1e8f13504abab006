"""Run candidates on the same work, interleaved, each in its own process."""

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

Worker = Callable[[Sequence[Any]], Any]
"""Processes items and returns the outputs."""


@dataclass(frozen=True)
class Candidate:
    """One way to do the work.

    Args:
        make: builds the worker inside the candidate's process. It must be a module-level function, so that another
            process can import it.
        args: arguments of `make`.
    """

    make: Callable[..., Worker]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Measurements:
    """Speed and memory of one candidate.

    Args:
        name: name of the candidate.
        rates: units of work per second, one value per round.
        median: median of the rates.
        ratio: speedup over the first candidate in the same round, median over the rounds.
        lowest, highest: minimum and maximum of that speedup.
        loaded_mib: memory of the process before the first item, in MiB.
        peak_mib: peak memory of the process, in MiB.
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
class BenchmarkResult:
    """Measurements of all candidates, in their order, and their outputs for the check items."""

    measurements: list[Measurements]
    outputs: dict[str, Any]


def run_benchmark(
    candidates: Mapping[str, Candidate],
    items: Sequence[Any],
    units: Callable[[Sequence[Any]], float],
    *,
    rounds: int = 5,
    check: Sequence[Any] = (),
    on_round: Callable[[str], None] = lambda line: None,
) -> BenchmarkResult:
    """Time all candidates on the same items for several rounds.

    Machines drift, so speeds are compared within a round only. Each round shuffles the items and the candidates.

    Args:
        candidates: candidates by name; the first is the reference of the speedups.
        items: the work of one round.
        units: amount of work in a list of items, such as the number of tokens.
        rounds: timed rounds, after one warm-up round.
        check: items whose outputs are returned for a comparison; they also warm up the candidates.
        on_round: called with one line of text after each round.

    Raises:
        ValueError: fewer than one round, or a candidate that failed, with its error.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}")
    context, generator = multiprocessing.get_context("spawn"), random.Random(0)
    processes: dict[str, _CandidateProcess] = {}
    try:
        for name, candidate in candidates.items():
            processes[name] = _CandidateProcess(context, name, candidate)
        outputs = {name: runner.run(check or items, keep=bool(check))[1] for name, runner in processes.items()}
        for runner in processes.values():
            runner.run(items)
        rates: dict[str, list[float]] = {name: [] for name in candidates}
        for number in range(rounds):
            shuffled_items, shuffled_names = list(items), list(processes)
            generator.shuffle(shuffled_items)
            generator.shuffle(shuffled_names)
            for name in shuffled_names:
                rates[name].append(units(shuffled_items) / processes[name].run(shuffled_items)[0])
            on_round(f"round {number + 1}: " + ", ".join(f"{name} {rates[name][-1]:,.0f}" for name in rates))
        memory = {name: runner.memory() for name, runner in processes.items()}
    finally:
        for runner in processes.values():
            runner.stop()
    reference = rates[next(iter(candidates))]
    measurements = []
    for name, own in rates.items():
        ratios = [rate / other for rate, other in zip(own, reference, strict=True)]
        spread = statistics.median(ratios), min(ratios), max(ratios)
        measurements.append(Measurements(name, own, statistics.median(own), *spread, *memory[name]))
    return BenchmarkResult(measurements, outputs)


class _CandidateProcess:
    """Handle of a candidate's process."""

    def __init__(self, context: Any, name: str, candidate: Candidate) -> None:
        self.name = name
        self.pipe, child_end = context.Pipe()
        self.process = context.Process(target=_run_candidate, args=(child_end, candidate), daemon=True)
        self.process.start()
        child_end.close()
        self.loaded: float = self._receive()

    def run(self, items: Sequence[Any], *, keep: bool = False) -> tuple[float, Any]:
        """Return the seconds, and the outputs if `keep` is set."""
        self.pipe.send((list(items), keep))
        seconds, output = self._receive()
        return seconds, output

    def memory(self) -> tuple[float, float]:
        self.pipe.send(None)
        return self.loaded, self._receive()

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(timeout=10)
        self.process.kill()

    def _receive(self) -> Any:
        try:
            failed, answer = self.pipe.recv()
        except EOFError:
            raise ValueError(f"{self.name} ended without an answer; it may have run out of memory") from None
        if failed:
            raise ValueError(f"{self.name} failed: {answer}")
        return answer


def _run_candidate(pipe: Connection, candidate: Candidate) -> None:
    """Serve requests in a candidate's process until the pipe is closed."""
    try:
        work = candidate.make(*candidate.args)
        pipe.send((False, peak_memory()))
        while True:
            request = pipe.recv()
            if request is None:
                pipe.send((False, peak_memory()))
                continue
            items, keep = request
            start = time.perf_counter()
            output = work(items)
            pipe.send((False, (time.perf_counter() - start, output if keep else None)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except ValueError as error:  # the message already explains the fix
        pipe.send((True, str(error)))
    except Exception as error:
        traceback.print_exc()
        pipe.send((True, f"{type(error).__name__}: {error}"))
