"""End a command in order after Ctrl-C, SIGTERM or SIGHUP: temporary files are removed, and no traceback is printed."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_RETRY_SECONDS = 0.01


class _SignalExit(SystemExit):
    """The exit after SIGTERM or SIGHUP; the status is that of a shell, 128 + the signal's number."""


def _set(names: tuple[str, ...], action: Any) -> None:
    for name in names:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, action)


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, and print nothing if a signal arrives after it.

    The signals that follow the first one are ignored: `timeout` sends two, and an impatient user presses Ctrl-C again.
    """
    process, is_ending = os.getpid(), False

    def stop(number: int, frame: object) -> None:
        nonlocal is_ending
        if os.getpid() != process and number != signal.SIGINT:  # a forked worker
            os._exit(128 + number)
        if not is_ending:
            is_ending = True
            raise KeyboardInterrupt if number == signal.SIGINT else _SignalExit(128 + number)

    def retry(unraisable: Any) -> None:
        """Send a signal again whose exception Python discards, as in a destructor."""
        nonlocal is_ending
        error = unraisable.exc_value
        if isinstance(error, _SignalExit) and isinstance(error.code, int):
            number = error.code - 128
        elif isinstance(error, KeyboardInterrupt):
            number = int(signal.SIGINT)
        else:
            report(unraisable)
            return
        is_ending = False
        threading.Timer(_RETRY_SECONDS, os.kill, (process, number)).start()

    report, sys.unraisablehook = sys.unraisablehook, retry
    _set(("SIGTERM", "SIGHUP", "SIGINT"), stop)
    try:
        yield
    finally:
        # an exception in a function that runs when Python exits would be printed
        _set(("SIGTERM", "SIGHUP", "SIGINT"), signal.SIG_IGN if is_ending else signal.SIG_DFL)
        sys.unraisablehook = report
