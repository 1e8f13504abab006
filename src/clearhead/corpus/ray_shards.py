"""A corpus in shards, encoded by many machines: Ray hands them out, and each becomes one Parquet file."""

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from clearhead._version import __version__
from clearhead.corpus.encode import EncodingStats, fingerprint
from clearhead.corpus.ray_workers import EncodingJob, RayPool, source_note
from clearhead.corpus.writers import check_output
from clearhead.data.corpus import Corpus
from clearhead.io.json import read_json, write_json
from clearhead.io.locks import folder_lock
from clearhead.pipelines.text_encoder import TextEncoder

log = logging.getLogger(__name__)

MANIFEST = ".clearhead.json"
"""The file in the output folder that says with what it was filled."""


def encode_shards(
    shards: Sequence[str | Path],
    output: Path,
    job: EncodingJob,
    encoder: TextEncoder,
    *,
    workers: int | None = None,
    advance: Callable[[int, int], None] = lambda done, tokens: None,
) -> EncodingStats:
    """Encodes each shard to `output/NAME.parquet`, with its texts and their vectors, on all machines of a Ray cluster.

    A file takes its name when it is whole. One that is there, of the shard as it is now, is left as it is; so a run
    that was interrupted goes on when it is started again. A worker that dies is replaced, and its shard goes on where
    the part file on disk ends; what was begun with another shard, torch or device begins anew.

    Args:
        shards: files as in `Corpus`, in folders that all machines see.
        output: the folder.
        job: what is done with each.
        encoder: the job's model, as this process has it; the workers compute in its precision, on such a device.
        workers: processes; as many as the cluster has accelerators or processors where None.
        advance: called with the bytes and tokens of each shard that is done.

    Returns:
        Texts and tokens of the shards that were encoded now.

    Raises:
        OutputBusyError: another process fills the folder.
        ValueError: Ray is not installed; two shards of one name; a folder that was filled with another model, other
            options or other shards; no processor, or fewer than workers; no worker that could be started; shards that
            could not be read, each with its reason, when all others are done.

    The cluster is the one that RAY_ADDRESS names, else this machine.
    """
    if importlib.util.find_spec("ray") is None:
        raise ValueError('many machines need Ray: pip install "clearhead[ray]"')
    places = _places(shards, output)
    # reports a missing or unreadable shard before any work
    corpora = {shard: Corpus([shard], column=job.column, errors=job.errors) for shard in places}
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file; the vectors of shards go into a folder")
    with folder_lock(output):
        return _encode_shards(corpora, places, output, job, encoder, workers, advance)


def _encode_shards(
    corpora: Mapping[str, Corpus],
    places: Mapping[str, Path],
    output: Path,
    job: EncodingJob,
    encoder: TextEncoder,
    workers: int | None,
    advance: Callable[[int, int], None],
) -> EncodingStats:
    for place in places.values():
        check_output(place)
    _agree(output, job, encoder)
    left = {shard: place for shard, place in places.items() if not _done(corpora[shard], place)}
    if len(left) < len(places):
        log.warning("%d of %d shards are there already", len(places) - len(left), len(places))
    total, problems = EncodingStats(), []
    told = replace(job, model=_seen(job.model), precision=_precision(encoder), device=encoder.device.type)
    for shard, found in RayPool(left, told, workers).work() if left else ():
        if isinstance(found, EncodingStats):
            total = total.and_(found)
            advance(Path(shard).stat().st_size, found.tokens)
        else:
            problems.append(str(found))
    if problems:
        done = f"{len(problems)} of {len(left)} shards could not be encoded, the others are in {output}"
        raise ValueError(f"{done}: {'; '.join(problems)}")
    return total


def _seen(model: str) -> str:
    """A model's name as a worker in another folder finds it."""
    place = Path(model).expanduser()
    return str(place.resolve()) if place.is_dir() else model


def _precision(encoder: TextEncoder) -> str:
    return encoder.precision.name


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


def _agree(output: Path, job: EncodingJob, encoder: TextEncoder) -> None:
    """Notes with what a folder is filled, or compares: vectors of two models must not stand side by side."""
    note = output / MANIFEST
    now = {
        "model": fingerprint(encoder),
        **asdict(job.options),
        "precision": _precision(encoder),
        "column": job.column,
        "errors": job.errors,
        "clearhead": __version__,
    }
    if note.is_file():
        former = read_json(note)
        for name, value in now.items():
            if former.get(name) != value:
                raise ValueError(
                    f"{output} was filled with {name}={former.get(name)!r}; now it is {value!r}: give another --output"
                )
    elif any(output.glob("*.parquet")):
        raise ValueError(f"{output} holds Parquet files of others; give a folder of its own")
    write_json(note, now)


def _done(corpus: Corpus, place: Path) -> bool:
    """Return whether a shard's output exists and was made from the shard as it is now: its path and content.

    Raises:
        ValueError: the output was made from another shard.
    """
    note = source_note(place)
    if not place.is_file() or not note.is_file():
        return False
    ((former, *content),) = read_json(note).get("input", [[None]])
    ((shard, *now),) = corpus.describe()
    if former != shard:
        raise ValueError(f"{place} was made from {former}, and would be lost to {shard}: give another --output")
    return bool(content == now)
