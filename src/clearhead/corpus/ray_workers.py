"""Ray worker processes that encode shards: start them, distribute shards and replace dead workers."""

import importlib
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.corpus.encode import EncodingStats, ResumeError, encode_corpus
from clearhead.data.corpus import Corpus
from clearhead.data.lines import Errors
from clearhead.data.tables import raise_field_limit
from clearhead.io.json import write_json
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.compile import use_persistent_cache
from clearhead.runtime.process import tune_process
from clearhead.runtime.vectors import EncodeOptions

log = logging.getLogger(__name__)

_MAX_DEATHS = 20
"""Number of workers that may die on one shard before it counts as failed."""
_MAX_RESTARTS = 3
"""Failed starts that are retried, per requested worker."""
_LOCK_SECONDS = 60.0
"""Seconds to wait for the lock of a dead worker: the system may release it late."""
_WARN_SECONDS = 120.0
"""Seconds without any worker after which a warning is logged."""


@dataclass(frozen=True)
class EncodingJob:
    """Model and options of every worker.

    Args:
        model: a folder that all machines can read, or a Hub id.
        options: as in `TextEncoder.stream`.
        precision, device, compile: as in `TextEncoder`.
        column, errors, keep: as in `Corpus`.
        adapter: as in `TextEncoder.from_pretrained`.
    """

    model: str
    options: EncodeOptions
    precision: str = "auto"
    device: str = "auto"
    column: str | None = None
    errors: Errors = "strict"
    compile: bool = False
    keep: Sequence[str] = ()
    adapter: str | None = None

    def corpus(self, shard: str) -> Corpus:
        """Return the texts of a shard."""
        return Corpus([shard], column=self.column, errors=self.errors, keep=self.keep)

    def encoder(self) -> TextEncoder:
        """Load the model."""
        return TextEncoder.from_pretrained(
            self.model,
            precision=self.precision,
            device=self.device,
            compile=self.compile,
            adapter=self.adapter,
        )


class Worker:
    """One process with a loaded model. If it dies, the next worker resumes its shard from the part file."""

    def __init__(self, job: EncodingJob) -> None:
        self.job = job

    def start(self) -> None:
        """Load the model. Not in `__init__`, where Ray would hide the error message."""
        raise_field_limit()
        tune_process()
        if self.job.compile:
            use_persistent_cache()
        self.encoder = self.job.encoder()

    def encode(self, shard: str, output: str) -> EncodingStats:
        """Encode a shard to its output, and write a description of the shard next to it."""
        corpus, path = self.job.corpus(shard), Path(output)
        source = corpus.describe()
        if source_file(path).exists():  # a killed worker must not leave a new output with the description of the old
            write_json(source_file(path), {"input": [[name, None] for name, _ in source]})
        try:
            stats = encode_corpus(self.encoder, corpus, path, self.job.options, resume=True, wait=_LOCK_SECONDS)
        except ResumeError as problem:  # another shard, torch, device or number of threads
            log.warning("%s", problem)
            stats = encode_corpus(self.encoder, corpus, path, self.job.options, overwrite=True, wait=_LOCK_SECONDS)
        write_json(source_file(path), {"input": source})
        return stats


def source_file(output: Path) -> Path:
    """Return the path of the file that describes the source of an output."""
    return output.with_name(f".{output.name}.source.json")


class RayPool:
    """The workers of a run.

    Args:
        shards: output file of each shard.
        job: model and options.
        workers: number of processes; by default one per accelerator or processor of the cluster.

    Raises:
        ValueError: the cluster has fewer accelerators or processors than workers.
    """

    def __init__(self, shards: Mapping[str, Path], job: EncodingJob, workers: int | None) -> None:
        self._ray: Any = importlib.import_module("ray")  # untyped
        self._ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
        kind = "GPU" if job.device == "cuda" else "CPU"
        available = int(self._ray.cluster_resources().get(kind, 0))
        if available < (workers or 1):
            raise ValueError(
                f"the Ray cluster has {available} {kind}s, but {workers or 1} workers need one each; use fewer workers"
            )
        self._worker_class = self._ray.remote(num_cpus=1, num_gpus=int(kind == "GPU"))(Worker)
        self._job, self._shards, self._queue = job, shards, deque(shards)
        self._deaths: Counter[str] = Counter()
        self._running: dict[Any, tuple[Any, str | None]] = {}
        self._idle: list[Any] = []
        count = min(len(shards), available if workers is None else workers)
        self._restarts_left = _MAX_RESTARTS * count
        for _ in range(count):
            self._start()

    def run(self) -> Iterator[tuple[str, EncodingStats | Exception]]:
        """Yield each finished shard with its statistics or its error.

        Raises:
            ValueError: no worker is left.
        """
        try:
            while self._queue or any(shard is not None for _, shard in self._running.values()):
                while self._queue and self._idle:
                    shard, worker = self._queue.popleft(), self._idle.pop()
                    self._running[worker.encode.remote(shard, str(self._shards[shard]))] = worker, shard
                ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_WARN_SECONDS)
                if ready:
                    yield from self._handle_finished(ready[0])
                elif not self._idle and all(shard is None for _, shard in self._running.values()):
                    log.warning("no worker has started yet; the cluster may have no free resources")
        finally:
            for worker in (*self._idle, *(worker for worker, _ in self._running.values())):
                self._ray.kill(worker)

    def _start(self) -> None:
        worker = self._worker_class.remote(self._job)
        self._running[worker.start.remote()] = worker, None

    def _handle_finished(self, task: Any) -> Iterator[tuple[str, EncodingStats | Exception]]:
        """Yield the shard of a finished task with its result, unless the shard is retried."""
        worker, shard = self._running.pop(task)
        try:
            stats = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:  # the worker is still alive
            if shard is not None:
                self._idle.append(worker)
                yield shard, error.cause
                return
            self._kill(worker)
            self._handle_failed_start(error.cause)
        except self._ray.exceptions.RayError as error:
            self._kill(worker)
            if shard is None:
                self._handle_failed_start(error)
                return
            self._deaths[shard] += 1
            if self._deaths[shard] < _MAX_DEATHS:
                self._queue.appendleft(shard)
            else:
                yield shard, ValueError(f"{shard}: {_MAX_DEATHS} workers died on it; the last error: {_reason(error)}")
            self._start()
        else:
            self._idle.append(worker)
            if shard is not None:
                yield shard, stats

    def _kill(self, worker: Any) -> None:
        self._ray.kill(worker)

    def _handle_failed_start(self, error: Exception) -> None:
        """Start another worker if retries are left.

        Raises:
            ValueError: no retries and no workers are left.
        """
        log.warning("a worker could not be started: %s", _reason(error))
        if self._restarts_left > 0:
            self._restarts_left -= 1
            self._start()
        elif not self._idle and not self._running:
            raise ValueError(f"no worker is left for {len(self._queue)} shards; the last error: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return Ray's error in one line, without its general advice."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].partition(" Some common causes")[0]
