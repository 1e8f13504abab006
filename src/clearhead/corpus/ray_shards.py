"""Encode the shards of a corpus on a Ray cluster, each to one Parquet file."""

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from clearhead._version import __version__
from clearhead.corpus.encode import EncodingStats, fingerprint
from clearhead.corpus.ray_workers import EncodingJob, RayPool, source_file
from clearhead.corpus.writers import check_output
from clearhead.data.corpus import Corpus
from clearhead.io.json import read_json, write_json
from clearhead.io.locks import folder_lock
from clearhead.io.outputs import check_not_input
from clearhead.pipelines.text_encoder import TextEncoder

log = logging.getLogger(__name__)

MANIFEST = ".clearhead.json"
"""File in the output folder with the model and options of the run."""


def encode_shards(
    shards: Sequence[str | Path],
    output: Path,
    job: EncodingJob,
    encoder: TextEncoder,
    *,
    workers: int | None = None,
    on_step: Callable[[int, int, int], None] = lambda done, tokens, texts: None,
) -> EncodingStats:
    """Encode each shard to `output/NAME.parquet`, with texts and vectors, on all machines of a Ray cluster.

    Files are written atomically. A file that already exists for the current content of its shard is kept, so starting
    an interrupted run again resumes it. A worker that dies is replaced, and its shard resumes from the part file. A
    shard that was begun with other content, another torch version or another device starts from scratch.

    Uses the cluster of RAY_ADDRESS, or this machine if that is not set.

    Args:
        shards: input files as in `Corpus`, in folders that all machines can read.
        output: the output folder.
        job: model and options of the workers.
        encoder: the job's model, loaded in this process; the workers use its precision and type of device.
        workers: number of processes; by default one per accelerator or processor of the cluster.
        on_step: called with the bytes, tokens and texts of each finished shard.

    Returns:
        Statistics of the shards that this run encoded.

    Raises:
        OutputBusyError: another process writes to the folder.
        ValueError: Ray is not installed; two shards have the same name; the folder holds vectors of another model,
            other options or other shards; the cluster has fewer processors than workers; no worker could be started;
            or some shards could not be read (raised after all others are done, with each reason).
    """
    if importlib.util.find_spec("ray") is None:
        raise ValueError('a run on several machines needs Ray: pip install "clearhead[ray]"')
    outputs = _outputs(shards, output)
    # reports a missing or unreadable shard before any work
    corpora = {shard: job.corpus(shard) for shard in outputs}
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file; the output of several shards must be a folder")
    with folder_lock(output):
        return _encode_shards(corpora, outputs, output, job, encoder, workers, on_step)


def _encode_shards(
    corpora: Mapping[str, Corpus],
    outputs: Mapping[str, Path],
    output: Path,
    job: EncodingJob,
    encoder: TextEncoder,
    workers: int | None,
    on_step: Callable[[int, int, int], None],
) -> EncodingStats:
    for path in outputs.values():
        check_output(path, job.keep)
    _check_manifest(output, job, encoder)
    pending = {shard: path for shard, path in outputs.items() if not _is_done(corpora[shard], path)}
    if len(pending) < len(outputs):
        log.warning("%d of %d shards are already encoded", len(outputs) - len(pending), len(outputs))
    total, problems = EncodingStats(), []
    worker_job = replace(
        job, model=_absolute_model(job.model), precision=_precision(encoder), device=encoder.device.type
    )
    for shard, result in RayPool(pending, worker_job, workers).run() if pending else ():
        if isinstance(result, EncodingStats):
            total = total.add(result)
            on_step(Path(shard).stat().st_size, result.tokens, result.texts)
        else:
            problems.append(str(result))
    if problems:
        done = f"{len(problems)} of {len(pending)} shards could not be encoded, the others are in {output}"
        raise ValueError(f"{done}: {'; '.join(problems)}")
    return total


def _absolute_model(model: str) -> str:
    """Return a model name that workers in another folder can resolve."""
    folder = Path(model).expanduser()
    return str(folder.resolve()) if folder.is_dir() else model


def _precision(encoder: TextEncoder) -> str:
    return encoder.precision.name


def _outputs(shards: Sequence[str | Path], output: Path) -> dict[str, Path]:
    """Return the output file of each shard."""
    outputs: dict[str, Path] = {}
    sources: dict[Path, str] = {}
    for shard in map(str, shards):
        if shard == "-":
            raise ValueError("standard input cannot be a shard, because other machines cannot read it; give files")
        name = Path(shard).name.removesuffix(".gz")
        target = output.resolve() / f"{Path(name).stem}.parquet"
        if target in sources:
            raise ValueError(f"{sources[target]} and {shard} would both be written to {target}; rename one of them")
        check_not_input(target, [shard])
        sources[target] = shard
        outputs[str(Path(shard).resolve())] = target
    return outputs


def _check_manifest(output: Path, job: EncodingJob, encoder: TextEncoder) -> None:
    """Write the manifest, or compare it: a folder must not mix vectors of two models."""
    note = output / MANIFEST
    now = {
        "model": fingerprint(encoder),
        **asdict(job.options),
        "precision": _precision(encoder),
        "column": job.column,
        "keep": list(job.keep),
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
        raise ValueError(f"{output} holds Parquet files that no run wrote; give an empty folder")
    write_json(note, now)


def _is_done(corpus: Corpus, output: Path) -> bool:
    """Return whether a shard's output exists and was made from the shard as it is now: its path and content.

    Raises:
        ValueError: the output was made from another shard.
    """
    source_path = source_file(output)
    if not output.is_file() or not source_path.is_file():
        return False
    ((former, *content),) = read_json(source_path).get("input", [[None]])
    ((shard, *now),) = corpus.describe()
    if former != shard:
        raise ValueError(f"{output} was made from {former}, and would be overwritten by {shard}; give another --output")
    return bool(content == now)
