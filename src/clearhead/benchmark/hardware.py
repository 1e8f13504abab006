"""Describe the machine of a measurement: hardware, versions, peak memory and matmul speed."""

import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm")

_ISA_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "CT2_FORCE_CPU_ISA")


def hardware_info(threads: int, packages: Sequence[str]) -> dict[str, Any]:
    """Return hardware and versions, to be stored with measurements.

    Args:
        threads: number of threads in use.
        packages: distributions whose versions are recorded; missing ones are skipped.
    """
    lines = _read("/proc/cpuinfo").splitlines()
    cpuinfo = dict(line.split(":", 1) for line in lines if ":" in line)
    cpuinfo = {key.strip(): value.strip() for key, value in cpuinfo.items()}
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features") or "").split()
    memory = [line.split()[1] for line in _read("/proc/meminfo").splitlines() if line.startswith("MemTotal:")]
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": cpuinfo.get("model name") or platform.processor() or platform.machine(),
        # in virtual machines, generations of a processor can share one name: Zen 4 is family 25, Zen 5 is 26
        "cpu_family": cpuinfo.get("cpu family"),
        "cpu_model": cpuinfo.get("model"),
        "instructions": [flag for flag in _FLAGS if flag in flags],
        "limited_to": os.environ.get("ATEN_CPU_CAPABILITY"),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(int(memory[0]) / 2**20, 1) if memory else None,
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
    }


def limit_isa(isa: str | None) -> None:
    """Limit this process and those that it starts to an instruction set; call it before the first computation.

    PyTorch, oneDNN, MKL and CTranslate2 read these variables. ONNX Runtime has no such setting.

    Args:
        isa: "avx2", or None for no limit.
    """
    if isa is None:
        return
    for variable in _ISA_VARIABLES:
        os.environ[variable] = isa.lower() if variable.startswith("ATEN") else isa.upper()


def without_slow_bfloat16(candidates: Mapping[str, T], isa: str | None = None) -> dict[str, T]:
    """Return the candidates to measure: without those in bfloat16 where it is slower than float32.

    That is so under `limit_isa`, and on processors without fast bfloat16 matmuls.

    Args:
        candidates: candidates by name, which holds the precision.
        isa: as in `limit_isa`.
    """
    import torch

    from clearhead.runtime.precision import multiplies_bfloat16

    keep = isa is None and multiplies_bfloat16(torch.device("cpu"))
    return {name: candidate for name, candidate in candidates.items() if keep or "bfloat16" not in name}


def peak_memory() -> float:
    """Return the peak memory of this process in MiB, or NaN where the system does not say it, as on Windows."""
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024  # `ru_maxrss` would include the parent process
    try:
        import resource
    except ImportError:
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in bytes on macOS, which has no /proc


def matmul_rate(dtype: str, *, device: str = "cpu", seconds: float = 2.0) -> float:
    """Return floating-point operations per second of a large matmul: an upper bound for any model on this machine.

    Args:
        dtype: name of a torch dtype, such as "bfloat16".
        device: device of the matmul.
        seconds: how long to measure; the fastest run counts.
    """
    import torch

    rows, width = (2048, 1024) if device == "cpu" else (16384, 8192)
    x, weight = (torch.randn(size, width, device=device).to(getattr(torch, dtype)) for size in (rows, width))
    best, stop = float("inf"), time.perf_counter() + seconds
    with torch.inference_mode():
        while time.perf_counter() < stop:
            start = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            synchronize(device)
            best = min(best, time.perf_counter() - start)
    return 2 * rows * width * width / best


def synchronize(device: str) -> None:
    """Wait until a device has finished: accelerators run asynchronously."""
    import torch

    if device != "cpu":
        torch.accelerator.synchronize(device)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
