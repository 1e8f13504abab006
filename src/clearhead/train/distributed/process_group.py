"""The processes of a training run."""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import torch

_LEAST = {"WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0}
"""The environment variables of `torchrun`, each with its least value."""


def is_rank_zero() -> bool:
    """Return whether this is the only process, or rank 0 of those that `torchrun` started."""
    return os.environ.get("RANK", "0") == "0"


def world_size() -> int:
    """Return the number of processes that train together."""
    return _set_by_torchrun("WORLD_SIZE")


def check_torchrun() -> None:
    """Check the environment variables of `torchrun`; Lightning reads them when it is imported, and names none.

    Raises:
        ValueError: one is not a number, or too small; the message names it.
    """
    for name in _LEAST:
        _set_by_torchrun(name)


def _set_by_torchrun(name: str) -> int:
    """Return a number that `torchrun` sets as an environment variable; without it, the least one."""
    least = _LEAST[name]
    value = os.environ.get(name, str(least))
    if not (value.isascii() and value.isdigit() and int(value) >= least):
        raise ValueError(
            f"the environment variable {name} is {value!r}; expected a number of at least {least}, "
            "as torchrun sets it. Unset it to train with one process"
        )
    return int(value)


class ProcessGroup:
    """The processes of a run: this process alone, or those that `torchrun` started.

    Args:
        device: type of their device: "cpu", "cuda" ...
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.size = world_size()
        rank = _set_by_torchrun("RANK")
        self.rank = rank if self.size > 1 else 0
        self.local_size = _set_by_torchrun("LOCAL_WORLD_SIZE")
        if self.size > 1 and not torch.distributed.is_initialized():
            # several days, because the others wait while rank 0 reads the data or a teacher generates
            torch.distributed.init_process_group(self.backend, timeout=timedelta(days=7))

    @property
    def backend(self) -> str:
        """Communication backend."""
        return "nccl" if self.device == "cuda" else "gloo"

    @contextlib.contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Run a block on rank 0 first, then on the other ranks.

        Raises:
            ValueError: rank 0 has exited; its own message explains why.
        """
        if self.rank > 0:
            try:
                torch.distributed.barrier()
            except RuntimeError:  # the connection to rank 0 was lost
                raise ValueError("the process of rank 0 has exited; its message explains why") from None
        yield
        if self.size > 1 and self.rank == 0:
            torch.distributed.barrier()

    def close(self) -> None:
        """Wait for all processes and destroy the process group."""
        if self.size > 1 and torch.distributed.is_initialized():
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
