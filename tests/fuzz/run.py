"""The targets, and the loop over their cases."""

import faulthandler
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from fuzz.outcomes import CaseRandom, Target, judge
from fuzz.targets import checkpoints, endpoints, graphs, indexes, recipes, server_requests, tables

TARGETS: dict[str, Target] = {
    "checkpoints": checkpoints.TARGET,
    "keys": checkpoints.KEYS_TARGET,
    "recipes": recipes.TARGET,
    "tables": tables.TARGET,
    "indexes": indexes.TARGET,
    "requests": server_requests.TARGET,
    "graphs": graphs.TARGET,
    "endpoints": endpoints.TARGET,
}


def prepare(target: str, folder: Path) -> None:
    """Write the intact files."""
    be_quiet()
    TARGETS[target].prepare(folder)


def be_quiet() -> None:
    """Turn off progress bars and warnings, because the cases cause thousands, and compute with one thread."""
    import torch
    import transformers

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of a server
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


def run_case(
    target: str, folder: Path, seed: int, number: int, on_begin: Callable[[str], object] = str
) -> tuple[str, str, str]:
    """Run one case; return the change, the outcome and the message."""
    workspace = Path(tempfile.mkdtemp(prefix="case-", dir=folder.parent))
    try:
        case = TARGETS[target].make(folder, CaseRandom(target, seed, number), workspace)
        on_begin(case.change)
        return case.change, *judge(case)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def work(target: str, seed: int, folder: Path, limits: tuple[int, int, float], first: bool, events: Connection) -> None:
    """Run cases in a separate process, and send the beginning and the end of each.

    Args:
        target, seed: as in the command.
        folder: folder of the intact files.
        limits: number of the first case and of the first that is not run, and the time at which to stop.
        first: whether to write the intact files first.
        events: receives ("ready",), ("begin", number, change), ("end", outcome, message) and ("done",).
    """
    be_quiet()
    faulthandler.enable()  # shows where a process ended with a signal
    if first:
        prepare(target, folder)
    events.send(("ready",))
    number, end, stop = limits
    if (count := TARGETS[target].count) is not None:
        end = min(end, count(folder))
    while number < end and time.monotonic() < stop:
        _, outcome, message = run_case(
            target, folder, seed, number, lambda change, number=number: events.send(("begin", number, change))
        )
        events.send(("end", outcome, message))
        number += 1
    events.send(("done",))
