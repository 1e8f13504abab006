"""Benchmark runner: each candidate runs in a separate process on the same work."""

import json
import os

import pytest
from support.data import candidates as workers

from clearhead.benchmark.hardware import hardware_info, limit_isa, matmul_rate, peak_memory, without_slow_bfloat16
from clearhead.benchmark.report import plot, table, write_report
from clearhead.benchmark.runner import Candidate, Measurements, run_benchmark
from clearhead.runtime import precision


def test_limited_instructions_are_part_of_the_report(monkeypatch):
    for variable in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "CT2_FORCE_CPU_ISA"):
        monkeypatch.setenv(variable, "")
    limit_isa(None)
    assert not os.environ["ATEN_CPU_CAPABILITY"]
    limit_isa("avx2")
    assert hardware_info(1, ())["limited_to"] == "avx2"
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


@pytest.mark.parametrize(
    ("is_fast", "isa", "kept"),
    [(True, None, True), (True, "avx2", False), (False, None, False), (False, "avx2", False)],
)
def test_bfloat16_is_measured_where_it_is_fast(monkeypatch, is_fast, isa, kept):
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: is_fast)
    found = without_slow_bfloat16({"clearhead float32": 1, "clearhead bfloat16": 2}, isa)
    assert list(found) == ["clearhead float32", "clearhead bfloat16"][: 1 + kept]


@pytest.mark.slow
def test_all_candidates_are_compared_with_the_first():
    lines = []
    result = run_benchmark(
        {"a": Candidate(workers.doubling, (0,)), "b": Candidate(workers.doubling, (1,))},
        [3, 4, 5],
        lambda items: sum(items),
        rounds=3,
        check=[1, 2],
        on_round=lines.append,
    )
    assert result.outputs == {"a": [2, 4], "b": [3, 5]}
    assert [figure.name for figure in result.measurements] == ["a", "b"]
    first, other = result.measurements
    assert len(first.rates) == len(lines) == 3
    assert first.ratio == first.lowest == first.highest == 1.0
    ratios = [b / a for a, b in zip(first.rates, other.rates, strict=True)]
    assert other.lowest == min(ratios) <= other.ratio <= max(ratios) == other.highest
    assert first.rates[0] > 12


@pytest.mark.slow
def test_peak_memory_is_measured_per_process():
    result = run_benchmark(
        {"small": Candidate(workers.hungry, (1,)), "large": Candidate(workers.hungry, (300,))}, [0], len, rounds=1
    )
    small, large = result.measurements
    assert 250 < large.peak_mib - small.peak_mib < 350
    assert abs(large.loaded_mib - small.loaded_mib) < 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contestant", "message"),
    [
        (Candidate(workers.broken), "bad failed: OSError: no such model"),
        (Candidate(workers.breaking, (3,)), "bad failed: too much"),
        (Candidate(workers.dying), "bad ended without an answer"),
    ],
)
def test_error_names_the_failing_candidate(contestant, message):
    with pytest.raises(ValueError, match=message):
        run_benchmark({"good": Candidate(workers.doubling, (0,)), "bad": contestant}, [3], len, rounds=1)


def test_zero_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds must be at least 1; got 0"):
        run_benchmark({"a": Candidate(workers.doubling, (0,))}, [3], len, rounds=0)


def test_hardware_info():
    info = hardware_info(2, ("torch", "no-such-package"))
    assert info["threads"] == 2
    assert info["cores"] >= 1
    assert info["versions"].keys() == {"python", "torch"}
    assert peak_memory() > 50
    assert matmul_rate("float32", seconds=0.05) > 1e8


def test_measurements_are_written_as_table_json_and_plot(tmp_path):
    figures = [
        Measurements("other", [100.0, 90.0], 95.0, 1.0, 1.0, 1.0, 10.0, 20.0),
        Measurements("clearhead float32", [200.0, 270.0], 235.0, 2.5, 2.0, 3.0, 12.0, 34.0),
    ]
    head, *lines = table(figures, "tokens/s", {"other": "cosine 1.0"})
    assert "tokens/s" in head
    assert lines[0].endswith("cosine 1.0")
    assert lines[1].split() == ["clearhead", "float32", "235", "2.50", "(2.00", "to", "3.00)", "34"]
    write_report(tmp_path / "a.json", figures, {"work": "encode"})
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["work"] == "encode"
    assert report["figures"][1]["rates"] == [200.0, 270.0]
    plot(tmp_path / "a.png", figures, "tokens/s", "A title")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
