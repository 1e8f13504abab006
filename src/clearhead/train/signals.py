"""How a run is stopped from outside."""

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from clearhead.train.callback import TrainingCallback

log = logging.getLogger(__name__)


@contextlib.contextmanager
def stopping(course: TrainingCallback) -> Iterator[None]:
    """Ctrl-C and the end of a machine's time stop a run after the step that it is in; a second Ctrl-C stops at once."""

    asked = math.nan

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        now = time.monotonic()
        # one Ctrl-C may come twice: from the terminal and from `torchrun`
        if number == signal.SIGINT and now - asked > 1.0:
            raise SystemExit(130)
        if not course.asked_to_stop:
            asked, course.asked_to_stop = now, True
            log.warning("stopping after this step")

    def listen() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)

    before = {}
    if threading.current_thread() is threading.main_thread():  # no other hears signals
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        course.listen = listen
        listen()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
