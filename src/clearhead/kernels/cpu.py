"""Capabilities of the CPU."""

import os

import torch


def has(name: str) -> bool:
    """Return whether the CPU has an instruction set, and PyTorch is not limited to others by ATEN_CPU_CAPABILITY.

    Args:
        name: PyTorch's name of the instruction set, such as "avx512_bf16", "avx_vnni" or "amx_tile".
    """
    if name.startswith(("avx512", "amx")) and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
        return False
    # PyTorch's capability is AVX2 on processors with AVX-VNNI too: only the variable distinguishes a limit
    if name == "avx_vnni" and os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
        return False
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in torch 2.11
    return bool(capabilities.get(name))
