"""Each fuzzer runs some hundred cases of a fixed seed without a forbidden outcome, and reports a forbidden one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuzz import outcomes
from fuzz.outcomes import Case, judge
from fuzz.run import TARGETS
from fuzz.targets import recipes, server_requests

CASES = {
    "checkpoints": 150,
    "keys": 600,
    "recipes": 100,
    "tables": 400,
    "indexes": 120,
    "requests": 52,
    "graphs": 100,
    "endpoints": 150,
}
SLOW = {"keys", "recipes", "requests", "graphs"}  # 20 seconds and more


def test_every_target_is_tested():
    assert set(CASES) == set(TARGETS)


@pytest.mark.parametrize(
    "target", [pytest.param(target, marks=pytest.mark.slow if target in SLOW else ()) for target in CASES]
)
def test_hostile_inputs_work_or_are_refused_in_one_line(target):
    command = [sys.executable, "-m", "fuzz", target, "--cases", str(CASES[target]), "--seed", "33"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert f"{CASES[target]} cases" in done.stdout


def fail(error):
    raise error


def grow():
    return len(bytes(900 * 2**20).replace(b"\0", b"\1"))


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (lambda: 3, "works"),
        (lambda: fail(ValueError("a.txt, line 3: the label is empty")), "refused"),
        (lambda: fail(FileNotFoundError(2, "No such file", "a.txt")), "refused"),
        (lambda: fail(ValueError("invalid literal")), "message without the file"),
        (lambda: fail(ValueError("data: no field")), "refused"),
        (lambda: fail(ValueError("bad data: no field")), "message without the file"),
        (lambda: fail(ValueError("a.txt:\nline 3")), "message of several lines"),
        (lambda: fail(ValueError("a.txt" * 1000)), "message of 5,000 characters"),
        (lambda: fail(TypeError("a.txt")), "raised TypeError"),
        (lambda: fail(RecursionError("a.txt")), "raised RecursionError"),
        (lambda: time.sleep(30), "took more than 1 s"),
        (
            lambda: os.write(2, b"thread '<unnamed>' panicked at lib.rs:112:34: index out of bounds"),
            "printed an error or a warning",
        ),
        (lambda: os.write(2, b"[E:onnxruntime:, x.cc:572] Non-zero status code"), "printed an error or a warning"),
        (lambda: os.write(2, b"a.py:9: RuntimeWarning: overflow encountered in cast"), "printed an error or a warning"),
    ],
)
def test_outcomes_are_judged(run, outcome):
    assert judge(Case("nothing", run, ["a.txt", "^data: "], seconds=1))[0] == outcome


@pytest.mark.parametrize(
    "sentence",
    [
        f"more than {outcomes.MAX_MESSAGE:,} characters",
        f"a case of more than {outcomes.SECONDS} seconds",
        f"a growth of the memory by more than {outcomes.MEMORY_MB} MB",
        f"A recipe may take {recipes.MEMORY_MB // 1000} GB",
        f"may grow by {server_requests.MAX_GROWTH_MB} MB in a whole run",
        f"up to {server_requests.PER_CASE} requests a case",
    ],
)
def test_page_states_the_limits(sentence):
    page = Path(__file__).parents[2] / "docs" / "robustness.md"
    assert sentence in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak memory")
def test_memory_is_judged_after_an_earlier_peak():
    assert outcomes.MEMORY_MB < 900
    grow()
    for _ in range(2):
        assert judge(Case("nothing", grow, ["a.txt"]))[0].startswith("took ")
