"""The server: the application in uvicorn, with its limits."""

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

from clearhead.serve.app import create_app
from clearhead.serve.application_state import State
from clearhead.serve.http.protocol import Connections, patient
from clearhead.serve.http.sockets import listen, written
from clearhead.serve.settings import Settings

log = logging.getLogger("clearhead.serve")

_BACKLOG = 128
_OTHER_FILES = 128 + 4 * _BACKLOG
"""Open files beside the connections: the models', the listening socket, and what is taken before it can be closed."""


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
    """Serves until it is told to stop: SIGTERM and SIGINT let it finish what it has taken, for a while.

    Raises:
        ValueError: settings that contradict each other, a model that cannot be loaded, or a process that may open too
            few files; or an address that cannot be listened on.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s clearhead: %(message)s", force=True)
    logging.getLogger("clearhead.serve").setLevel(logging.INFO)
    state = State(settings)
    connections = Connections(
        _room_for(settings.connections),
        header_seconds=settings.header_seconds,
        answer_seconds=settings.answer_seconds,
        held_answers=settings.held_answers,
        metrics=state.metrics,
    )
    sockets = listen(host, port, _BACKLOG)
    config = uvicorn.Config(
        create_app(state),
        http=patient(connections),
        ws="none",
        # any client can send X-Forwarded-For, and would choose by it whose budget it uses
        proxy_headers=False,
        backlog=_BACKLOG,
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_keep_alive=math.ceil(settings.idle_seconds),
        # one second later than what computes has given up, and has said so to the clients
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds) + 1,
        server_header=False,
    )
    _Server(config, state).run(sockets)
    if state.failed is not None:
        raise state.failed
    if state.busy:
        # a thread inside torch would abort the process when the interpreter ends
        logging.shutdown()
        os._exit(0)
    sys.exit(0)


def _room_for(connections: int) -> int:
    """How many connections there can be of those wanted: each is an open file, whose number the system limits.

    Raises:
        ValueError: it leaves room for none.
    """
    if sys.platform == "win32":
        return connections
    import resource

    wanted = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if limit <= _OTHER_FILES:
        raise ValueError(f"this process may open {limit} files; serving takes more than {_OTHER_FILES}: see ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit < wanted:
        log.warning("room for %d connections: this process may open %d files (ulimit -n)", limit - _OTHER_FILES, limit)
    return limit - _OTHER_FILES


class _Server(uvicorn.Server):
    """Ends with status 0 when it was told to end, and has; uvicorn's own dies of the signal after all."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state = state

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen, and says where."""
        await super().startup(sockets)
        for server in self.servers:
            for one in server.sockets:
                log.info("listening on http://%s", written(one.getsockname()))

    async def on_tick(self, counter: int) -> bool:
        """Whether it ends: also where a model could not be loaded."""
        return await super().on_tick(counter) or self._state.failed is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends; what has not come whole by now is not waited for."""
        self._state.bodies.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends gently; at a second SIGINT at once."""
        if not self.should_exit:
            self._state.close()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hears SIGTERM and SIGINT."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
