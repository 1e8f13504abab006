"""An interrupted encoding that is resumed writes the same bytes; other models, options and inputs are refused."""

import json
import os
import random
import resource
import signal
import subprocess
import time

import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.command import COMMAND, clearhead, refused, started
from support.data.corpora import interrupted, sentences
from support.models.int8 import needs_kernels
from support.models.tiny import make_bert

from clearhead import TextEncoder
from clearhead.corpus.encode import EncodingStats, encode_corpus
from clearhead.data.corpus import Corpus
from clearhead.export.int8 import quantize
from clearhead.io.json import json_hash, read_hashed_json, write_hashed_json
from clearhead.runtime.int8 import files
from clearhead.runtime.vectors import EncodeOptions


@pytest.mark.slow
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
    data = read_hashed_json(note)
    note.write_text(json.dumps(data | {"sha256": json_hash(data)}).replace('"texts": 12', '"texts": 13'))
    resume(r"\.v\.npy\.resume\.json is damaged", options=cls)
    for change in ({"size": "x"}, {"size": -5}, {"size": 0}, {"counts": {"texts": 5}}, {"settings": 3}):
        write_hashed_json(note, data | change)
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


@needs_kernels
def test_resume_with_another_file_of_8_bit_weights_is_refused(corpus, tmp_path):
    make_bert(tmp_path / "model")
    quantize(tmp_path / "model", tmp_path / "int8", texts=["the old bridge"])
    weights, output = tmp_path / "int8" / files.FILE, tmp_path / "v.npy"
    quantized = TextEncoder.from_pretrained(tmp_path / "int8", precision="int8", device="cpu")
    interrupted(quantized, Corpus([corpus]), output)
    with safe_open(weights, framework="pt") as file:
        tensors, metadata = load_file(weights), file.metadata()
    tensors["encoder.layers.0.attention.out.scale_N"] *= 1.01
    save_file(tensors, weights, metadata=metadata)
    changed = TextEncoder.from_pretrained(tmp_path / "int8", precision="int8", device="cpu")
    with pytest.raises(ValueError, match="model was"):
        encode_corpus(changed, Corpus([corpus]), output, window_texts=12, resume=True)


def test_resume_without_a_run_starts_one(encoder, corpus, tmp_path):
    assert encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy", resume=True).texts == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
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


@pytest.mark.slow
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


def test_resume_requires_an_output_file(tmp_path, corpus):
    assert "standard input" in refused("encode", "--resume", "-o", tmp_path / "v.npy")
    assert "--output" in refused("encode", corpus, "--resume")


def test_links_in_the_place_of_a_part_file_are_not_followed(encoder, corpus, tmp_path):
    (tmp_path / "other.txt").write_text("kept")
    part = tmp_path / ".v.npy.part"
    part.symlink_to(tmp_path / "other.txt")
    with pytest.raises(OSError, match=r"a link, a pipe, a device or a folder; remove it: '.*\.v\.npy\.part'"):
        encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy")
    assert (tmp_path / "other.txt").read_text() == "kept"
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(OSError, match=r"a link, a pipe, a device or a folder; remove it: '.*\.v\.npy\.part'"):
        encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy")
    part.unlink()
    (tmp_path / ".v.npy.resume.json").mkdir()
    with pytest.raises(OSError, match=r"\.v\.npy\.resume\.json"):
        encode_corpus(encoder, Corpus([corpus]), tmp_path / "v.npy", overwrite=True)
    assert not part.exists()
