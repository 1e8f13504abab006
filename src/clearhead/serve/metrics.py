"""What Prometheus reads."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

Part = Literal["encoder", "decoder"]


class Metrics:
    """Requests, their time, the queue, the batches, the tokens; nothing of any text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("clearhead_requests", "Requests", ["path", "method", "status"], registry=self.registry)
        self._seconds = Histogram(
            "clearhead_request_seconds",
            "Time from request to answer",
            ["path"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self._waited = Histogram(
            "clearhead_queue_seconds",
            "Longest wait of a batch's jobs",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30),
            registry=self.registry,
        )
        self._jobs = Histogram(
            "clearhead_batch_jobs",
            "Texts in a batch",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            registry=self.registry,
        )
        self._tokens = Counter(
            "clearhead_tokens",
            "Tokens that went through an encoder, padding too, or a decoder, those of every beam",
            ["part"],
            registry=self.registry,
        )
        self._streams = Counter("clearhead_streams", "Translations that were streamed", registry=self.registry)
        self.queue = Gauge(
            "clearhead_queue_tokens",
            "Tokens that wait or are computed, those to generate as they are expected",
            registry=self.registry,
        )
        self.connections = Counter(
            "clearhead_connections_refused", "Connections that were one too many", registry=self.registry
        )
        self.untaken = Counter(
            "clearhead_answers_untaken", "Answers that were given up, for nobody took them", registry=self.registry
        )
        self._refused = Counter("clearhead_refused", "Requests for which there was no room", registry=self.registry)

    def request(self, path: str, method: str, status: int, seconds: float) -> None:
        """Counts a request."""
        self._requests.labels(path, method, str(status)).inc()
        self._seconds.labels(path).observe(seconds)
        if status == 429:
            self._refused.inc()

    def batch(self, jobs: int, waited: float) -> None:
        """Counts a batch."""
        self._jobs.observe(jobs)
        self._waited.observe(waited)

    def stream(self) -> None:
        """Counts a stream."""
        self._streams.inc()

    def tokens(self, part: Part, count: int) -> None:
        """Counts what goes through a model."""
        self._tokens.labels(part).inc(count)

    def text(self) -> bytes:
        """All of it, as Prometheus wants it."""
        return generate_latest(self.registry)
