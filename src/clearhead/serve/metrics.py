"""Prometheus metrics of the server."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

StackName = Literal["encoder", "decoder"]


class Metrics:
    """Counters and histograms of requests, the queue, batches and tokens. They contain no text of a request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("clearhead_requests", "Requests", ["path", "method", "status"], registry=self.registry)
        self._seconds = Histogram(
            "clearhead_request_seconds",
            "Seconds from request to response",
            ["path"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self._queue_seconds = Histogram(
            "clearhead_queue_seconds",
            "Longest queue time among the jobs of a batch",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30),
            registry=self.registry,
        )
        self._batch_jobs = Histogram(
            "clearhead_batch_jobs",
            "Jobs in a batch",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            registry=self.registry,
        )
        self._tokens = Counter(
            "clearhead_tokens",
            "Tokens through the encoder (with padding) or the decoder (of every beam)",
            ["part"],
            registry=self.registry,
        )
        self._streams = Counter("clearhead_streams", "Streamed translations", registry=self.registry)
        self.queue = Gauge(
            "clearhead_queue_tokens",
            "Tokens that wait or are computed, with the tokens expected to be generated",
            registry=self.registry,
        )
        self.refused_connections = Counter(
            "clearhead_connections_refused", "Connections closed because of a limit", registry=self.registry
        )
        self.unread_responses = Counter(
            "clearhead_answers_untaken",
            "Responses aborted because the client did not read them",
            registry=self.registry,
        )
        self._overloaded = Counter(
            "clearhead_refused", "Requests rejected because the queue was full", registry=self.registry
        )

    def record_request(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, method, str(status)).inc()
        self._seconds.labels(path).observe(seconds)
        if status == 429:
            self._overloaded.inc()

    def record_batch(self, jobs: int, queue_seconds: float) -> None:
        """Count a batch."""
        self._batch_jobs.observe(jobs)
        self._queue_seconds.observe(queue_seconds)

    def record_stream(self) -> None:
        """Count a stream."""
        self._streams.inc()

    def record_tokens(self, stack: StackName, count: int) -> None:
        """Count the tokens of a forward pass."""
        self._tokens.labels(stack).inc(count)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
