"""The processes of a Ray cluster that encode shards: started, given work, and replaced when they die."""

import importlib
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.corpus.encode import EncodingStats, ResumeError, encode_corpus
from clearhead.data.corpus import Corpus
from clearhead.data.lines import Errors
from clearhead.data.tables import raise_field_limit
from clearhead.io.json import write_json
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.allocator import configure_allocator
from clearhead.runtime.compile import use_persistent_cache
from clearhead.runtime.vectors import EncodeOptions

log = logging.getLogger(__name__)

_DEATHS = 20
"""How many workers may die on one shard before it is given up."""
_STARTS = 3
"""How many workers that could not be started are replaced, for each one that is wanted."""
_LOCK_SECONDS = 60.0
"""How long a worker waits for the one it replaces: the system may release that one's lock a little later."""
_PATIENCE = 120.0
"""Seconds without any worker after which it is said."""


@dataclass(frozen=True)
class EncodingJob:
    """What every worker is told.

    Args:
        model: a folder that all machines see, or a Hub id.
        options: as in `TextEncoder.stream`.
        precision, device, compile: as in `TextEncoder`.
        column, errors: as in `Corpus`.
    """

    model: str
    options: EncodeOptions
    precision: str = "auto"
    device: str = "auto"
    column: str | None = None
    errors: Errors = "strict"
    compile: bool = False

    def encoder(self) -> TextEncoder:
        """The model, loaded."""
        return TextEncoder.from_pretrained(
            self.model, precision=self.precision, device=self.device, compile=self.compile
        )


class Worker:
    """One process with the model. What it had done of a shard when it was killed, the next one finds on disk."""

    def __init__(self, job: EncodingJob) -> None:
        self.job = job

    def start(self) -> None:
        """Load the model. Not when the object is made: Ray would report an error there in its own words."""
        raise_field_limit()
        configure_allocator()
        if self.job.compile:
            use_persistent_cache()
        self.encoder = self.job.encoder()

    def encode(self, shard: str, output: str) -> EncodingStats:
        """Encode a shard to its file, and write next to it what the file was made from."""
        corpus, place = Corpus([shard], column=self.job.column, errors=self.job.errors), Path(output)
        source = corpus.describe()
        try:
            counts = encode_corpus(self.encoder, corpus, place, self.job.options, resume=True, wait=_LOCK_SECONDS)
        except ResumeError as problem:  # another shard, torch, device or number of threads
            log.warning("%s", problem)
            counts = encode_corpus(self.encoder, corpus, place, self.job.options, wait=_LOCK_SECONDS)
        write_json(source_note(place), {"input": source})
        return counts


def source_note(place: Path) -> Path:
    """The file that says what an output was made from."""
    return place.with_name(f".{place.name}.source.json")


class RayPool:
    """The workers of a run.

    Args:
        shards: for each shard its output.
        job: what is done with each.
        workers: how many processes; as many as the cluster has accelerators or processors where None.

    Raises:
        ValueError: the cluster has no room for them.
    """

    def __init__(self, shards: Mapping[str, Path], job: EncodingJob, workers: int | None) -> None:
        self._ray: Any = importlib.import_module("ray")  # its types do not know what it makes of a class
        self._ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
        kind = "GPU" if job.device == "cuda" else "CPU"
        there = int(self._ray.cluster_resources().get(kind, 0))
        if there < (workers or 1):
            raise ValueError(f"the Ray cluster has {there} {kind}s, and a worker takes one; {workers or 1} are wanted")
        self._made = self._ray.remote(num_cpus=1, num_gpus=int(kind == "GPU"))(Worker)
        self._job, self._shards, self._queue = job, shards, deque(shards)
        self._deaths: Counter[str] = Counter()
        self._running: dict[Any, tuple[Any, str | None]] = {}
        self._free: list[Any] = []
        count = min(len(shards), there if workers is None else workers)
        self._starts = _STARTS * count
        for _ in range(count):
            self._start()

    def work(self) -> Iterator[tuple[str, EncodingStats | Exception]]:
        """Each shard with what became of it, as they come.

        Raises:
            ValueError: there is no worker any more.
        """
        try:
            while self._queue or any(shard is not None for _, shard in self._running.values()):
                while self._queue and self._free:
                    shard, worker = self._queue.popleft(), self._free.pop()
                    self._running[worker.encode.remote(shard, str(self._shards[shard]))] = worker, shard
                ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_PATIENCE)
                if ready:
                    yield from self._ended(ready[0])
                elif not self._free and all(shard is None for _, shard in self._running.values()):
                    log.warning("no worker has started yet: the cluster may have no room for one")
        finally:
            for worker in (*self._free, *(worker for worker, _ in self._running.values())):
                self._ray.kill(worker)

    def _start(self) -> None:
        worker = self._made.remote(self._job)
        self._running[worker.start.remote()] = worker, None

    def _ended(self, task: Any) -> Iterator[tuple[str, EncodingStats | Exception]]:
        """A task that has ended: its shard with what became of it, unless that is tried again."""
        worker, shard = self._running.pop(task)
        try:
            found = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:  # the worker lives
            if shard is not None:
                self._free.append(worker)
                yield shard, error.cause
                return
            self._drop(worker)
            self._not_started(error.cause)
        except self._ray.exceptions.RayError as error:
            self._drop(worker)
            if shard is None:
                self._not_started(error)
                return
            self._deaths[shard] += 1
            if self._deaths[shard] < _DEATHS:
                self._queue.appendleft(shard)
            else:
                yield shard, ValueError(f"{shard}: {_DEATHS} workers died on it, the last one so: {_reason(error)}")
            self._start()
        else:
            self._free.append(worker)
            if shard is not None:
                yield shard, found

    def _drop(self, worker: Any) -> None:
        self._ray.kill(worker)

    def _not_started(self, error: Exception) -> None:
        """Tries another worker, if there is reason to hope.

        Raises:
            ValueError: there is none, and no other worker lives.
        """
        log.warning("a worker could not be started: %s", _reason(error))
        if self._starts > 0:
            self._starts -= 1
            self._start()
        elif not self._free and not self._running:
            raise ValueError(f"no worker is left, {len(self._queue)} shards wait; the last one: {_reason(error)}")


def _reason(error: Exception) -> str:
    """What Ray says of a death, in a line and without its advice."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].partition(" Some common causes")[0]
