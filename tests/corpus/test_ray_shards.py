"""Encode shards on a local Ray cluster: every row once, also after worker failures."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import COMMAND, refused, started
from support.models.tiny import make_bert

from clearhead import TextEncoder
from clearhead.corpus import ray_workers
from clearhead.corpus.encode import EncodingStats, encode_corpus
from clearhead.corpus.ray_shards import _is_done, encode_shards
from clearhead.corpus.ray_workers import EncodingJob
from clearhead.data.corpus import Corpus
from clearhead.runtime.streaming import WINDOW_TEXTS
from clearhead.runtime.vectors import EncodeOptions

WORDS = ["hello", "world", "this", "is", "test", "the", "old", "bridge", "was", "closed", "after", "storm"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return make_bert(tmp_path_factory.mktemp("bert"))


def texts_of(seed, count):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(count)]


def check(folder, shards, model):
    """Check that the output has every text once, in order, with the vector of a run without Ray."""
    encoder = TextEncoder.from_pretrained(model, precision="float32", device="cpu")
    assert sorted(path.stem for path in folder.glob("*.parquet")) == sorted(shards)
    for name, texts in shards.items():
        table = pq.read_table(folder / f"{name}.parquet")
        assert table["text"].to_pylist() == texts
        vectors = np.array(table["embedding"].to_pylist(), dtype=np.float32)
        expected = encoder.encode(texts)
        assert np.linalg.norm(vectors - expected, axis=1).max() <= 1e-6 * np.linalg.norm(expected, axis=1).max()


@pytest.mark.slow
def test_shards_become_files_and_existing_files_are_kept(bert, tmp_path):
    shards = {"a": texts_of(1, 50), "b": texts_of(2, 20), "c": texts_of(3, 1)}
    (tmp_path / "a.txt").write_text("\n".join(shards["a"]) + "\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(f'{{"text": "{t}"}}\n' for t in shards["b"]), encoding="utf-8")
    # a schema that differs from the output and other shards: only the column is required
    pq.write_table(pa.table({"n": [1], "text": pa.array(shards["c"], pa.large_string())}), tmp_path / "c.parquet")
    shards["d"] = texts_of(5, 2)
    pq.write_table(pa.table({"text": pa.array(shards["d"]), "label": [0.5, 1.5]}), tmp_path / "d.parquet")
    arguments = [
        "encode",
        *(tmp_path / name for name in ("a.txt", "b.jsonl", "c.parquet", "d.parquet")),
        "--engine",
        "ray",
    ]
    arguments += ["--model", bert, "--precision", "float32", "--workers", 1, "--output", tmp_path / "out"]
    status, _, err = started(*arguments)
    assert status == 0, err
    assert "73 texts" in err
    check(tmp_path / "out", shards, bert)
    before = (tmp_path / "out" / "a.parquet").stat().st_mtime_ns
    (tmp_path / "out" / "b.parquet").unlink()
    status, _, err = started(*arguments)
    assert status == 0, err
    assert "3 of 4 shards are already encoded" in err
    assert "20 texts" in err
    assert (tmp_path / "out" / "a.parquet").stat().st_mtime_ns == before
    check(tmp_path / "out", shards, bert)
    err = refused(*arguments, "--pooling", "cls")
    assert "was filled with pooling=None; now it is 'cls'" in err
    # a changed shard is encoded again, even with an older time; a shard of another folder is not reused
    shards["c"] = texts_of(4, 2)
    pq.write_table(pa.table({"text": shards["c"]}), tmp_path / "c.parquet")
    os.utime(tmp_path / "c.parquet", (0, 0))
    status, _, err = started(*arguments)
    assert status == 0, err
    check(tmp_path / "out", shards, bert)
    err = refused("encode", tmp_path / "c.parquet", "--engine", "ray", "--output", tmp_path / "c.parquet")
    assert f"{tmp_path / 'c.parquet'} is a file; the output of several shards must be a folder" in err
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("world\n", encoding="utf-8")
    err = refused("encode", tmp_path / "deep" / "a.txt", *arguments[5:])
    assert f"a.parquet was made from {tmp_path / 'a.txt'}" in err
    check(tmp_path / "out", shards, bert)


@pytest.mark.slow
def test_killed_worker_loses_no_row(bert, tmp_path):
    shards = {f"s{n}": texts_of(n, 20_000) for n in range(3)}
    for name, texts in shards.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    arguments = [COMMAND, "encode", *sorted(tmp_path.glob("*.txt")), "--engine", "ray", "--model", bert]
    arguments += ["--precision", "float32", "--workers", "2", "--output", tmp_path / "out"]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
    killed = 0
    while killed < 2 and process.poll() is None:
        begun = any((tmp_path / "out").glob(".*.part"))
        busy = [pid for pid, name in running() if "ray::Worker.encode" in name]
        if begun and busy:
            os.kill(busy[0], signal.SIGKILL)
            killed += 1
            time.sleep(1)
        time.sleep(0.02)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert killed == 2
    check(tmp_path / "out", shards, bert)
    assert not list((tmp_path / "out").glob(".*.part"))


def running():
    """Return the local processes with their names."""
    processes = subprocess.run(["ps", "-axo", "pid,command"], capture_output=True, text=True, check=True).stdout
    for line in processes.splitlines()[1:]:
        pid, _, name = line.strip().partition(" ")
        yield int(pid), name


@pytest.mark.slow
def test_invalid_options_are_reported_before_encoding(bert, tmp_path):
    (tmp_path / "a.txt").write_text("hello\n", encoding="utf-8")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("world\n", encoding="utf-8")
    pq.write_table(pa.table({"body": ["hello"]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"text": [1]}), tmp_path / "c.parquet")
    out, ray = tmp_path / "out", ("--engine", "ray", "--model", bert)

    def message_of(*arguments):
        return refused("encode", *arguments)

    assert "requires input files and a folder as --output" in message_of(tmp_path / "a.txt", *ray)
    assert "--workers requires --engine ray" in message_of(tmp_path / "a.txt", "--workers", 2)
    assert "would both be written to" in message_of(
        tmp_path / "a.txt", tmp_path / "deep" / "a.txt", *ray, "--output", out
    )
    assert "b.parquet" in message_of(tmp_path / "a.txt", tmp_path / "b.parquet", *ray, "--output", out)
    assert "c.parquet" in message_of(tmp_path / "a.txt", tmp_path / "c.parquet", *ray, "--output", out)
    assert "holds Parquet files that no run wrote" in message_of(tmp_path / "a.txt", *ray, "--output", tmp_path)
    own = (tmp_path / "b.parquet", "--column", "body", "--output", tmp_path)
    assert "b.parquet is also an input" in message_of(*own, *ray)
    assert "standard input cannot be a shard" in message_of("-", *ray, "--output", out)
    assert not out.exists()


@pytest.mark.slow
def test_bad_shard_does_not_stop_the_others(bert, tmp_path):
    (tmp_path / "good.txt").write_text("hello\n", encoding="utf-8")
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9\n")
    arguments = [
        "encode",
        tmp_path / "bad.txt",
        tmp_path / "good.txt",
        "--engine",
        "ray",
        "--model",
        bert,
        "--workers",
        1,
    ]
    status, _, err = started(*arguments, "--precision", "float32", "--output", tmp_path / "out")
    assert status == 1
    assert "1 of 2 shards could not be encoded, the others are in" in err
    assert "bad.txt, line 1" in err
    check(tmp_path / "out", {"good": ["hello"]}, bert)


def cluster(folder, model, *arguments):
    """Encode `folder/a.txt` to `folder/out` with a relative path of the model."""
    options = ("--engine", "ray", "--workers", 1, "--output", folder / "out", "--model", model.name)
    return started("encode", folder / "a.txt", *options, *arguments, cwd=model.parent)


@pytest.mark.slow
def test_partial_output_of_another_shard_is_restarted(bert, tmp_path):
    shard, output = tmp_path / "a.txt", tmp_path / "out" / "a.parquet"
    shard.write_text("hello\n" * 9000, encoding="utf-8")
    output.parent.mkdir()

    computed = 0

    def stop(done, tokens, texts):
        nonlocal computed
        computed += texts
        if computed > WINDOW_TEXTS:  # the first window is recorded
            raise KeyboardInterrupt

    encoder = TextEncoder.from_pretrained(bert, precision="float32", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(encoder, Corpus([shard]), output, on_step=stop)
    assert output.with_name(".a.parquet.resume.json").exists()
    shard.write_text("hello\nworld\n", encoding="utf-8")
    status, _, err = cluster(tmp_path, bert, "--precision", "float32")
    assert status == 0, err
    check(tmp_path / "out", {"a": ["hello", "world"]}, bert)


def job_of(model, **changes):
    return EncodingJob(str(model), EncodeOptions(), "float32", "cpu", **changes)


@pytest.fixture
def ray(monkeypatch):
    """Start a cluster in this process with a given number of processors."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray_workers, "_MAX_RESTARTS", 1)

    def start(processors):
        ray.init(num_cpus=processors, log_to_driver=False, logging_level="ERROR", include_dashboard=False)

    yield start
    ray.shutdown()


@pytest.mark.slow
def test_failed_workers_report_the_reason_and_leave_the_queue(bert, tmp_path, ray):
    ray(1)
    shards = {str(tmp_path / f"{n}.txt"): tmp_path / f"{n}.parquet" for n in range(3)}
    with pytest.raises(ValueError, match="no worker is left for 3 shards; the last error: no such model folder"):
        list(ray_workers.RayPool(shards, job_of(tmp_path / "nowhere"), None).run())


def test_page_states_the_number_of_failures():
    page = Path(__file__).parents[2] / "docs" / "guides" / "vectors.md"
    assert f"After {ray_workers._MAX_DEATHS} failures a shard is reported" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_shard_that_kills_workers_does_not_affect_others(bert, tmp_path, ray, monkeypatch):
    def fatal(self, shard, output):  # inside: the workers do not know this file
        if shard == "bad":
            os.kill(os.getpid(), signal.SIGKILL)
        return EncodingStats(1, 1, 0)

    ray(1)
    monkeypatch.setattr(ray_workers, "_MAX_DEATHS", 2)
    monkeypatch.setattr(ray_workers.Worker, "encode", fatal)
    shards = {name: tmp_path / name for name in ("bad", "good")}
    results = dict(ray_workers.RayPool(shards, job_of(bert), 1).run())
    assert results["good"] == EncodingStats(1, 1, 0)
    assert "bad: 2 workers died on it; the last error: The actor is dead because its worker" in str(results["bad"])


@pytest.mark.slow
def test_cluster_without_cpus_is_an_error(bert, tmp_path, ray):
    ray(0)
    with pytest.raises(ValueError, match="the Ray cluster has 0 CPUs, but 1 workers need one each"):
        ray_workers.RayPool({"a": tmp_path / "a.parquet"}, job_of(bert), None)


def test_workers_receive_the_settings_of_the_driver(bert, tmp_path, monkeypatch):
    messages = []

    class NoPool:
        def __init__(self, shards, job, workers):
            messages.append(job)

        def run(self):
            return iter(())

    monkeypatch.setattr("clearhead.corpus.ray_shards.RayPool", NoPool)
    monkeypatch.chdir(bert.parent)
    (tmp_path / "a.txt").write_text("hello\n", encoding="utf-8")
    encoder = TextEncoder.from_pretrained(bert, precision="bfloat16", device="cpu")
    encode_shards([tmp_path / "a.txt"], tmp_path / "out", EncodingJob(bert.name, EncodeOptions()), encoder)
    assert (messages[0].model, messages[0].precision, messages[0].device) == (str(bert), "bfloat16", "cpu")


def test_killed_worker_does_not_leave_an_output_with_an_older_description(bert, tmp_path, monkeypatch):
    """The shard changes, its worker is killed after the rename of the output, and the shard changes back."""
    shard, output = tmp_path / "a.txt", tmp_path / "a.parquet"
    worker = ray_workers.Worker(job_of(bert))
    worker.start()
    shard.write_text("hello\n")
    worker.encode(str(shard), str(output))
    assert _is_done(Corpus([shard]), output)
    shard.write_text("world\n")

    def killed(*arguments, **options):
        encode_corpus(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_workers, "encode_corpus", killed)
    with pytest.raises(KeyboardInterrupt):
        worker.encode(str(shard), str(output))
    shard.write_text("hello\n")
    assert not _is_done(Corpus([shard]), output)
    other = tmp_path / "other" / "a.txt"
    other.parent.mkdir()
    other.write_text("hello\n")
    with pytest.raises(ValueError, match="was made from .*, and would be overwritten by"):
        _is_done(Corpus([other]), output)


def test_overwrite_is_refused_because_ray_resumes(bert, tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    arguments = ("encode", tmp_path / "a.txt", "-m", bert, "--engine", "ray", "-o", tmp_path / "out")
    error = refused(*arguments, "--overwrite")
    assert f"--engine ray always resumes; to start from scratch, remove {tmp_path / 'out'}" in error
