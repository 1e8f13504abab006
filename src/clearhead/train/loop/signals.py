"""Stop a training run with a signal."""

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from clearhead.train.loop.callback import TrainingCallback

log = logging.getLogger(__name__)

_REPEAT_SECONDS = 1.0
"""One Ctrl-C may arrive twice within this time: from the terminal and from `torchrun`."""


@contextlib.contextmanager
def stop_on_signals(callback: TrainingCallback) -> Iterator[None]:
    """Stop the run after the current step on SIGINT or SIGTERM; exit immediately on a second SIGINT.

    Args:
        callback: the run's callback, which requests the stop.
    """
    first_signal = math.nan

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first_signal
        now = time.monotonic()
        if number == signal.SIGINT and now - first_signal > _REPEAT_SECONDS:
            raise SystemExit(130)
        if not callback.stop_requested:
            first_signal, callback.stop_requested = now, True
            log.warning("stopping after this step")

    def install() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handle)

    previous = {}
    if threading.current_thread() is threading.main_thread():  # only the main thread can handle signals
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        callback.install_signal_handlers = install
        install()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
