"""The processes of a run."""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import torch


def is_first() -> bool:
    """Return whether this is the only process, or rank 0 of those that `torchrun` started."""
    return os.environ.get("RANK", "0") == "0"


def world_size() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class ProcessGroup:
    """The processes of a run: this one alone, or those that `torchrun` started.

    Args:
        device: what they compute on: "cpu", "cuda" ...
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.size = world_size()
        self.rank = int(os.environ.get("RANK", "0")) if self.size > 1 else 0
        self.local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if self.size > 1 and not torch.distributed.is_initialized():
            # days: the others wait while the first one reads the data, or a teacher writes
            torch.distributed.init_process_group(self.backend, timeout=timedelta(days=7))

    @property
    def backend(self) -> str:
        """What the processes talk by."""
        return "nccl" if self.device == "cuda" else "gloo"

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """A block that the first process runs before all others.

        Raises:
            ValueError: the first process has ended in it; its own message says why.
        """
        if self.rank > 0:
            try:
                torch.distributed.barrier()
            except RuntimeError:  # the line is dead
                raise ValueError("the first process has ended; its message says why") from None
        yield
        if self.size > 1 and self.rank == 0:
            torch.distributed.barrier()

    def close(self) -> None:
        """Waits for all, and ends their talk."""
        if self.size > 1 and torch.distributed.is_initialized():
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
