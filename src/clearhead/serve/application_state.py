"""State that all requests share: models, batcher, request bodies and metrics."""

import logging
import threading
import time
from typing import Any

from starlette.exceptions import HTTPException

from clearhead.serve.batching import Batcher
from clearhead.serve.http.request_bodies import BodyBudget
from clearhead.serve.metrics import Metrics, StackName
from clearhead.serve.model_registry import LoadedModel, load_model, model_specs
from clearhead.serve.settings import Settings

log = logging.getLogger("clearhead.serve")

_LAST_PASS_SECONDS = 2.0
"""Extra time for the last forward pass after the drain time is over."""


class ApplicationState:
    """Models, batcher, request bodies and metrics of the server.

    Args:
        settings: settings of the server.

    Raises:
        ValueError: the settings contradict each other.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.specs = model_specs(settings)
        self.models: dict[str, LoadedModel] = {}
        self.started_at = int(time.time())
        self.load_error: ValueError | None = None
        self.bodies = BodyBudget(
            max_body_bytes=settings.max_body_bytes,
            max_buffered_bytes=settings.max_buffered_bytes,
            seconds=settings.body_seconds,
        )
        self._loader = threading.Thread(target=self._load, name="load", daemon=True)
        self.batcher = Batcher(
            lambda key, payloads: self.models[key.model].run(key, payloads),
            max_batch_cost=settings.batch_tokens,
            max_queue_cost=settings.queue_tokens,
            on_batch=self.metrics.record_batch,
        )

    @property
    def ready(self) -> bool:
        """Whether all models are loaded and the compute thread is alive."""
        return self.batcher.alive

    @property
    def busy(self) -> bool:
        """Whether a thread is still loading or computing."""
        return self._loader.is_alive() or self.batcher.alive

    def start(self) -> None:
        """Start to load the models in the background."""
        self._loader.start()

    def close(self) -> None:
        """Accept no more requests and start the drain time. Safe to call from a signal handler."""
        self.batcher.close(self.settings.drain_seconds)

    def drain(self) -> None:
        """Wait for the accepted requests, after `close` until the drain time is over."""
        if self.batcher.alive:
            self.batcher.drain(min(self.batcher.seconds_left, self.settings.drain_seconds) + _LAST_PASS_SECONDS)

    def model(self, name: str | None, task: str, body: Any = None) -> LoadedModel:
        """Return a model by name, or the first model that supports a task, preferably in the languages of a request.

        Raises:
            HTTPException: the model is not loaded (404), does not support the task (400), or loading has not finished
                (503).
        """
        if not self.ready:
            raise HTTPException(503, "the models are still loading")
        if name is None:
            able = [model for model in self.models.values() if task in model.handlers]
            if not able:
                raise HTTPException(404, f"no loaded model supports {task}")
            return next((model for model in able if model.handlers[task].accepts(body)), able[0])
        model = self.named_model(name)
        if task not in model.handlers:
            raise HTTPException(400, f"model {name!r} does not support {task}; it supports {', '.join(model.handlers)}")
        return model

    def named_model(self, name: str) -> LoadedModel:
        """Return a model by name.

        Raises:
            HTTPException: the model is not loaded (404).
        """
        if name not in self.models:
            raise HTTPException(404, f"model {name!r} is not loaded; loaded: {', '.join(self.models)}")
        return self.models[name]

    def _load(self) -> None:
        """Load all models and start the batcher; an error is kept in `load_error`."""
        for spec in self.specs:
            try:
                self.models[spec.name] = load_model(spec, self.settings, self._on_pass)
            except Exception as error:
                known = isinstance(error, ValueError | OSError)
                message = str(error) if known else f"{type(error).__name__}: {error}"
                self.load_error = ValueError(f"model {spec.name} cannot be loaded: {message}")
                return
            log.info("loaded %s: %s", spec.name, ", ".join(self.models[spec.name].handlers))
        self.batcher.start()

    def _on_pass(self, stack: StackName, num_tokens: int) -> None:
        self.batcher.check_cancelled()
        self.metrics.record_tokens(stack, num_tokens)
