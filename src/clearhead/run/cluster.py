"""A corpus in shards, encoded by many machines: Ray hands them out, and each becomes one Parquet file."""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clearhead import __version__
from clearhead.checkpoints import directory
from clearhead.run.corpus import Counts, encode_corpus, fingerprint
from clearhead.run.encode import EncodeOptions, TextEncoder
from clearhead.run.writers import check_output
from clearhead.text.corpus import Corpus
from clearhead.text.lines import Errors

log = logging.getLogger(__name__)

NOTE = ".clearhead.json"
"""The file in the output folder that says with what it was filled."""

_RETRIES = 20
"""How often a shard is tried again after the death of the worker that had it."""


@dataclass(frozen=True)
class Job:
    """What every worker is told.

    Args:
        model: a folder that all machines see, or a Hub id.
        options: as in `TextEncoder.stream`.
        precision, device: as in `TextEncoder`.
        column, errors: as in `Corpus`.
    """

    model: str
    options: EncodeOptions
    precision: Any = "auto"
    device: str = "auto"
    column: str | None = None
    errors: Errors = "strict"

    def encoder(self) -> TextEncoder:
        """The model, loaded."""
        return TextEncoder.from_pretrained(self.model, precision=self.precision, device=self.device)


class _Worker:
    """One process with the model. What it had done of a shard when it was killed, the next one finds on disk."""

    def __init__(self, job: Job) -> None:
        self.job, self.encoder = job, job.encoder()

    def encode(self, shard: str, output: str) -> Counts:
        """A shard to its file."""
        corpus = Corpus([shard], column=self.job.column, errors=self.job.errors)
        return encode_corpus(self.encoder, corpus, Path(output), self.job.options, resume=True)


def encode_shards(
    shards: Sequence[str | Path],
    output: Path,
    job: Job,
    encoder: TextEncoder,
    *,
    workers: int | None = None,
    advance: Callable[[int, int], None] = lambda done, tokens: None,
) -> Counts:
    """Encodes each shard to `output/NAME.parquet`, with its texts and their vectors, on all machines of a Ray cluster.

    A file takes its name when it is whole. One that is there, and not older than its shard, is left as it is; so a run
    that was interrupted goes on when it is started again. A worker that dies is replaced, and its shard goes on where
    the part file on disk ends.

    Args:
        shards: files as in `Corpus`, in folders that all machines see.
        output: the folder.
        job: what is done with each.
        encoder: the job's model, as this process has it.
        workers: processes; as many as the cluster has accelerators or processors where None.
        advance: called with the bytes and tokens of each shard that is done.

    Returns:
        Texts and tokens of the shards that were encoded now.

    Raises:
        ValueError: Ray is not installed; two shards of one name; a folder that was filled with another model or other
            options; more workers than processors; shards that could not be read, each with its reason, when all others
            are done.

    The cluster is the one that RAY_ADDRESS names, else this machine.
    """
    if importlib.util.find_spec("ray") is None:
        raise ValueError('many machines need Ray: pip install "clearhead[ray]"')
    places = _places(shards, output)
    for shard in places:
        Corpus([shard], column=job.column, errors=job.errors)  # says before all work what it can of a bad one
    output.mkdir(parents=True, exist_ok=True)
    check_output(output / "any.parquet")
    _agree(output, job, encoder)
    left = {shard: place for shard, place in places.items() if not _done(shard, place)}
    if len(left) < len(places):
        log.warning("%d of %d shards are there already", len(places) - len(left), len(places))
    total, problems = Counts(), []
    for shard, found in _computed(left, job, encoder.device.type, workers):
        if isinstance(found, Counts):
            total = total.and_(found)
            advance(Path(shard).stat().st_size, found.tokens)
        else:
            problems.append(str(found))
    if problems:
        done = f"{len(problems)} of {len(left)} shards could not be encoded, the others are in {output}"
        raise ValueError(f"{done}: {'; '.join(problems)}")
    return total


def _places(shards: Sequence[str | Path], output: Path) -> dict[str, Path]:
    """For each shard its output."""
    places: dict[str, Path] = {}
    taken: dict[Path, str] = {}
    for shard in map(str, shards):
        if shard == "-":
            raise ValueError("standard input is no shard: other machines cannot read it; give files")
        name = Path(shard).name.removesuffix(".gz")
        place = output.resolve() / f"{Path(name).stem}.parquet"
        if place in taken:
            raise ValueError(f"{taken[place]} and {shard} would both become {place}; give one of them another name")
        if place == Path(shard).resolve():
            raise ValueError(f"{place} is one of the inputs, and would be lost; give another --output")
        taken[place] = shard
        places[str(Path(shard).resolve())] = place
    return places


def _agree(output: Path, job: Job, encoder: TextEncoder) -> None:
    """Notes with what a folder is filled, or compares: vectors of two models must not stand side by side."""
    note = output / NOTE
    now = {
        "model": fingerprint(encoder),
        **asdict(job.options),
        "precision": str(encoder.dtype).removeprefix("torch."),
        "column": job.column,
        "errors": job.errors,
        "clearhead": __version__,
    }
    if note.is_file():
        former = directory.read_json(note)
        for name, value in now.items():
            if former.get(name) != value:
                raise ValueError(
                    f"{output} was filled with {name}={former.get(name)!r}; now it is {value!r}: give another --output"
                )
    elif any(output.glob("*.parquet")):
        raise ValueError(f"{output} holds Parquet files of others; give a folder of its own")
    directory.write_json(note, now)


def _done(shard: str, place: Path) -> bool:
    return place.is_file() and place.stat().st_mtime_ns >= Path(shard).stat().st_mtime_ns


def _computed(
    left: dict[str, Path], job: Job, device: str, workers: int | None
) -> Iterator[tuple[str, Counts | Exception]]:
    """Each shard with what became of it, as they come."""
    if not left:
        return
    ray: Any = importlib.import_module("ray")  # its types do not know what it makes of a class
    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    kind = "GPU" if device == "cuda" else "CPU"
    there = int(ray.cluster_resources().get(kind, 0))
    count = min(len(left), there if workers is None else workers)
    if count > there:
        raise ValueError(f"{count} workers need as many {kind}s; the cluster has {there}")
    made = ray.remote(num_cpus=1, num_gpus=int(kind == "GPU"), max_restarts=-1, max_task_retries=_RETRIES)(_Worker)
    free = [made.remote(job) for _ in range(count)]
    actors, queue = list(free), list(left.items())
    running: dict[Any, tuple[str, Any]] = {}
    try:
        while queue or running:
            while queue and free:
                (shard, place), worker = queue.pop(0), free.pop()
                running[worker.encode.remote(shard, str(place))] = shard, worker
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            shard, worker = running.pop(ready)
            free.append(worker)
            try:
                yield shard, ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                yield shard, error.cause
            except ray.exceptions.RayError as error:
                yield shard, ValueError(f"{shard}: its worker died {_RETRIES} times: {type(error).__name__}")
    finally:
        for actor in actors:
            ray.kill(actor)
