"""What the CPU can do."""

import torch


def has(name: str) -> bool:
    """Whether the CPU has a set of instructions.

    Args:
        name: PyTorch's name of the set, as "avx512_bf16" or "amx_tile".
    """
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.11 may have none
    return bool(capabilities.get(name))
