"""What the server holds: its models, its queue, its clients' bodies, its numbers."""

import logging
import threading
import time

from starlette.exceptions import HTTPException

from clearhead.serve.batching import Batcher
from clearhead.serve.handlers.base import Name
from clearhead.serve.http.request_bodies import BodyBudget
from clearhead.serve.metrics import Metrics, Part
from clearhead.serve.model_registry import LoadedModel, asked, load
from clearhead.serve.settings import Settings

log = logging.getLogger("clearhead.serve")

_LAST_STEP = 2.0
"""Seconds that a step may go on when the time is over."""


class State:
    """The server's models, queue, bodies and numbers.

    Args:
        settings: how it works.

    Raises:
        ValueError: settings that contradict each other.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.asked = asked(settings)
        self.served: dict[str, LoadedModel] = {}
        self.started = int(time.time())
        self.failed: ValueError | None = None
        self.bodies = BodyBudget(
            largest=settings.largest_body, budget=settings.held_bodies, seconds=settings.body_seconds
        )
        self._loading = threading.Thread(target=self._load, name="load", daemon=True)
        self.batcher = Batcher(
            lambda key, payloads: self.served[key.model].perform(key, payloads),
            batch_cost=settings.batch_tokens,
            queue_cost=settings.queue_tokens,
            observe=self.metrics.batch,
        )

    @property
    def ready(self) -> bool:
        """Whether all models are loaded, and what computes is alive."""
        return self.batcher.alive

    @property
    def busy(self) -> bool:
        """Whether a thread still loads or computes."""
        return self._loading.is_alive() or self.batcher.alive

    def start(self) -> None:
        """Begins to load."""
        self._loading.start()

    def close(self) -> None:
        """Takes nothing more, and gives what it has taken its time to finish; a signal's handler may call it."""
        self.batcher.close(self.settings.drain_seconds)

    def drain(self) -> None:
        """Waits for what was taken, after `close` for a step more than it was given."""
        if self.batcher.alive:
            self.batcher.drain(min(self.batcher.seconds_left, self.settings.drain_seconds) + _LAST_STEP)

    def _load(self) -> None:
        """Loads all models; what goes wrong is kept in `failed`."""
        for one in self.asked:
            try:
                self.served[one.name] = load(one, self.settings, self._step)
            except Exception as error:
                said = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
                self.failed = ValueError(f"model {one.name} cannot be loaded: {said}")
                return
            log.info("loaded %s: %s", one.name, ", ".join(self.served[one.name].uses))
        self.batcher.start()

    def model(self, name: str | None, use: Name) -> LoadedModel:
        """The model that was asked for, or the first that can.

        Raises:
            HTTPException: it is not loaded (404), cannot do this (400), or nothing is loaded yet (503).
        """
        if not self.ready:
            raise HTTPException(503, "the models are still being loaded")
        able = [one for one in self.served.values() if use in one.uses]
        if name is None and able:
            return able[0]
        if name in self.served:
            if use not in self.served[name].uses:
                raise HTTPException(400, f"model {name!r} cannot {use}; it can {', '.join(self.served[name].uses)}")
            return self.served[name]
        if name is None:
            raise HTTPException(404, f"no loaded model can {use}")
        raise HTTPException(404, f"model {name!r} is not loaded; these are: {', '.join(self.served)}")

    def _step(self, part: Part, tokens: int) -> None:
        self.batcher.check()
        self.metrics.tokens(part, tokens)
