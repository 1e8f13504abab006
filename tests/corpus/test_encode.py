"""Encode a corpus of any size, from files and pipes, with one writer."""

import os
import signal
import subprocess
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command import COMMAND, clearhead
from support.data.corpora import interrupted, sentences

from clearhead.corpus import encode as clearhead_corpus
from clearhead.corpus.encode import encode_corpus
from clearhead.corpus.writers import PartFile
from clearhead.data.corpus import Corpus
from clearhead.io.locks import OutputBusyError, writer_lock
from clearhead.runtime.vectors import EncodeOptions


@pytest.mark.slow
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


def test_input_is_never_overwritten(encoder, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "hello"}\n\n')
    with pytest.raises(ValueError, match="also an input"):
        encode_corpus(encoder, Corpus([path]), path)
    assert list(Corpus([path])) == ["hello"]


def test_two_runs_do_not_write_one_file(encoder, corpus, tmp_path):
    for resume in (False, True):
        with (
            writer_lock(tmp_path / "v.npy"),
            pytest.raises(OutputBusyError, match=rf"v\.npy is being written by process {os.getpid()} since"),
        ):
            encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy", resume=resume)
        assert os.listdir(tmp_path) == ["texts.txt"]
    assert encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy").texts == 100


@pytest.mark.slow
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


@pytest.mark.slow
def test_pipe_is_encoded_and_cannot_be_resumed(tiny_bert, tmp_path):
    command = f"{COMMAND} encode <(seq 50) -m {tiny_bert} -o {tmp_path / 'v.npy'} -q"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0
    assert len(np.load(tmp_path / "v.npy")) == 50
    done = subprocess.run(["bash", "-c", f"{command} --resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pipes cannot be resumed, because they cannot be read twice; give a file" in done.stderr


@pytest.mark.slow
def test_interrupt_ends_a_run_that_waits_for_input(tiny_bert, tmp_path):
    command = [str(part) for part in (COMMAND, "encode", "-m", tiny_bert, "-o", tmp_path / "v.npy")]
    options = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    # what runs in the background of a shell is started deaf to it
    with subprocess.Popen(
        command, **options, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / ".v.npy.lock").exists():  # it is locked before the first read
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) in (1, 130, -signal.SIGINT)
    assert os.listdir(tmp_path) == []
