"""Choose the device of a model."""

import torch


def choose_device(device: str) -> torch.device:
    """Return the device with a name; "auto" is the accelerator if there is one, else the CPU.

    Raises:
        ValueError: a name that torch does not know, or a device that is not available.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # not possible on meta, which holds no values
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        if reason.startswith(("Expected one of ", "Invalid device string")):  # followed by all backends of torch
            reason = "expected auto, cpu, cuda, cuda:1, mps or another device of PyTorch"
        raise ValueError(f"device {device!r} cannot be used: {reason}") from None
    return chosen
