"""Available memory, and a check before large allocations."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_UNCHECKED = 2**26
"""Smaller allocations are not checked: 64 MiB."""

_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files with the limit and the usage, and the name of the reclaimable cache in memory.stat, of cgroup v2 and v1."""


class MemoryLimitError(ValueError):
    """More memory is required than is available."""


class LongTextError(MemoryLimitError):
    """A text is too long to be tokenized in the available memory."""


def check_memory(required: int, what: str, advice: str, device: "torch.device | None" = None) -> None:
    """Raise an error for an allocation that exceeds the available memory.

    Args:
        required: lower bound of the allocation in bytes.
        what: name of the operation, such as "a search with 10 beams".
        advice: how to reduce the memory.
        device: device of the allocation; None for the CPU.

    Raises:
        MemoryLimitError: more bytes are required than are available.

    >>> check_memory(1000, "a batch of 10 texts", "Use a smaller batch.")
    """
    if required <= _UNCHECKED:
        return
    available = available_memory(device)
    if available is not None and required > available:
        on = "" if device is None or device.type == "cpu" else f" on {device}"
        raise MemoryLimitError(
            f"{what} needs at least {_gib(required)} GiB of memory; {_gib(available)} GiB are available{on}. {advice}"
        )


def available_memory(device: "torch.device | None" = None, root: Path = Path("/")) -> int | None:
    """Return the bytes that this process can still allocate; None if unknown.

    On the CPU this is the minimum of three values: free and reclaimable memory with swap, the rest of the limits of
    its control groups (cgroup v1 and v2), and the rest of its address space limit (``ulimit -v``).

    Args:
        device: a device; None for the CPU.
        root: folder that contains /proc and /sys.
    """
    if device is not None and device.type == "cuda":
        import torch

        free: int = torch.cuda.mem_get_info(device)[0]
        # plus the free blocks in PyTorch's cache
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device is not None and device.type != "cpu":
        return None
    sizes = [
        size for size in (_free_memory(root), _address_space_left(root), *_cgroup_memory_left(root)) if size is not None
    ]
    return max(0, min(sizes)) if sizes else None


def _free_memory(root: Path) -> int | None:
    with suppress(OSError, KeyError, ValueError):
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        return sizes["MemAvailable"] + sizes.get("SwapFree", 0)
    with suppress(ImportError, AttributeError, OSError, ValueError):  # other systems report only the total
        import os

        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _address_space_left(root: Path) -> int | None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int((root / "proc/self/statm").read_text(encoding="ascii").split()[0])
            return limit - pages * resource.getpagesize()
    return None


def _cgroup_memory_left(root: Path) -> Iterator[int]:
    """Yield the bytes left in each control group of this process and in each of their parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            yield from _cgroup_left(folder)
            if folder == top:  # in a container the group may be mounted at the top, whatever its path outside
                break


def _cgroup_left(group: Path) -> Iterator[int]:
    for limit_file, use_file, cache_name in _CGROUP_FILES:
        with suppress(OSError, ValueError):
            limit = int((group / limit_file).read_text(encoding="ascii"))  # int() rejects "max", which means unlimited
            use = int((group / use_file).read_text(encoding="ascii"))
            rows = (group / "memory.stat").read_text(encoding="ascii").splitlines()
            cache = next((int(row.split()[1]) for row in rows if row.startswith(f"{cache_name} ")), 0)
            yield limit - max(0, use - cache)


def _gib(size: int) -> str:
    return f"{min(size, 2**100) / 2**30:,.1f}"  # larger integers may have no quotient
