"""What figures were measured on: hardware, versions, and what the machine could do at most."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm")


def machine(threads: int, packages: Sequence[str]) -> dict[str, Any]:
    """Hardware and versions, for a file of figures.

    Args:
        threads: how many were used.
        packages: distributions whose versions count; what is not installed is left out.
    """
    lines = _read("/proc/cpuinfo").splitlines()
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    told = {key.strip(): value.strip() for key, value in told.items()}
    flags = (told.get("flags") or told.get("Features") or "").split()
    memory = [line.split()[1] for line in _read("/proc/meminfo").splitlines() if line.startswith("MemTotal:")]
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": told.get("model name") or platform.processor() or platform.machine(),
        "instructions": [flag for flag in _FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(int(memory[0]) / 2**20, 1) if memory else None,
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
    }


def peak_memory() -> float:
    """The most memory that this process ever held, in MiB. (`ru_maxrss` would count the process that started it.)"""
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes where there is no /proc: macOS


def product_rate(dtype: str, *, device: str = "cpu", seconds: float = 2.0) -> float:
    """Floating-point operations a second of a large matrix product, in numbers such as "bfloat16": what a model that
    is nothing but products could reach here."""
    import torch

    rows, width = (2048, 1024) if device == "cpu" else (16384, 8192)
    x, weight = (torch.randn(size, width, device=device).to(getattr(torch, dtype)) for size in (rows, width))
    best, stop = float("inf"), time.perf_counter() + seconds
    with torch.inference_mode():
        while time.perf_counter() < stop:
            start = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            wait(device)
            best = min(best, time.perf_counter() - start)
    return 2 * rows * width * width / best


def wait(device: str) -> None:
    """Until a device has done all that it was given: an accelerator computes while Python goes on."""
    import torch

    if device != "cpu":
        torch.accelerator.synchronize(device)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
