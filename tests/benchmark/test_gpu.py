"""The GPU benchmark, run on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_gpu_benchmark_runs_on_the_cpu(tmp_path):
    command = [sys.executable, str(BENCHMARK), "--device", "cpu", "--quick", "--json", str(tmp_path / "report.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["machine"]["versions"]["torch"]
