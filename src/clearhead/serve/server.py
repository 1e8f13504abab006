"""The server: the application in uvicorn, with its limits."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from clearhead.serve.app import Settings, create_app
from clearhead.serve.protocol import PatientProtocol


def keys_in(path: Path) -> list[str]:
    """The API keys in a file, one a line; blank lines and those that begin with # are left out.

    Raises:
        ValueError: there is none, or one of fewer than 16 characters.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path} holds no API key; one a line is wanted")
    if any(len(key) < 16 for key in keys):
        raise ValueError(f"{path}: a key has 16 characters or more")
    return keys


def serve(settings: Settings, host: str, port: int) -> None:
    """Serves until it is told to stop: SIGTERM and SIGINT let it finish what it has taken."""
    logging.getLogger("clearhead.serve").setLevel(logging.INFO)
    config = uvicorn.Config(
        create_app(settings),
        host=host,
        port=port,
        http=PatientProtocol,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=10,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=32 * 1024,
        server_header=False,
    )
    _Server(config).run()


class _Server(uvicorn.Server):
    """Ends with status 0 when it was told to end, and has; uvicorn's own dies of the signal after all."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends gently at SIGTERM and SIGINT; at a second SIGINT at once."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
