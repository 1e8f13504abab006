"""Tokenized datasets on disk return the written examples and are created atomically."""

import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.data.records import Row
from clearhead.io.locks import writer_lock
from clearhead.train.data import dataset as module
from clearhead.train.data.dataset import TokenizedDataset, build_dataset

token = st.integers(-(2**31), 2**31 - 1)
tokens = st.lists(token, max_size=6)
example = st.builds(
    lambda source, label, target: {"source": source, "label": label, "target": target},
    tokens,
    st.integers(-9, 9),
    tokens,
)


def rows(count):
    return [Row({"text": "x" * (number % 7 + 1)}, f"a.txt, line {number + 1}") for number in range(count)]


def letters(chunk):
    return [[{"ids": [len(row.values["text"])] * len(row.values["text"]), "score": 0.5}] for row in chunk]


def no_rows():
    raise AssertionError("the rows were read")
    yield


@given(st.lists(st.lists(example, max_size=3), min_size=1, max_size=20), st.integers(1, 4), st.none() | st.just(8))
@settings(max_examples=25)
def test_reading_returns_what_was_written(tmp_path_factory, monkeypatch, rows, chunk, budget):
    monkeypatch.setattr(module, "CHUNK_ROWS", chunk)
    folder = tmp_path_factory.mktemp("stores") / "deep" / "store"
    every = [one for some in rows for one in some]
    full = [one for one in every if one["source"] and one["target"]]
    kept = [one for one in full if budget is None or len(one["source"]) + len(one["target"]) <= budget]
    given_rows = [Row({"index": str(index)}, "here") for index in range(len(rows))]

    def examples(some):
        return (rows[int(row.values["index"])] for row in some)

    if not kept:
        with pytest.raises(ValueError, match="no examples are left"):
            build_dataset(folder, given_rows, examples, key="k", max_tokens=budget)
        assert os.listdir(folder.parent) == []
        return
    built = build_dataset(folder, iter(given_rows), examples, key="k", max_tokens=budget)
    for store in (
        built,
        build_dataset(folder, no_rows(), examples, key="k", max_tokens=budget),
        TokenizedDataset(folder),
    ):
        assert len(store) == len(kept)
        assert store.fields == ("source", "target")
        assert store.lengths.dtype == np.int32
        assert store.lengths.tolist() == [[len(one["source"]), len(one["target"])] for one in kept]
        read = [
            {name: value if name == "label" else value.tolist() for name, value in one.items()}
            for one in (store[index] for index in range(len(store)))
        ]
        assert read == kept
        assert [list(one) for one in read] == [list(one) for one in kept]
        reasons = {"no tokens": len(every) - len(full), f"longer than data.batch_tokens={budget}": 0}
        reasons[f"longer than data.batch_tokens={budget}"] = len(full) - len(kept)
        assert store.skipped == {reason: count for reason, count in reasons.items() if count}
    assert os.listdir(folder.parent) == ["store"]


def test_examples_are_views_and_a_pickle_is_small(tmp_path):
    store = build_dataset(tmp_path / "store", rows(2000), letters, key="k")
    again = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 1000
    assert store[-1]["ids"].tolist() == again[1999]["ids"].tolist() == [5] * 5
    assert store[0]["score"] == 0.5
    assert not store[0]["ids"].flags.writeable
    assert np.shares_memory(store[3]["ids"], store._tokens[0])
    for index in (2000, -2001):
        with pytest.raises(IndexError):
            store[index]


def test_another_key_or_limit_rebuilds(tmp_path):
    folder = tmp_path / "store"
    first = build_dataset(folder, rows(3), letters, key="a")
    assert len(build_dataset(folder, rows(4), letters, key="b")) == 4
    assert first[2]["ids"].tolist() == [3] * 3  # readers of the old one continue
    assert len(build_dataset(folder, rows(9), letters, key="b", max_tokens=5)) == 7
    with pytest.raises(ValueError, match=r"a.txt, line 6: longer than data.batch_tokens=5; fix"):
        build_dataset(folder, rows(9), letters, key="b", max_tokens=5, strict=True)
    assert TokenizedDataset(folder).skipped == {"longer than data.batch_tokens=5": 2}
    assert os.listdir(tmp_path) == ["store"]
    with pytest.raises(ValueError, match="line 1: no tokens"):
        build_dataset(tmp_path / "other", rows(1), lambda some: [[{"ids": []}]], key="a", strict=True)
    with pytest.raises(ValueError, match="the rows have none"):
        build_dataset(tmp_path / "other", [], letters, key="a")


def test_examples_with_different_fields_fail_an_assertion(tmp_path):
    def examples(chunk):
        return [[{"ids": [1], "label": 1.0 if row.location.endswith("7") else 1}] for row in chunk]

    with pytest.raises(AssertionError, match="examples differ"):
        build_dataset(tmp_path / "store", rows(9), examples, key="a")
    with pytest.raises(AssertionError, match="without a sequence"):
        build_dataset(tmp_path / "store", rows(9), lambda chunk: [[{"label": 1}] for _ in chunk], key="a")
    for bad in ([1.5], [2**31]):
        with pytest.raises((TypeError, OverflowError)):
            build_dataset(tmp_path / "store", rows(1), lambda chunk, bad=bad: [[{"ids": bad}]], key="a")
    assert os.listdir(tmp_path) == []


def test_other_folders_are_not_replaced(tmp_path):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "a.txt").write_text("mine")
    for folder in (tmp_path / "papers", tmp_path / "papers" / "a.txt"):
        with pytest.raises(ValueError, match="exists and is not a tokenized dataset"):
            build_dataset(folder, no_rows(), letters, key="a")
    assert (tmp_path / "papers" / "a.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert len(build_dataset(tmp_path / "empty", rows(3), letters, key="a")) == 3
    with pytest.raises(ValueError, match="is not a tokenized dataset"):
        TokenizedDataset(tmp_path / "papers")


def test_damaged_dataset_is_rebuilt(tmp_path):
    folder = tmp_path / "store"
    for name, content in (
        ("tokens-0.bin", b"1234"),
        ("clearhead-store.json", b"{"),
        ("clearhead-store.json", b'{"format": 0}'),
        ("clearhead-store.json", lambda content: content.replace(b'"order"', b'"x"')),
        ("clearhead-store.json", lambda content: content.replace(b'"examples": 3', b'"examples": 0')),
        ("clearhead-store.json", lambda content: content.replace(b'"order": [\n', b'"order": [\n"x",')),
        ("starts.bin", lambda content: content[:8] + content[:8] + content[16:]),
        ("lengths.bin", lambda content: b"\xff" * 4 + content[4:]),
    ):
        build_dataset(folder, rows(3), letters, key="a")
        intact = (folder / name).read_bytes()
        (folder / name).write_bytes(content if isinstance(content, bytes) else content(intact))
        assert (folder / name).read_bytes() != intact
        with pytest.raises(ValueError, match="damaged|not a tokenized dataset|another version"):
            TokenizedDataset(folder)
        assert len(build_dataset(folder, rows(3), letters, key="a")) == 3
    (folder / "starts.bin").unlink()
    assert TokenizedDataset(build_dataset(folder, rows(3), letters, key="a").folder)[2]["ids"].tolist() == [3] * 3


BUILD = """
import sys, pathlib
from clearhead.data.records import Row
from clearhead.train.data.dataset import build_dataset
def rows():
    for number in range(10**9):
        if number == 5000: print("half", flush=True)
        yield Row({}, "here")
build_dataset(pathlib.Path(sys.argv[1]), rows(), lambda chunk: [[{"ids": [1] * 50}] for _ in chunk], key="endless")
"""


@pytest.mark.parametrize("before", [False, True])
def test_kill_leaves_no_partial_dataset(tmp_path, before):
    folder = tmp_path / "store"
    if before:
        build_dataset(folder, rows(3), letters, key="a")
    with subprocess.Popen([sys.executable, "-c", BUILD, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / ".store.part").is_dir()
    assert folder.exists() == before
    if before:
        assert len(build_dataset(folder, no_rows(), letters, key="a")) == 3
    assert len(build_dataset(folder, rows(5), letters, key="b")) == 5
    assert os.listdir(tmp_path) == ["store"]


def test_interrupt_or_bad_row_keeps_the_previous_output(tmp_path):
    build_dataset(tmp_path / "store", rows(3), letters, key="a")
    for error in (KeyboardInterrupt, ValueError, OSError):

        def broken(error=error):
            yield from rows(2500)
            raise error("a.txt, line 2501")

        with pytest.raises(error, match=r"^a.txt, line 2501$"):
            build_dataset(tmp_path / "store", broken(), letters, key="b")
        assert os.listdir(tmp_path) == ["store"]
        assert len(build_dataset(tmp_path / "store", no_rows(), letters, key="a")) == 3


@pytest.mark.parametrize("limit", [100, 9_000])
def test_error_names_folder_on_full_disk(tmp_path, limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match=rf"File too large: '{tmp_path}/store'"):
            build_dataset(tmp_path / "store", rows(2500), letters, key="b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, previous)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_error_names_unwritable_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="store"):
        build_dataset(tmp_path / "store", rows(3), letters, key="b")
    tmp_path.chmod(0o700)


def test_rows_are_read_in_chunks(tmp_path):
    requests = []

    def endless():
        for number in range(5500):
            requests.append(number)
            yield Row({"text": "x"}, "here")

    def examples(chunk):
        assert len(requests) % module.CHUNK_ROWS == 0 or len(requests) == 5500
        assert len(chunk) <= module.CHUNK_ROWS
        return letters(chunk)

    assert len(build_dataset(tmp_path / "store", endless(), examples, key="b")) == 5500


def test_second_process_waits_for_the_first_to_build(tmp_path):
    started, finish = threading.Event(), threading.Event()
    batches = []

    def slow():
        started.set()
        finish.wait(30)
        yield from rows(3)

    def build(given_rows):
        batches.append(build_dataset(tmp_path / "store", given_rows, letters, key="a"))

    first = threading.Thread(target=build, args=[slow()])
    first.start()
    assert started.wait(30)
    second = threading.Thread(target=build, args=[no_rows()])
    second.start()
    time.sleep(0.2)
    assert second.is_alive()
    assert batches == []
    finish.set()
    first.join(30)
    second.join(30)
    assert [len(store) for store in batches] == [3, 3]
    assert os.listdir(tmp_path) == ["store"]


def test_waiting_process_acquires_the_lock(tmp_path):
    inside, leave = [threading.Event() for _ in range(3)], [threading.Event() for _ in range(3)]

    def enter(number):
        with writer_lock(tmp_path / "store", wait=30.0):
            inside[number].set()
            leave[number].wait(30)

    threads = [threading.Thread(target=enter, args=[number]) for number in range(3)]
    for number in range(3):
        threads[number].start()
        if number == 1:  # it waits for the lock of the first, whose file is gone when it gets it
            time.sleep(0.2)
            leave[0].set()
        assert number == 2 or inside[number].wait(30)
    assert not inside[2].wait(0.3)
    for event in leave:
        event.set()
    for thread in threads:
        thread.join(30)
    assert inside[2].is_set()
    assert os.listdir(tmp_path) == []


def test_lock_of_a_process_that_was_killed_after_the_rename_is_removed(tmp_path):
    lock = tmp_path / ".store.lock"
    build_dataset(tmp_path / "store", rows(3), letters, key="a")
    lock.touch()
    assert len(build_dataset(tmp_path / "store", no_rows(), letters, key="a")) == 3
    assert os.listdir(tmp_path) == ["store"]
    with writer_lock(tmp_path / "store"):  # a living process keeps its lock
        build_dataset(tmp_path / "store", no_rows(), letters, key="a")
        assert lock.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs /dev/zero")
def test_description_that_has_no_end_is_refused(tmp_path):
    build_dataset(tmp_path / "store", rows(3), letters, key="a")
    (tmp_path / "store" / module.MANIFEST).unlink()
    (tmp_path / "store" / module.MANIFEST).symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is a pipe or a device"):
        TokenizedDataset(tmp_path / "store")
