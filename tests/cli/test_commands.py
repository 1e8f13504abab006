"""The commands `encode`, `trace`, `evaluate similarity` and `convert`, and errors of the Python API."""

import itertools
import json
import os
import resource
import shutil
import stat
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file
from support.command import COMMAND, clearhead, refused, started

TEXTS = "The old bridge was closed.\n\nA penguin \u2028 and 😀.\n"


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text(TEXTS, encoding="utf-8")
    return tmp_path / "texts.txt"


@pytest.mark.slow
def test_help_and_version_import_no_torch():
    script = (
        "import sys; sys.argv = ['clearhead', '--help']\n"
        "from clearhead.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'torch', 'numpy', 'tokenizers', 'huggingface_hub', 'scipy', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for verb in ("encode", "trace", "evaluate", "convert"):
        assert verb in done.stdout
    from clearhead import __version__

    assert started("--version") == (0, f"clearhead {__version__}\n", "")
    status, _, err = started("fly")
    assert status == 2
    assert "fly" in err


@pytest.mark.parametrize("command", [["verify"], ["evaluate", "answers"]])
def test_help_fills_the_lines_of_a_paragraph(command, monkeypatch):
    """Breaks of the docstring, which is wider than a terminal, would leave short lines."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = clearhead(*command, "--help")
    lines = [line.strip() for line in out.splitlines()]
    start = next(index for index, line in enumerate(lines) if line.startswith(("The command", "The rules")))
    text = lines[start : lines.index("", start)]
    assert len(text) > 1
    for line, following in itertools.pairwise(text):
        assert len(f" {line} {following.split()[0]}") > 78, line


def test_package_runs_as_a_module():
    from clearhead import __version__

    command = [sys.executable, "-m", "clearhead", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"clearhead {__version__}\n", "")


@pytest.mark.slow
def test_encode_to_each_format_and_to_standard_output(texts, tmp_path, minilm):
    expected = minilm.encode(TEXTS.split("\n")[:3])
    for name in ("v.npy", "v.jsonl", "v.parquet"):
        status, out, err = clearhead("encode", texts, "--output", tmp_path / name, "--precision", "float32")
        assert (status, out) == (0, ""), err
        assert "3 texts" in err
        assert "tokens/s" in err
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), expected, atol=1e-6)
    status, out, err = started("encode", "--quiet", "--precision", "float32", stdin=TEXTS.encode())
    assert (status, err) == (0, "")
    assert out == (tmp_path / "v.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in out.removesuffix("\n").split("\n")]
    assert [row["text"] for row in rows] == TEXTS.split("\n")[:3]
    np.testing.assert_allclose(np.array([row["embedding"] for row in rows]), expected, atol=1e-6)


def test_encode_summary_as_json(texts, tmp_path, tiny_bert):
    arguments = ["encode", texts, "--model", tiny_bert, "--precision", "bfloat16", "--truncate-dim", 5, "--json"]
    status, out, err = clearhead(*arguments, "-o", tmp_path / "v.npy")
    assert (status, err) == (0, "")
    summary = json.loads(out)
    assert summary["texts"] == 3
    assert summary["truncated"] == 0
    assert summary["dimensions"] == 5
    assert summary["precision"] == "bfloat16"
    assert np.load(tmp_path / "v.npy").shape == (3, 5)
    # with the vectors on standard output the summary goes to standard error
    status, out, err = clearhead(*arguments)
    assert json.loads(err)["tokens"] == summary["tokens"]
    assert len(out.splitlines()) >= 3


def test_encode_options_reach_the_model(texts, tiny_bert, tmp_path):
    from clearhead import TextEncoder

    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    options = ["--pooling", "cls", "--normalize", "--max-length", 6, "--prompt", "test ", "--batch-tokens", 40]
    status, _, err = clearhead(
        "encode", texts, "-m", tiny_bert, "-o", tmp_path / "v.npy", "--precision", "float32", *options
    )
    assert status == 0, err
    assert "truncated)" in err
    expected = encoder.encode(TEXTS.split("\n")[:3], pooling="cls", normalize=True, max_length=6, prompt="test ")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


@pytest.mark.slow
def test_empty_input_gives_an_empty_array(tmp_path, tiny_bert):
    for name in ("v.npy", "v.jsonl", "v.parquet"):
        assert clearhead("encode", "-m", tiny_bert, "-o", tmp_path / name)[0] == 0
    assert np.load(tmp_path / "v.npy").shape == (0, 32)
    assert (tmp_path / "v.jsonl").read_bytes() == b""
    assert pyarrow.parquet.read_table(tmp_path / "v.parquet").num_rows == 0


@pytest.mark.slow
def test_progress_bar_on_a_terminal(texts, tmp_path, tiny_bert):
    import pty

    leader, follower = pty.openpty()
    command = [COMMAND, "encode", texts, "-m", tiny_bert, "-o", tmp_path / "v.npy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower) as process:
        process.wait()
    os.close(follower)
    shown = os.read(leader, 100_000).decode()
    os.close(leader)
    assert "encoding" in shown
    assert "100%" in shown
    assert "tokens/s" in shown


@pytest.mark.slow
def test_bad_input_to_encode(tmp_path, texts, tiny_bert):
    out = tmp_path / "v.npy"
    assert "no such file: nowhere.txt" in refused("encode", "nowhere.txt", "-m", tiny_bert, "-o", out, run=started)
    assert "is a folder" in refused("encode", tmp_path, "-m", tiny_bert, "-o", out)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good\nalso good\n\xc3(\n")
    assert "bad.txt, line 3: not UTF-8" in refused("encode", bad, "-m", tiny_bert, "-o", out)
    assert ".npy, .jsonl, .parquet" in refused("encode", texts, "-m", tiny_bert, "-o", tmp_path / "v.txt")
    assert "does not exist" in refused("encode", texts, "-m", tiny_bert, "-o", tmp_path / "no" / "v.npy")
    assert "no such model folder" in refused("encode", texts, "-m", "./no-model", "-o", out)
    assert "truncated, or not a safetensors" in refused("encode", texts, "-m", broken(tiny_bert, tmp_path), "-o", out)
    assert "batch_tokens must be at least 1" in refused("encode", texts, "-m", tiny_bert, "--batch-tokens", 0)
    assert "truncate_dim" in refused("encode", texts, "-m", tiny_bert, "-o", out, "--truncate-dim", 0)
    assert "device 'warp'" in refused("encode", texts, "-m", tiny_bert, "-o", out, "--device", "warp")
    assert not out.exists()
    status, _, err = clearhead("encode", bad, "-m", tiny_bert, "-o", out, "--errors", "replace")
    assert status == 0, err
    assert np.load(out).shape == (3, 32)


def broken(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "broken")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    return copy


@pytest.mark.slow
def test_full_disk_and_closed_pipe(texts, tmp_path, tiny_bert):
    target = tmp_path / "out"
    target.mkdir()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))

    err = refused("encode", texts, "-m", tiny_bert, "-o", target / "v.npy", run=started, preexec_fn=limit)
    assert "File too large" in err
    assert os.listdir(target) == []
    many = tmp_path / "many.txt"
    many.write_text("hello world\n" * 2000)
    command = f"'{COMMAND}' encode '{many}' -q -m '{tiny_bert}' | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert json.loads(done.stdout)["text"] == "hello world"


@pytest.mark.slow
def test_closed_standard_output(texts, tmp_path, tiny_bert):
    def run(*arguments):
        command = " ".join(f"'{word}'" for word in (COMMAND, *arguments))
        return subprocess.run(["bash", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)

    for arguments in (["encode", texts, "-q", "-m", tiny_bert], ["trace"]):
        done = run(*arguments)
        message = "clearhead: error: standard output: it is closed; redirect it to a file or to /dev/null\n"
        assert (done.returncode, done.stderr) == (1, message)
    done = run("encode", texts, "-q", "-m", tiny_bert, "-o", tmp_path / "v.npy")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(np.load(tmp_path / "v.npy")) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(texts, tmp_path, tiny_bert):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert "cannot be written" in refused("encode", texts, "-m", tiny_bert, "-o", locked / "v.npy")


@pytest.mark.slow
def test_missing_extra_names_the_pip_command(texts, tmp_path, tiny_bert):
    script = (
        "import sys, importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in ('pyarrow', 'scipy') else found(name, *rest)\n"
        "from clearhead.cli.main import main; main()"
    )
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("a,b,1\nc,d,2\n")
    for extra, arguments in (
        ("parquet", ["encode", texts, "-m", tiny_bert, "-o", tmp_path / "v.parquet"]),
        ("evaluate", ["evaluate", "similarity", pairs, "-m", tiny_bert]),
    ):
        command = [sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f'pip install "clearhead[{extra}]"' in done.stderr


@pytest.mark.slow
def test_trace_of_the_full_size_encoder():
    status, out, err = clearhead("trace", "--json")
    assert (status, err) == (0, "")
    steps = json.loads(out)
    assert [set(step) for step in steps] == [{"path", "operation", "equation", "shape", "dtype", "parameters"}] * 90
    assert steps[2]["shape"] == [["B", 30], ["H", 8], ["Lq", 200], ["Lk", 200]]
    assert sum(step["parameters"] for step in steps) == 5 * (4 * 512 * 512 + 4 * 512 + 2 * 512 * 2048 + 2560 + 4 * 512)


@pytest.mark.slow
def test_trace_of_a_part_names_the_parameters_of_the_model():
    status, out, _ = clearhead("trace", "hello world", "--only", "encoder.layers.0")
    assert status == 0
    assert "18 steps in float32. The model has 15,762,944 parameters." in out


@pytest.mark.slow
def test_trace_of_a_text_and_of_a_model(tiny_bert):
    status, out, _ = clearhead("trace", "hello world this is a test", "--json", "--values")
    steps = json.loads(out)
    assert status == 0
    assert steps[5]["shape"] == [["B", 1], ["H", 8], ["Lq", 6], ["Lk", 6]]
    assert set(steps[0]["values"]) == {"mean", "std", "min", "max"}
    assert steps[0]["parameters"] == 6 * 512
    status, out, _ = started("trace", "hello world", "--model", tiny_bert)
    assert status == 0
    assert "[CLS] hello world [SEP]" in out
    assert "[B=1, H=4, Lq=4, Lk=4]" in out
    assert "S = Q Kᵀ / √d_k" in out
    assert "no words" in refused("trace", "  ")
    assert "no such model folder" in refused("trace", "a", "--model", "./nowhere")


@pytest.mark.slow
def test_evaluate_similarity(tmp_path, tiny_bert):
    pairs = tmp_path / "pairs.csv"
    rows = ['"hello, world",hello world,5.0', "the old bridge,the old storm,3.5", "test,query,0", "a,b c d,1"]
    pairs.write_text("\n".join(["first,second,score", *rows]))
    status, out, _ = clearhead("evaluate", "similarity", pairs, "-m", tiny_bert, "--json")
    result = json.loads(out)
    assert status == 0
    assert set(result) == {"spearman", "pearson", "pairs"}
    assert result["pairs"] == 4
    pairs.write_text("\n".join(rows))
    status, out, _ = started("evaluate", "similarity", pairs, "-m", tiny_bert)
    assert out == f"Spearman {result['spearman']:.4f}  Pearson {result['pearson']:.4f}  (4 pairs)\n"
    for content, words in (
        ("a,b,1\na,b\n", "line 2: 2 columns"),
        ("a,b,1\na,b,good\n", "line 2: the score is 'good'"),
        ("a,b,1\n", "1 pairs"),
        ("a,b,nan\nc,d,1\n", "line 1: the score is 'nan'"),
        ("a,b,1\nc,d,1\n", "all scores are 1"),
        ('a,"b,1\n', "not a CSV file"),
    ):
        pairs.write_text(content)
        assert words in refused("evaluate", "similarity", pairs, "-m", tiny_bert)
    pairs.write_bytes(b"a,\xff,1\n")
    assert "not UTF-8" in refused("evaluate", "similarity", pairs)
    assert "no such file" in refused("evaluate", "similarity", tmp_path / "no.csv", "-m", tiny_bert)


@pytest.mark.slow
def test_convert(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "old")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert f"clearhead convert {folder}" in refused("encode", "-m", folder)
    status, _, err = started("convert", folder)
    assert (status, err) == (0, f"wrote {folder / 'model.safetensors'}\n")
    assert clearhead("encode", "-m", folder, "-q", stdin=b"hello\n")[0] == 0
    assert "exists already" in refused("convert", folder)
    assert "no such model folder" in refused("convert", tmp_path / "no")


WRONG_TYPES = [
    ("e.encode(['a'], pooling='median')", "pooling must be one of mean, cls, max, tokens; got 'median'"),
    ("e.encode(['a'], pooling='meen')", "; did you mean 'mean'?"),
    ("e.encode(['a'], pooling=['mean'])", "pooling must be one of"),
    ("c.TextEncoder.from_pretrained(folder, precision='flot32')", "got 'flot32'; did you mean 'float32'?"),
    (
        "__import__('clearhead.data.corpus').data.corpus.Corpus(['-'], errors='ignore')",
        "one of strict, replace; got",
    ),
    ("e.encode(b'a text')", "Decode them"),
    ("e.encode(['a', None])", "text 1 is a NoneType"),
    ("e.encode([('a', 'b')])", "text 0 is a tuple"),
    ("e.encode(['a', None], prompt='x ')", "text 1 is a NoneType"),
    ("e.encode(x for x in ['a', None])", "text 1 is a NoneType"),
    ("c.EncoderConfig(vocab_size=9, activation='foo')", "activation is one of"),
    ("e.model(t.zeros(3, dtype=t.int64))", "(batch, length)"),
    ("c.MultiHeadAttention(8, 2)(t.zeros(3, 8))", "(batch, length, d_model)"),
    ("c.TextEncoder.from_pretrained(folder, precision='int4')", "auto, float32, bfloat16"),
    ("c.EncoderConfig(vocab_size=9, positions='nowhere')", "positions"),
    ("c.EncoderLayer(8, 8, 2, 0.1, norm_order='mid')", "norm_order"),
    ("c.masks.padding(t.ones(2, 3, dtype=t.int64))", "ids != pad_id"),
]


@pytest.fixture(scope="module")
def messages(tiny_bert):
    """The errors of `WRONG_TYPES` in a process without the shape checks of the test run, as a user has it."""
    script = f"""
import json, sys
import clearhead as c, torch as t
folder = {str(tiny_bert)!r}
e = c.TextEncoder.from_pretrained(folder)
messages = []
for code in json.load(sys.stdin):
    try:
        exec(code)
        messages.append("no error")
    except ValueError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""
    codes = json.dumps([code for code, _ in WRONG_TYPES])
    done = subprocess.run([sys.executable, "-c", script], input=codes, capture_output=True, text=True, check=True)
    return dict(zip([code for code, _ in WRONG_TYPES], json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("code", "words"), WRONG_TYPES)
def test_wrong_types_raise_helpful_value_error(messages, code, words):
    assert words in messages[code]


@pytest.mark.slow
def test_closed_standard_error(texts, tmp_path, tiny_bert):
    output = tmp_path / "v.npy"
    command = " ".join(f"'{word}'" for word in (COMMAND, "encode", texts, "-m", tiny_bert, "-o", output))
    assert subprocess.run(["bash", "-c", f"{command} 2>&-"], check=False).returncode == 0
    assert len(np.load(output)) == 3
