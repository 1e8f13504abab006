"""Capabilities of the CPU."""

import torch


def has(name: str) -> bool:
    """Return whether the CPU has an instruction set.

    Args:
        name: PyTorch's name of the instruction set, such as "avx512_bf16" or "amx_tile".
    """
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in torch 2.11
    return bool(capabilities.get(name))
