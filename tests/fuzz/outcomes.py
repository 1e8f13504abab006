"""Run one hostile case and judge its outcome."""

import contextlib
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, Any, Self

SECONDS = 20
"""Seconds after which a case counts as stuck."""
MEMORY_MB = 600
"""Growth of the peak memory that a case with small inputs may cause."""
MAX_MESSAGE = 2500
"""Maximum number of characters of an error message. It may repeat a wrong value, and list 200 languages."""

PRINTED = re.compile(rb"panicked at .*|Traceback|EP Error.*|\[[EF]:.*|RuntimeWarning: .*")
"""What no library may print: tracebacks, errors that ONNX Runtime logs, and warnings of NumPy."""
WORKS, REFUSED = "works", "refused"


@dataclass(frozen=True)
class Case:
    """One hostile input.

    Args:
        change: the change, for the report.
        run: uses the input; may return the number of its requests.
        names: texts of which an error message must contain one, such as the path of the file; after `^`, a text that it
            must start with.
        memory_mb: growth of the peak memory that is allowed.
        seconds: time after which the case counts as stuck.
    """

    change: str
    run: Callable[[], object]
    names: Sequence[str]
    memory_mb: int = MEMORY_MB
    seconds: int = SECONDS


class CaseRandom(Random):
    """The random number generator of one case.

    Args:
        target: name of the target.
        seed: seed of the run.
        number: number of the case.
    """

    def __new__(cls, *arguments: object) -> Self:
        return super().__new__(cls)

    def __init__(self, target: str, seed: int, number: int) -> None:
        super().__init__(f"{target} {seed} {number}")
        self.number = number


@dataclass(frozen=True)
class Target:
    """Something to fuzz.

    Args:
        prepare: writes the intact files into a folder.
        make: returns a case from that folder, a `CaseRandom` and an empty folder.
        count: returns the number of all cases of the folder, if it is known.
    """

    prepare: Callable[[Path], None]
    make: Callable[[Path, Any, Path], Case]
    count: Callable[[Path], int] | None = None


class TooSlowError(BaseException):
    """A case took too long. It is not an Exception, so that no code catches it."""


def judge(case: Case) -> tuple[str, str]:
    """Run a case; return "works", "refused" or the reason why its outcome is forbidden, and the count, message or traceback."""
    _reset_peak()
    before = _peak_mb()
    with tempfile.TemporaryFile() as printed, _output_to(printed):
        outcome = _outcome(case)
        printed.seek(0)
        crash = PRINTED.search(printed.read())
    if crash and outcome[0] in (WORKS, REFUSED):
        return "printed an error or a warning", f"{crash[0].decode(errors='replace')}: {outcome[1]}"
    grown = _peak_mb() - before
    return outcome if grown < case.memory_mb else (f"took {grown:,.0f} MB", outcome[1])


def _outcome(case: Case) -> tuple[str, str]:
    try:
        with time_limit(case.seconds):
            count = case.run()
        return WORKS, str(count) if isinstance(count, int) else ""
    except (ValueError, OSError) as error:
        return _judge_message(_message(error), case.names)
    except TooSlowError:
        return f"took more than {case.seconds} s", traceback.format_exc(limit=-6)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"raised {type(error).__name__}", traceback.format_exc(limit=-6)


@contextlib.contextmanager
def _output_to(file: IO[bytes]) -> Iterator[None]:
    """Write the output of the process to a file; libraries in Rust and C++ print without Python."""
    sys.stdout.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    for number in saved:
        os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)


def _judge_message(message: str, names: Sequence[str]) -> tuple[str, str]:
    if "\n" in message:
        return "message of several lines", message
    if len(message) > MAX_MESSAGE:
        return f"message of {len(message):,} characters", f"{message[:200]}\n{traceback.format_exc(limit=-1)[:500]}"
    if not any(f"^{message}".startswith(name) if name.startswith("^") else name in message for name in names):
        return "message without the file", f"{message}\n{traceback.format_exc(limit=-6)}"
    return REFUSED, message


def _message(error: ValueError | OSError) -> str:
    """Return the message as the command line prints it, except that the text of a ValueError may have several lines."""
    if isinstance(error, OSError) and error.strerror:
        return " ".join(f"{error.filename}: {error.strerror}".split()) if error.filename else error.strerror
    return str(error)


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TooSlowError in a block that runs too long, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TooSlowError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _reset_peak() -> None:
    """Set the peak memory of this process to its present memory, so that an earlier peak hides no growth. Only on Linux."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / 2**20 if sys.platform == "darwin" else size / 2**10
