"""Run the application in uvicorn, with limits on connections and a graceful shutdown."""

import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import uvicorn

from clearhead.io.reading import open_file
from clearhead.runtime.process import tune_process
from clearhead.serve.app import create_app
from clearhead.serve.application_state import ApplicationState
from clearhead.serve.http.protocol import ConnectionLimits, protocol_with_limits
from clearhead.serve.http.sockets import format_address, listen
from clearhead.serve.settings import Settings

log = logging.getLogger("clearhead.serve")

_BACKLOG = 128
_OTHER_FILES = 128 + 4 * _BACKLOG
"""Open files besides the accepted connections: weights, the listening socket, and connections about to be closed."""
_MIN_KEY_LENGTH = 16


def read_api_keys(path: Path) -> list[str]:
    """Read API keys from a file, one per line. Blank lines and lines that start with # are skipped.

    Raises:
        ValueError: the file has no key, or a key of fewer than 16 characters.
    """
    with open_file(path) as file:  # may be a pipe
        content = file.read()
    try:
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path} contains no API key; write one per line")
    if any(len(key) < _MIN_KEY_LENGTH for key in keys):
        raise ValueError(f"{path}: an API key needs at least {_MIN_KEY_LENGTH} characters")
    return keys


def serve(settings: Settings, host: str, port: int) -> None:
    """Run the server until SIGTERM or SIGINT. Accepted requests get some time to finish.

    Args:
        settings: settings of the server.
        host: a host name or an address of this machine.
        port: a port; 0 for any free port.

    Raises:
        ValueError: the settings contradict each other, a model cannot be loaded, listening fails, or the limit of open
            files is too low.
    """
    tune_process()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s clearhead: %(message)s", force=True)
    logging.getLogger("clearhead.serve").setLevel(logging.INFO)
    state = ApplicationState(settings)
    limits = ConnectionLimits(
        _available_connections(settings.max_connections),
        header_seconds=settings.header_seconds,
        response_seconds=settings.response_seconds,
        max_unread_bytes=settings.max_unread_bytes,
        metrics=state.metrics,
    )
    sockets = listen(host, port, _BACKLOG)
    config = uvicorn.Config(
        create_app(state),
        http=protocol_with_limits(limits),
        ws="none",
        # any client can send X-Forwarded-For and so choose whose limits it uses
        proxy_headers=False,
        backlog=_BACKLOG,
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_keep_alive=math.ceil(settings.idle_seconds),
        # one second after the batcher has cancelled the rest, so that clients still get its errors
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds) + 1,
        server_header=False,
    )
    _Server(config, state).run(sockets)
    if state.load_error is not None:
        raise state.load_error
    if state.busy:
        # a thread that still runs torch would abort the process when the interpreter exits
        logging.shutdown()
        os._exit(0)
    sys.exit(0)


def _available_connections(connections: int) -> int:
    """Return the number of connections that the limit of open files allows, after raising it as far as possible.

    Raises:
        ValueError: the limit allows none.
    """
    if sys.platform == "win32":
        return connections
    import resource

    required = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= required:
        return connections
    limit = required if hard == resource.RLIM_INFINITY else min(required, hard)
    if limit <= _OTHER_FILES:
        raise ValueError(
            f"the process may open {limit} files; the server needs more than {_OTHER_FILES}: raise ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit < required:
        log.warning("room for %d connections: this process may open %d files (ulimit -n)", limit - _OTHER_FILES, limit)
    return limit - _OTHER_FILES


class _Server(uvicorn.Server):
    """uvicorn server that exits with status 0 after a signal. uvicorn itself raises the signal again."""

    def __init__(self, config: uvicorn.Config, state: ApplicationState) -> None:
        super().__init__(config)
        self._state = state

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen and log the addresses."""
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                log.info("listening on http://%s", format_address(listening.getsockname()))

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop, also if a model could not be loaded."""
        return await super().on_tick(counter) or self._state.load_error is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down without waiting for incomplete bodies."""
        self._state.bodies.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down gracefully; at once at a second SIGINT."""
        if not self.should_exit:
            self._state.close()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT in a block."""
        previous = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in previous.items():
                signal.signal(sig, handler)
