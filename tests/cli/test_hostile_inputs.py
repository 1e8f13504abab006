"""Invalid options and inputs give one line with the file, the row and the fix, never a traceback."""

import bz2
import csv
import gzip
import json
import lzma
import resource
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.command import COMMAND, clearhead, refused
from support.data.training import tiny, trained_until, write_tiny

from clearhead import TextEncoder
from clearhead.data.corpus import Corpus
from clearhead.data.file_formats import check_text_format
from clearhead.io.json import read_json


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("the old bridge\nwas closed\n")
    return tmp_path / "texts.txt"


def test_prompt_without_room_for_the_text(texts, tmp_path, tiny_bert):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    # [CLS], 22 or 21 words, [SEP]: the model takes 24 tokens
    for words, limit in ((22, None), (60, None), (6, 8)):
        prompt = "hello " * words
        options = [] if limit is None else ["--max-length", limit]
        message = refused("encode", texts, "-m", tiny_bert, "--prompt", prompt, *options)
        assert f"the prompt takes {words + 2} tokens" in message
        assert str(limit or 24) in message
        with pytest.raises(ValueError, match="shorter prompt"):
            encoder.encode(["a", "b"], prompt=prompt, max_length=limit)
    one, other = encoder.encode(["old", "bridge"], prompt="hello " * 21)
    assert not np.allclose(one, other)


def test_truncate_dim_beyond_the_width(texts, tmp_path, tiny_bert):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    for dim in (33, 10**6, 10**30):
        message = refused("encode", texts, "-m", tiny_bert, "-o", tmp_path / "v.npy", "--truncate-dim", dim)
        assert f"truncate_dim is {dim}" in message
        assert "32 columns" in message
        with pytest.raises(ValueError, match="32 columns"):
            encoder.encode(["a"], truncate_dim=dim)
        with pytest.raises(ValueError, match="32 columns"):
            encoder.width(dim)
    assert encoder.encode(["a"], truncate_dim=32).shape == (1, 32)
    assert encoder.width(32) == 32
    assert not (tmp_path / "v.npy").exists()


LABELS = {
    "a.tsv": "good film\tgood\nbad film\t{}\nold film\tbad\n",
    "a.csv": "text,label\ngood film,good\nbad film,{}\nold film,bad\n",
    "a.jsonl": '{{"text": "x", "label": "good"}}\n{{"text": "y", "label": "{}"}}\n{{"text": "y", "label": "bad"}}\n',
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "row"), [("a.tsv", 2), ("a.csv", 3), ("a.jsonl", 2)])
@pytest.mark.parametrize("empty", ["", "  "])
def test_row_without_a_label(tmp_path, tiny_bert, name, row, empty):
    path = tmp_path / name
    path.write_text(LABELS[name].format(empty))
    columns = {"text": "text", "label": "label"} if name == "a.csv" else None
    content = {"task": "classification", "output": "run", "data": {"train": str(path), "columns": columns}}
    content |= {"model": {"init_from": str(tiny_bert)}, "training": {"steps": 1}}
    recipe = tmp_path / "recipe.yaml"
    for labels in (None, ["good", "bad"]):
        recipe.write_text(json.dumps(content | ({"objective": {"labels": labels}} if labels else {})))
        message = refused("train", recipe, "-q", cwd=tmp_path)
        assert f"{name}, line {row}: the label is empty" in message
    options = ["--column", "text", "--label-column", "label"] if name == "a.csv" else []
    message = refused("evaluate", "classification", path, "-m", tiny_bert, *options)
    assert f"{name}, line {row}: the label is empty" in message


FORMATS = {
    "Zstandard": (b"\x28\xb5\x2f\xfd" + bytes(30), "zstd -d"),
    "bzip2": (bz2.compress(b"one\n"), "bzip2 -d"),
    "xz": (lzma.compress(b"one\n"), "xz -d"),
    "zip": (b"PK\x03\x04" + bytes(30), "unzip"),
    "UTF-16": ("one\ntwo\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
    "UTF-32": ("one\ntwo\n".encode("utf-32"), "iconv -f UTF-32 -t UTF-8"),
    "UTF-16-LE": ("одно слово\nдва\n".encode("utf-16-le"), "iconv -f UTF-16-LE"),
    "UTF-16-BE": ("one\ntwo\n".encode("utf-16-be"), "iconv -f UTF-16-BE"),
    "UTF-32-LE": ("one\ntwo\n".encode("utf-32-le"), "iconv -f UTF-32-LE"),
    "UTF-32-BE": ("één\ntwo\n".encode("utf-32-be"), "iconv -f UTF-32-BE"),
    "Parquet": (b"PAR1" + bytes(30), ".parquet"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_formats_are_recognized_by_their_first_bytes(tmp_path, tiny_bert, kind):
    content, fix = FORMATS[kind]
    for name in ("a.txt", "a.csv", "a.jsonl", "a.zst"):
        (tmp_path / name).write_bytes(content)
        message = refused("encode", tmp_path / name, "-m", tiny_bert)
        assert f"{tmp_path / name} " in message
        assert kind in message
        assert fix in message
        assert "--errors" not in message
    message = refused("encode", "-m", tiny_bert, stdin=content)
    assert "standard input" in message
    assert kind in message
    for arguments in (
        ("tokenizer", "train", tmp_path / "a.txt", "-o", tmp_path / "t", "--vocab-size", 300),
        ("evaluate", "classification", tmp_path / "a.jsonl", "-m", tiny_bert),
        ("evaluate", "similarity", tmp_path / "a.csv", "-m", tiny_bert),
        ("evaluate", "answers", tmp_path / "a.txt", "-m", tiny_bert),
        ("evaluate", "translation", tmp_path / "a.txt", "--reference", tmp_path / "a.txt", "-m", tiny_bert),
        ("evaluate", "summarization", tmp_path / "a.jsonl", "-m", tiny_bert),
        ("summarize", tmp_path / "a.txt", "-m", tiny_bert),
        ("answer", "--question", "who?", "--context", tmp_path / "a.txt", "-m", tiny_bert),
    ):
        message = refused(*arguments)
        assert kind in message, arguments
        assert fix in message


@pytest.mark.slow
def test_advice_about_encodings_names_only_options_of_the_command(tmp_path, tiny_bert):
    texts, rows, out = tmp_path / "a.txt", tmp_path / "a.jsonl", tmp_path / "out"
    texts.write_bytes(b"one\ntw\xff\n")
    rows.write_bytes(b'{"text": "one"}\n{"text": "tw\xff"}\n')
    for arguments in (
        ("quantize", tiny_bert, out, "--texts", texts),
        ("export", tiny_bert, out, "--to", "onnx", "--texts", texts),
        ("benchmark", "encode", texts, "-m", tiny_bert),
        ("summarize", rows, "-m", tiny_bert),
    ):
        message = refused(*arguments)
        assert ", line 2: not UTF-8 at byte" in message, arguments
        assert message.endswith("convert it, for example with iconv\n")
    assert "use --errors replace to insert replacement characters" in refused("encode", rows, "-m", tiny_bert)
    assert not out.exists()


@given(st.text(min_size=1).filter(lambda text: any(map(str.isalpha, text))))
def test_utf8_is_not_mistaken_for_another_encoding(text):
    content = text.replace("\0", " ").encode()
    if not content.startswith((b"PK\x03\x04", b"BZh", b"PAR1")):
        check_text_format(content, "a.txt")


@pytest.mark.slow
def test_gzip_is_recognized_by_content(tmp_path, tiny_bert):
    one, other = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    content = "".join(f"line {number}\n" for number in range(3000)).encode()
    one.write_bytes(gzip.compress(content[:900]) + gzip.compress(content[900:]))
    assert list(Corpus([one])) == content.decode().splitlines()
    assert clearhead("encode", one, "-m", tiny_bert, "-o", tmp_path / "v.npy", "-q") == (0, "", "")
    assert "standard input contains gzip data" in refused("encode", "-m", tiny_bert, stdin=one.read_bytes())
    other.write_bytes(content)
    assert "a.txt.gz is not gzip data. Rename the file without .gz" in refused("encode", other, "-m", tiny_bert)
    other.write_bytes(gzip.compress(one.read_bytes()))
    assert "a.txt.gz, decompressed, contains gzip data" in refused("encode", other, "-m", tiny_bert)
    for keep in (5, 20, 200, -4):
        other.write_bytes(gzip.compress(content)[:keep])
        assert "a.txt.gz is truncated, or not a gzip file" in refused("encode", other, "-m", tiny_bert)


def test_empty_files_are_reported_packed_or_not(tmp_path, tiny_bert):
    empty = tmp_path / "empty.txt.gz"
    empty.write_bytes(b"")
    assert "empty.txt.gz is empty, not a gzip file" in refused("encode", empty, "-m", tiny_bert)
    assert "empty.txt.gz is empty" in refused("evaluate", "answers", empty, "-m", tiny_bert)
    empty.write_bytes(gzip.compress(b""))
    (tmp_path / "empty.txt").write_bytes(b"")
    for path in (empty, tmp_path / "empty.txt"):
        status, out, err = clearhead("encode", path, "-m", tiny_bert, "-q")
        assert (status, out, err) == (0, "", f"clearhead: {path} contains no texts\n")
    assert clearhead("encode", "-m", tiny_bert, "-q") == (0, "", "clearhead: standard input contains no texts\n")


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_parquet_with_broken_utf8(tmp_path, tiny_bert, kind):
    values = pa.array([b"one", b"two", b"caf\xe9", None, b"four"][: 3 if kind == pa.string() else 5], pa.binary())
    plain = pa.Array.from_buffers(pa.string(), len(values), values.buffers())
    column = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain.cast(kind, safe=False)
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"text": column}), path, store_schema=True)
    message = refused("encode", path, "-m", tiny_bert)
    assert f"{path}, row 3, column 'text': not UTF-8 at byte 4 (0xe9); use --errors replace" in message
    message = refused("tokenizer", "train", path, "-o", tmp_path / "t", "--vocab-size", 300)
    assert "row 3" in message
    if kind == pa.string():
        assert list(Corpus([path], errors="replace")) == ["one", "two", "caf\ufffd"]
        (tmp_path / "names.parquet").write_bytes(path.read_bytes().replace(b"text", b"te\xe9t"))
        assert "names.parquet" in refused("encode", tmp_path / "names.parquet", "-m", tiny_bert)
    else:
        assert "row 4" in refused("encode", path, "-m", tiny_bert, "--errors", "replace")


@pytest.mark.parametrize("nest", ["list", "struct"])
def test_parquet_with_broken_utf8_in_kept_lists_and_structs(tmp_path, tiny_bert, nest):
    values = pa.array([b"one", b"caf\xe9"], pa.binary())
    plain = pa.Array.from_buffers(pa.string(), 2, values.buffers())
    nested = {
        "list": lambda: pa.ListArray.from_arrays([0, 1, 2], plain),
        "struct": lambda: pa.StructArray.from_arrays([plain], ["word"]),
    }[nest]()
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"text": ["a", "b"], "kept": nested}), path)
    message = refused("encode", path, "-m", tiny_bert, "--keep", "kept")
    assert f"{path}, row 2, column 'kept': not UTF-8 at byte 4 (0xe9); write the file again with UTF-8 text" in message


def test_long_fields_of_csv(tmp_path, tiny_bert):
    path = tmp_path / "a.csv"
    path.write_text('text\nshort\n"' + "long, " * 50_000 + '"\n')
    limit = csv.field_size_limit()
    assert clearhead("encode", path, "--column", "text", "-m", tiny_bert, "-q", "-o", tmp_path / "v.npy")[0] == 0
    with pytest.raises(ValueError, match=r"a\.csv: the row that starts on line 3 .*131072.*csv\.field_size_limit"):
        list(Corpus([path], column="text"))
    assert csv.field_size_limit() == limit


@pytest.mark.slow
def test_wrong_option_is_a_one_line_error_with_a_suggestion():
    for arguments, words in (
        (("encode", "--pooling", "meen"), ("--pooling", "'mean', 'cls', 'max'", "did you mean 'mean'?", "encode -h")),
        (("encode", "--pooling", "x"), ("--pooling", "'mean', 'cls', 'max'")),
        (("encode", "--precision", "bfloat"), ("--precision", "did you mean 'bfloat16'?")),
        (("encode", "--errors", "ignore"), ("--errors", "'strict', 'replace'")),
        (("encode", "--engine", "rey"), ("--engine", "did you mean 'ray'?")),
        (("encode", "--max-length", "1e3"), ("--max-length", "integer")),
        (("encode", "--max-length", "9" * 5000), ("--max-length", "integer")),
        (("encode", "--poolin", "mean"), ("--poolin", "--pooling")),
        (("enco",), ("enco", "encode")),
        (("train",), ("RECIPE",)),
        (("evaluate", "similarty"), ("similarty", "similarity")),
        (("serve", "-m", "a", "--use", "a=answer"), ("--use was renamed to --task",)),
        (("view", "a", "--whole", "encoder.0.0"), ("--whole was renamed to --full-maps",)),
    ):
        status, out, err = clearhead(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("clearhead: error: ")
        for word in words:
            assert word in err, err


def small_files():
    """No file of this process grows beyond 1,000 bytes, like on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
def test_full_disk_names_the_output(tmp_path, tiny_bert, name):
    (tmp_path / "texts.txt").write_text("the old bridge\n" * 50)
    arguments = ["encode", tmp_path / "texts.txt", "-m", tiny_bert, "-o", tmp_path / name, "-q"]
    assert refused(*arguments, hook=small_files) == f"clearhead: error: {tmp_path / name}: File too large\n"


@pytest.mark.slow
def test_full_disk_names_the_file_of_every_command(tmp_path, tiny_bert):
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(load_file(tiny_bert / "model.safetensors"), pickled / "pytorch_model.bin")
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"A dog sees house {number} and sleeps.\n" for number in range(60)))
    out = tmp_path / "out"
    for name, arguments in (
        ("model.safetensors", ("convert", pickled)),
        ("tokenizer.json", ("tokenizer", "train", texts, "-o", out, "--vocab-size", 300)),
        ("page.html", ("view", "the old", "-m", tiny_bert, "-o", tmp_path / "page.html")),
        ("hyp.txt", ("evaluate", "translation", texts, "--reference", texts, "-m", "tatoeba-en-de", "-q",
                     "--beam-size", 1, "--max-new-tokens", 8, "-o", tmp_path / "hyp.txt")),
        (str(tmp_path / "run" / "data" / "tokenizer" / "tokenizer.json"), ("train", write_tiny(tmp_path), "-q")),
        ("standard output", ("verify", tiny_bert, "-o", tmp_path / "certificate.json")),
        (str(out / "model.safetensors"), ("export", tiny_bert, out, "--to", "transformers")),
    ):  # fmt: skip
        status, _, err = clearhead(*arguments, hook=small_files)
        assert status == 1, (arguments, err)
        assert name in err.splitlines()[-1], err
        assert "File too large" in err.splitlines()[-1]
        assert "Traceback" not in err
        assert ".part" not in err
        assert not (tmp_path / "certificate.json").exists()
        assert not (tmp_path / "run" / "data").exists()
        assert not out.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_full_standard_output(tmp_path, tiny_bert):
    (tmp_path / "texts.txt").write_text("the old bridge\n" * 50)
    texts = tmp_path / "texts.txt"
    for arguments in (
        ("encode", texts, "-m", tiny_bert, "-q"),
        ("encode", texts, "-m", tiny_bert, "-o", tmp_path / "v.npy", "--json"),
        ("translate", texts, "--max-new-tokens", 3, "--beam-size", 1),
        ("trace",),
        ("lint", "-m", tiny_bert, "--json"),
        ("--help",),
        ("--version",),
    ):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run([COMMAND, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1, arguments
        assert done.stderr.decode() == "clearhead: error: standard output: No space left on device\n", arguments


BIG = 10**30


@pytest.mark.slow
def test_integers_beyond_64_bits(texts, tmp_path, tiny_bert):
    for arguments, words in (
        (("encode", texts, "-m", tiny_bert, "--max-length", BIG), "max_length"),
        (("tokenizer", "train", texts, "-o", tmp_path / "t", "--vocab-size", BIG), "Choose a smaller vocab_size"),
        (("tokenizer", "train", texts, "-o", tmp_path / "t", "--vocab-size", 2**63), "Choose a smaller vocab_size"),
        (
            ("tokenizer", "train", texts, "-o", tmp_path / "t", "--vocab-size", 300, "--min-frequency", BIG),
            "min_frequency must be at most",
        ),
        (("translate", texts, "--beam-size", BIG), "tokens of the vocabulary"),
        (("translate", texts, "--beam-size", 2_000_000), "tokens of the vocabulary"),
    ):
        assert words in refused(*arguments)
    (tmp_path / "a.jsonl").write_text(f'{{"text": {BIG}}}\n')
    assert "a.jsonl, line 1: column 'text' is int" in refused("encode", tmp_path / "a.jsonl", "-m", tiny_bert)
    (tmp_path / "a.jsonl").write_text('{"text": "a", "x": ' + "9" * 5000 + "}\n")
    expected = "an integer has 5000 digits, more than 4300: line 1 column 20"
    assert f"a.jsonl, line 1: not JSON: {expected}\n" in refused("encode", tmp_path / "a.jsonl", "-m", tiny_bert)
    documents = ("evaluate", "summarization", tmp_path / "a.jsonl", "-m", tiny_bert)
    assert f"a.jsonl, line 1: not JSON: {expected}\n" in refused(*documents)
    (tmp_path / "a.json").write_text('{"data": [],\n "version": ' + "9" * 5000 + "}")
    expected = "a.json is not JSON: an integer has 5000 digits, more than 4300: line 2 column 13\n"
    assert expected in refused("evaluate", "answers", tmp_path / "a.json", "-m", tiny_bert)
    (tmp_path / "a.json").write_text("9" * 5000)
    with pytest.raises(ValueError, match="a.json is not valid JSON: an integer has 5000 digits"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.csv").write_text("text\na\n")
    assert "a.csv, line 1 has 1 column" in refused("encode", tmp_path / "a.csv", "-m", tiny_bert, "--column", BIG)


@pytest.mark.parametrize(
    "key",
    [
        "tokenizer.vocab_size",
        "training.gradient_accumulation_steps",
        "training.steps",
        "data.batch_tokens",
        "model.d_model",
        "optimizer.warmup_steps",
        "seed",
    ],
)
@pytest.mark.parametrize("value", [2**63, BIG])
def test_recipe_values_beyond_64_bits(tmp_path, key, value):
    message = refused("train", write_tiny(tmp_path, **{key.replace(".", "__"): value}), "-q")
    assert key in message
    assert "less than 9223372036854775808" in message


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_resume_of_a_damaged_run(tmp_path):
    recipe = tiny(tmp_path)
    trained_until(recipe, lambda step: step == 7)
    path = write_tiny(tmp_path)
    state = tmp_path / "run" / "checkpoints" / "state.ckpt"
    whole = state.read_bytes()
    for part in ("pytorch-lightning_version", "state_dict", "callbacks", "optimizer_states", "lr_schedulers", "loops"):
        content = torch.load(state, weights_only=True)
        del content[part]
        torch.save(content, state)
        message = refused("train", path, "--resume", "-q")
        assert f"state.ckpt is damaged: it has no {part}" in message and "start a new run" in message  # noqa: PT018
        state.write_bytes(whole)
    for weights in state.parent.glob("step-*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:100])
    status, _, err = clearhead("train", path, "--resume", "-q")
    assert (status, err.splitlines()[-1].startswith("clearhead: error: ")) == (1, True)
    assert "safetensors is truncated, or not a safetensors file" in err
