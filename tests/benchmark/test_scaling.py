"""The figures of docs/scaling.md are those that its benchmark computes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = ("base, 8 GPUs", "base, 64 GPUs", "big, 8 GPUs", "big, 64 GPUs")


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    report = tmp_path_factory.mktemp("scaling") / "report.json"
    command = [sys.executable, ROOT / "benchmarks/scale/scaling.py", "--json", report]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text())["steps"]


def page():
    return (ROOT / "docs" / "scaling.md").read_text()


def rows():
    """Return the cells of the page's table by the name of their row."""
    lines = re.findall(r"^\| (.+) \|$", page(), flags=re.MULTILINE)
    cells = [line.split(" | ") for line in lines]
    return {name: columns for name, *columns in cells if len(columns) == len(COLUMNS)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "figures"),
    [
        ("parameters N", [("parameters", 1e-6)]),
        ("compute", [("compute s", 1e3)]),
        ("activations", [("activations GB", 1)]),
        ("bfloat16 copies of the weights", [("copies of the weights in bfloat16 GB", 1)]),
        ("DDP: weights, gradients, Adam", [("DDP: weights, gradients, Adam GB", 1)]),
        ("DDP: sent", [("DDP: sent GB", 1), ("DDP: communication s", 1e3)]),
        ("FSDP2: weights, gradients, Adam", [("FSDP2: weights, gradients, Adam GB", 1)]),
        ("FSDP2: gathered", [("FSDP2: unsharded GB", 1)]),
        ("FSDP2: sent", [("FSDP2: sent GB", 1), ("FSDP2: communication s", 1e3)]),
    ],
)
def test_table_has_the_computed_figures(row, figures, steps):
    for column, cell in zip(COLUMNS, rows()[row], strict=True):
        for shown, (name, unit) in zip(re.findall(r"[0-9.]+", cell), figures, strict=True):
            digits = len(shown.partition(".")[2])
            assert abs(float(shown) - steps[column][name] * unit) <= 0.51 * 10**-digits, (row, column)


@pytest.mark.slow
def test_sentences_have_the_computed_figures(steps):
    text = " ".join(page().split())
    base, big = steps["base, 8 GPUs"], steps["big, 8 GPUs"]
    state, copies = "DDP: weights, gradients, Adam GB", "copies of the weights in bfloat16 GB"
    per_token = [round(size["activations per token kB"]) for size in (base, big)]
    assert f"They grow by {per_token[0]} kB (base) and {per_token[1]} kB (big)" in text
    whole = [size["activations GB"] + size[state] + size[copies] for size in (base, big)]
    assert f"base needs {whole[0]:.1f} GB and big {whole[1]:.1f} GB" in text
    assert f"fits into 80 GB {80 / base[state]:.0f} times (base) and {80 / big[state]:.0f} times (big)" in text
    saved = [size[state] - size["FSDP2: weights, gradients, Adam GB"] for size in (base, big)]
    assert saved[0] < 1.0 < saved[1] <= 3.0
    assert f"from {80 / 16:.0f} billion parameters on an 80 GB GPU" in text
    assert f"18 N bytes, from {80 / 18:.1f} billion" in text
