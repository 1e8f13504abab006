"""The soak of the server: a short run, and its verdicts."""

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from clearhead.serve.settings import Settings

SOAK = Path(__file__).parents[2] / "benchmarks" / "serving" / "soak"
MINUTES = 30


@pytest.fixture(scope="module")
def verdict():
    spec = importlib.util.spec_from_file_location("soak_verdict", SOAK / "verdict.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.slow
def test_short_soak_keeps_the_promises(tmp_path):
    report, plot = tmp_path / "soak.json", tmp_path / "soak.png"
    command = [sys.executable, str(SOAK), "--minutes", "0.4", "--json", str(report), "--plot", str(plot)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(report.read_text(encoding="utf-8"))
    assert result["wrong"] == result["unexpected"] == result["lost"] == []
    kinds = {name.removesuffix(" 200") for name in result["counts"] if name.endswith(" 200")}
    assert {"embeddings", "stream"} < kinds
    assert {"aborted_stream", "malformed_body", "wrong_key"} < set(result["counts"])
    assert all(promise["kept"] is not False for promise in result["promises"])
    assert plot.read_bytes().startswith(b"\x89PNG")


def samples(growth=0.0, descriptors=0.0, threads=0.0):
    """Samples of 30 minutes; the second half of each minute is quiet, the first has 100 more descriptors."""
    return [
        {
            "seconds": seconds,
            "rss": 500 + (100 if seconds < 300 else 0) + growth * seconds / 60,
            "descriptors": 20 + (100 if seconds % 60 < 30 else 0) + descriptors * seconds / 60,
            "threads": 10 + threads * seconds / 60,
        }
        for seconds in range(0, 60 * MINUTES, 2)
    ]


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ({}, [True, True, True]),
        ({"growth": 1.5}, [False, True, True]),
        ({"growth": -3.0, "descriptors": 1.0}, [True, False, True]),
        ({"threads": 0.6}, [True, True, False]),
    ],
)
def test_leaks_are_found(verdict, found, kept):
    promises = verdict.judge_samples(samples(**found), 60 * MINUTES, lambda seconds: seconds % 60 >= 30)
    assert [promise.kept for promise in promises] == kept


def test_short_soak_does_not_judge_slopes(verdict):
    few = [sample for sample in samples(growth=9.0) if sample["seconds"] < 60]
    promises = list(verdict.judge_samples(few, 60, lambda seconds: True))
    assert [promise.kept for promise in promises] == [None, None, None]
    assert str(promises[0]).startswith("not judged  resident memory is flat: +9.00 MiB a minute")
    assert verdict.judge_fairness([99.0], [0.1], 60).kept is None
    assert verdict.judge_fairness([99.0], [0.1], 1800).kept is False
    assert verdict.judge_fairness([0.5] * 90 + [4.0] * 10, [0.1], 1800).kept is True
    assert verdict.judge_fairness([0.5] * 90 + [6.0] * 10, [0.1], 1800).kept is False


def test_page_states_the_results_and_limits(verdict):
    docs = SOAK.parents[2] / "docs"
    report = json.loads((docs / "benchmarks" / "soak.json").read_text(encoding="utf-8"))
    page = (docs / "robustness.md").read_text(encoding="utf-8")
    found = {promise["name"]: promise["found"].split(" (")[0] for promise in report["promises"]}
    assert all(promise["kept"] for promise in report["promises"])
    for name in ("resident memory is flat", "open descriptors are flat", "every result equals the offline one"):
        assert found[name].split(", ")[0] in page, name
    slope, _, values = found["threads are flat"].partition(" a minute, ")
    first, _, last = values.partition(" to ")
    assert abs(float(slope)) == 0
    assert first == last
    assert f"| {first} throughout |" in page
    assert found["SIGTERM loses no accepted request"].removesuffix(" after the signal") in page
    assert found["the server exits with status 0"].removeprefix("status 0 ") in page
    assert found["a greedy client does not starve polite ones"] in page
    for name in ("Open descriptors", "Threads"):
        assert re.search(rf"\| {name} are flat[^|]*\| {verdict.MAX_SLOPE_COUNT:g} a minute \|", page)
    for file, constant in (("offline.py", "TOLERANCE = 1e-5"), ("server.py", "DRAIN_SECONDS = 600")):
        assert constant in (SOAK / file).read_text(encoding="utf-8")
    assert "| 1e-5 in float32 |" in page
    assert f"default of {Settings(models=[]).queue_tokens:,} tokens" in page
    assert "with `--drain-seconds 600`" in page
    for bound in (f"{verdict.MAX_SLOPE_MIB:g} MiB a minute", f"median of {verdict.MAX_POLITE_SECONDS:g} s"):
        assert f"| {bound}" in page
    assert f"99th percentile of {verdict.MAX_POLITE_LAST:g} s" in page


def test_wrong_lost_and_unexpected_responses_break_promises(verdict):
    record = SimpleNamespace(
        counts=Counter({"embeddings 200": 2}), wrong=["x"], unexpected=["y"], lost=["z"], finished_after_signal=0
    )
    answers = list(verdict.judge_answers(record))
    shutdown = list(verdict.judge_shutdown(record, 1, 2.0, "Traceback (most recent call last):"))
    assert [promise.kept for promise in answers + shutdown] == [False] * 5
    record.wrong = record.unexpected = record.lost = []
    answers, shutdown = verdict.judge_answers(record), verdict.judge_shutdown(record, 0, 2.0, "")
    assert all(promise.kept for promise in (*answers, *shutdown))
