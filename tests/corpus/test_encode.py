"""Encode a corpus of any size and format, and resume after interruptions."""

import json
import os
import random
import resource
import signal
import subprocess
import time

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command import COMMAND, clearhead, refused, started

from clearhead import TextEncoder
from clearhead.corpus import encode as clearhead_corpus
from clearhead.corpus.encode import EncodingStats, encode_corpus
from clearhead.corpus.writers import PartFile
from clearhead.data.corpus import Corpus
from clearhead.io.locks import OutputBusyError, writer_lock
from clearhead.runtime.vectors import EncodeOptions


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")


def sentences(count, seed=0):
    words = [
        "the",
        "old",
        "bridge",
        "was",
        "closed",
        "after",
        "storm",
        "hello",
        "world",
        "this",
        "is",
        "a",
        "test",
        ".",
    ]
    chance = random.Random(seed)
    return [" ".join(chance.choices(words, k=chance.randint(0, 18))) for _ in range(count)]


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences(100)) + "\n", encoding="utf-8")
    return tmp_path / "texts.txt"


@given(count=st.integers(0, 60), window=st.integers(1, 70))
@settings(max_examples=15)
def test_stream_yields_the_vectors_of_encode(encoder, count, window):
    texts = sentences(count, seed=count)
    expected = encoder.encode(texts)
    batches = list(encoder.stream(iter(texts), window=window))
    assert [text for some in batches for text in some.texts] == texts
    assert all(len(some.texts) <= window for some in batches)
    vectors = np.concatenate([np.empty((0, 32), np.float32), *(some.vectors for some in batches)])
    np.testing.assert_allclose(vectors, expected, atol=2e-6 * max(1, np.abs(expected).max(initial=0)))
    assert sum(some.num_tokens for some in batches) == sum(len(tokens.ids) for tokens in encoder.tokenize(texts))


def test_input_is_streamed(encoder):
    num_held = 0
    largest = 0

    def endless():
        nonlocal num_held, largest
        for number in range(400):
            num_held += 1
            largest = max(largest, num_held)
            yield f"test {number}"

    for some in encoder.stream(endless(), window=10):
        num_held -= len(some.texts)
    assert largest <= 30  # the window in use, the next one, and the one that is being read


def test_very_long_texts_make_smaller_windows(encoder, monkeypatch):
    monkeypatch.setattr("clearhead.runtime.streaming._WINDOW_CHARACTERS", 8_000)
    texts = ["a " * 1_500] * 6
    assert [len(some.texts) for some in encoder.stream(texts)] == [3, 3]


def test_input_error_is_reported_after_earlier_outputs(encoder):
    def broken():
        yield from ["a"] * 5
        raise ValueError("line 6")

    windows = encoder.stream(broken(), window=5)
    assert len(next(windows).texts) == 5
    with pytest.raises(ValueError, match="line 6"):
        next(windows)


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
@pytest.mark.parametrize("stop", [1, 3, 7])
def test_resumed_run_writes_the_same_bytes(encoder, corpus, tmp_path, name, stop):
    whole = encode_corpus(encoder, Corpus([corpus]), tmp_path / f"whole-{name}", window_texts=12)
    assert whole == EncodingStats(100, sum(len(t.ids) for t in encoder.tokenize(sentences(100))), 0)
    output = tmp_path / name
    interrupted(encoder, Corpus([corpus]), output, windows=stop)
    assert not output.exists()
    # bytes of a killed write after the last complete row
    with (tmp_path / f".{name}.part").open("ab") as part:
        part.write(b"half a window")
    records = []
    counts = encode_corpus(
        encoder,
        Corpus([corpus]),
        output,
        window_texts=12,
        resume=True,
        on_step=lambda done, tokens, texts: records.append((tokens, texts)),
    )
    assert counts == whole
    assert len([tokens for tokens, _ in records if tokens]) == 9 - stop
    assert sum(texts for _, texts in records) == 100 - 12 * stop
    assert output.read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert sorted(os.listdir(tmp_path)) == sorted(["texts.txt", name, f"whole-{name}"])


@pytest.mark.parametrize("name", ["v.jsonl", "v.parquet"])
def test_resumed_run_keeps_the_columns_of_each_text(encoder, tmp_path, name):
    rows = [{"id": index if index < 50 else f"n{index}", "text": text} for index, text in enumerate(sentences(100))]
    table = tmp_path / "table.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    encode_corpus(encoder, Corpus([table], keep=["id"]), tmp_path / f"whole-{name}", window_texts=12)
    interrupted(encoder, Corpus([table], keep=["id"]), tmp_path / name)
    with pytest.raises(ValueError, match=r'keep was \["id"\] and is now \[\]'):
        encode_corpus(encoder, Corpus([table]), tmp_path / name, window_texts=12, resume=True)
    encode_corpus(encoder, Corpus([table], keep=["id"]), tmp_path / name, window_texts=12, resume=True)
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    if name == "v.parquet":
        written = pyarrow.parquet.read_table(tmp_path / name).to_pylist()
        assert [(row["id"], row["text"]) for row in written] == [(str(row["id"]), row["text"]) for row in rows]


def interrupted(encoder, corpus, output, options=None, windows=1):
    """Stop a run in the window after the given number of windows of 12 texts, one batch each."""
    calls = 0

    def interrupt(done, tokens, texts):
        nonlocal calls
        calls += 1
        if calls > windows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_corpus(encoder, corpus, output, options, window_texts=12, on_step=interrupt)


def test_progress_moves_with_each_batch_and_ends_with_all_bytes(encoder, corpus, tmp_path):
    steps = []
    encode_corpus(
        encoder,
        Corpus([corpus]),
        tmp_path / "v.npy",
        EncodeOptions(batch_tokens=64),
        on_step=lambda done, tokens, texts: steps.append((done, tokens, texts)),
    )
    *batches, _ = steps
    assert len(batches) > 5  # in one window
    assert all(0 < done < corpus.stat().st_size and texts for done, _, texts in batches)
    assert sum(done for done, _, _ in steps) == corpus.stat().st_size
    assert sum(texts for _, _, texts in steps) == 100


def test_resume_with_another_model_option_or_input_is_refused(encoder, corpus, tmp_path, minilm):
    output = tmp_path / "v.npy"
    interrupted(encoder, Corpus([corpus]), output, EncodeOptions(pooling="cls"))

    def resume(words, who=encoder, source=corpus, options=None, window=12):
        with pytest.raises(ValueError, match=words):
            encode_corpus(who, Corpus([source]), output, options, window_texts=window, resume=True)

    cls = EncodeOptions(pooling="cls")
    resume('pooling was "cls" and is now null')
    resume("model was", who=minilm, options=cls)
    resume('prompt was null and is now "a "', options=EncodeOptions(pooling="cls", prompt="a "))
    resume("window was 12 and is now 13", options=cls, window=13)
    body, times = corpus.read_text(), corpus.stat()
    corpus.write_text(body.replace("a", "b"))
    os.utime(corpus, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time as before
    resume(r"input was \[\[.*texts\.txt", options=cls)
    corpus.write_text(body)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    resume(rf"threads was {threads} and is now {threads + 1} \(set OMP_NUM_THREADS={threads}\)", options=cls)
    torch.set_num_threads(threads)
    part = tmp_path / ".v.npy.part"
    vectors = part.read_bytes()
    for damage in (vectors[:-1], vectors[:-1] + bytes([vectors[-1] ^ 1]), bytes(len(vectors)), b""):
        part.write_bytes(damage)
        resume(r"\.v\.npy\.part does not hold the vectors that \.v\.npy\.resume\.json describes", options=cls)
    part.write_bytes(vectors)
    note = tmp_path / ".v.npy.resume.json"
    data = json.loads(note.read_text())
    for change in ({"size": "x"}, {"size": -5}, {"size": 0}, {"counts": {"texts": 5}}, {"settings": 3}):
        note.write_text(json.dumps(data | change))
        resume(r"\.v\.npy\.resume\.json is damaged", options=cls)
    for broken in (b"", b"\xff\xfe", b"[]", json.dumps(data).encode()[:-9]):
        note.write_bytes(broken)
        resume(r"\.v\.npy\.resume\.json is damaged", options=cls)
    del data["format"]  # as clearhead 0.1.0 wrote it
    for older in (data, {}):
        note.write_text(json.dumps(older))
        resume("was written by another version of clearhead and cannot be resumed; with --overwrite", options=cls)
    with pytest.raises(ValueError, match="has encoded some texts .* continue it with --resume, or discard it"):
        encode_corpus(encoder, Corpus([corpus]), output, cls)
    assert encode_corpus(encoder, Corpus([corpus]), output, cls, overwrite=True).texts == 100
    assert sorted(os.listdir(tmp_path)) == ["texts.txt", "v.npy"]


def test_resume_without_a_run_starts_one(encoder, corpus, tmp_path):
    assert encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy", resume=True).texts == 100


@pytest.mark.parametrize(
    "name", ["v.npy", *(pytest.param(name, marks=pytest.mark.slow) for name in ("v.jsonl", "v.parquet"))]
)
def test_resume_after_sigkill_at_a_random_time(tiny_bert, tmp_path, name):
    (tmp_path / "texts.txt").write_text("\n".join(sentences(24_000)) + "\n", encoding="utf-8")
    arguments = ["encode", tmp_path / "texts.txt", "-m", tiny_bert, "-q", "--truncate-dim", 4]
    assert clearhead(*arguments, "-o", tmp_path / f"whole-{name}")[0] == 0
    command = [str(part) for part in (COMMAND, *arguments, "-o", tmp_path / name, "--resume")]
    chance = random.Random(name)
    kills = 0
    for _ in range(2):
        with subprocess.Popen(command) as process:
            while process.poll() is None and not (tmp_path / f".{name}.resume.json").exists():
                time.sleep(0.01)
            time.sleep(chance.random())
            process.send_signal(signal.SIGKILL)
        kills += process.returncode == -signal.SIGKILL
    assert kills
    assert clearhead(*arguments, "-o", tmp_path / name, "--resume")[0] == 0
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()


def test_several_inputs_of_several_formats(encoder, tiny_bert, tmp_path):
    texts = ["hello", "world \u2028 this", "", "is", "a test"]
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"body": text, "id": 1}) + "\n" for text in texts[1:3]), encoding="utf-8"
    )
    table = pyarrow.table({"id": [1, 2], "body": pyarrow.array(texts[3:]).dictionary_encode()})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    inputs = [tmp_path / "b.jsonl", tmp_path / "c.parquet"]
    assert list(Corpus(inputs, column="body")) == texts[1:]
    assert list(Corpus([tmp_path / "a.txt", tmp_path / "a.txt"])) == ["hello", "hello"]
    status, out, err = clearhead(
        "encode", *inputs, "-m", tiny_bert, "-o", tmp_path / "v.jsonl", "--column", "body", "--json"
    )
    assert status == 0, err
    assert json.loads(out)["texts"] == 4
    rows = [json.loads(line)["text"] for line in (tmp_path / "v.jsonl").read_text().split("\n")[:-1]]
    assert rows == texts[1:]
    corpus = Corpus(inputs, column="body")
    list(corpus)
    assert corpus.bytes_read == corpus.total_bytes


def test_bad_columns_name_file_and_line(tmp_path):
    def check(name, words, column=None, content=None, table=None, command=False):
        path = tmp_path / name
        if content is not None:
            path.write_text(content)
        if table is not None:
            pyarrow.parquet.write_table(pyarrow.table(table), path)
        with pytest.raises(ValueError, match=words):
            list(Corpus([path], column=column))
        if command:
            assert words in refused("encode", path, "-o", tmp_path / "v.npy")

    check("a.jsonl", "line 2: no column 'text'; it has: body, id", content='{"text": "a"}\n{"body": "b", "id": 1}\n')
    check("b.jsonl", "line 1: column 'text' is int; expected a text", content='{"text": 3}\n')
    check("c.jsonl", "line 2: not JSON", content='{"text": "a"}\n{"text": \n')
    check("f.jsonl", "line 1: not JSON", content="[" * 100_000 + "\n")
    check("g.jsonl", "line 1: not JSON", content='{"text": "a", "n": ' + "1" * 5000 + "}\n")
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "f.parquet")
    check("f.parquet", "2 columns named 'text'")
    check("d.jsonl", r"line 1: a JSON list; expected an object", content="[1]\n")
    check("e.jsonl", "line 1: column 'text' has half a surrogate", content='{"text": "\\ud800"}\n')
    check("a.parquet", "no column 'text'; it has: body, id", table={"body": ["a"], "id": [1]}, command=True)
    check("b.parquet", "column 'text' has type int64; expected text", table={"text": [1, 2]}, command=True)
    check("c.parquet", "row 2: column 'text' is null", table={"text": ["a", None]})
    check("d.parquet", "is not a Parquet file", content="no")
    check("e.txt", "has no columns", content="a\n", column="text")
    # mixed schemas are found before anything is computed
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "good.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet: column 'text' has type int64"):
        Corpus([tmp_path / "good.parquet", tmp_path / "b.parquet"])


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
def test_full_disk_can_be_resumed(corpus, tiny_bert, tmp_path, name, encoder):
    arguments = ["encode", corpus, "-m", tiny_bert, "-o", tmp_path / name, "--precision", "float32", "-q"]

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    err = refused(*arguments, run=started, preexec_fn=limit)
    assert "File too large" in err
    assert os.listdir(tmp_path) == ["texts.txt"]
    # after a first window the part file is kept
    interrupted(encoder, Corpus([corpus]), tmp_path / name)
    size = (tmp_path / f".{name}.part").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="File too large"):
            encode_corpus(encoder, Corpus([corpus]), tmp_path / name, window_texts=12, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, previous)
    assert not (tmp_path / name).exists()
    assert encode_corpus(encoder, Corpus([corpus]), tmp_path / name, window_texts=12, resume=True).texts == 100


def test_input_is_never_overwritten(encoder, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "hello"}\n\n')
    with pytest.raises(ValueError, match="also an input"):
        encode_corpus(encoder, Corpus([path]), path)
    assert list(Corpus([path])) == ["hello"]


def test_immediately_failing_run_keeps_an_interrupted_run(encoder, corpus, tmp_path):
    interrupted(encoder, Corpus([corpus]), tmp_path / "v.npy")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        encode_corpus(encoder, Corpus([bad]), tmp_path / "v.npy", overwrite=True)
    for left in (".v.npy.abcdefgh.part", "..v.npy.resume.json.abcdefgh.part"):
        (tmp_path / left).write_bytes(b"left by a kill while the file was made")
    assert encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy", window_texts=12, resume=True).texts == 100
    assert sorted(os.listdir(tmp_path)) == ["bad.txt", "texts.txt", "v.npy"]


def test_two_runs_do_not_write_one_file(encoder, corpus, tmp_path):
    for resume in (False, True):
        with (
            writer_lock(tmp_path / "v.npy"),
            pytest.raises(OutputBusyError, match=rf"v\.npy is being written by process {os.getpid()} since"),
        ):
            encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy", resume=resume)
        assert os.listdir(tmp_path) == ["texts.txt"]
    assert encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy").texts == 100


@pytest.mark.parametrize("moment", ["the resume file is read", "the part file is opened", "the output is written"])
def test_run_is_locked_from_the_first_read_to_the_last_rename(
    encoder, tiny_bert, corpus, tmp_path, monkeypatch, moment
):
    """Regression test: a second run that ended in between replaced the output of the first with zeros."""
    output = tmp_path / "v.npy"
    interrupted(encoder, Corpus([corpus]), output)
    others = []

    def then(function):
        def called(*arguments, **options):
            result = function(*arguments, **options)
            if not others:
                others.append(None)
                command = ("encode", corpus, "-m", tiny_bert, "-o", output, "-q", "--precision", "float32")
                others.append([clearhead(*command, *options) for options in ([], ["--resume"])])
            return result

        return called

    target = {
        "the resume file is read": (clearhead_corpus, "read_json"),
        "the part file is opened": (PartFile, "open"),
        "the output is written": (PartFile, "finish"),
    }[moment]
    monkeypatch.setattr(*target, then(getattr(*target)))
    encode_corpus(encoder, Corpus([corpus]), output, window_texts=12, resume=True)
    for status, _, err in others[1]:
        assert status == 1
        assert f"v.npy is being written by process {os.getpid()} since" in err
    np.testing.assert_array_equal(np.load(output), encoder.encode(sentences(100)))
    assert sorted(os.listdir(tmp_path)) == ["texts.txt", "v.npy"]


def test_pipe_is_encoded_and_cannot_be_resumed(tiny_bert, tmp_path):
    command = f"{COMMAND} encode <(seq 50) -m {tiny_bert} -o {tmp_path / 'v.npy'} -q"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0
    assert len(np.load(tmp_path / "v.npy")) == 50
    done = subprocess.run(["bash", "-c", f"{command} --resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pipes cannot be resumed, because they cannot be read twice; give a file" in done.stderr


def test_interrupt_ends_a_run_that_waits_for_input(tiny_bert, tmp_path):
    command = [str(part) for part in (COMMAND, "encode", "-m", tiny_bert, "-o", tmp_path / "v.npy")]
    options = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    # what runs in the background of a shell is started deaf to it
    with subprocess.Popen(
        command, **options, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    ) as process:
        time.sleep(6)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) in (1, 130, -signal.SIGINT)
    assert os.listdir(tmp_path) == []


def test_parquet_is_read_in_pieces(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x" * 200 + str(i) for i in range(150_000)]}), path)
    before = pyarrow.total_allocated_bytes()
    peak = 0
    for number, _ in enumerate(Corpus([path])):
        if number % 500 == 0:
            peak = max(peak, pyarrow.total_allocated_bytes() - before)
    assert peak < 150_000 * 200 / 4  # all of its text is 30 MB, and one row group


def test_resume_requires_an_output_file(tmp_path, corpus):
    assert "standard input" in refused("encode", "--resume", "-o", tmp_path / "v.npy")
    assert "--output" in refused("encode", corpus, "--resume")
