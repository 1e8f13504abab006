"""Available memory, and a check before a large allocation."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SMALL = 2**26
"""Bytes up to which nothing is checked: 64 MiB."""

_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, use and the name of the reclaimable file cache in memory.stat, of version 2 and of version 1."""


class MemoryLimitError(ValueError):
    """More memory is required than is available."""


def check_memory(required: int, what: str, advice: str, device: "torch.device | None" = None) -> None:
    """Raise an error before an allocation that cannot succeed.

    Args:
        required: bytes, a lower bound.
        what: what needs them, such as "a search with 10 beams".
        advice: what to change.
        device: where they are allocated; the CPU where None.

    Raises:
        MemoryLimitError: more bytes are required than are available.

    >>> check_memory(1000, "a batch of 10 texts", "Use a smaller batch.")
    """
    if required <= _SMALL:
        return
    available = available_memory(device)
    if available is not None and required > available:
        on = "" if device is None or device.type == "cpu" else f" on {device}"
        raise MemoryLimitError(
            f"{what} needs at least {_gib(required)} GiB of memory; {_gib(available)} GiB are available{on}. {advice}"
        )


def available_memory(device: "torch.device | None" = None, root: Path = Path("/")) -> int | None:
    """Return the bytes that this process can still allocate; None where the system does not say.

    On the CPU it is the least of free and reclaimable memory with swap, the limits of the process's control groups
    (versions 1 and 2), and its own limit of addresses (``ulimit -v``).

    Args:
        device: a GPU's free memory is PyTorch's to tell; None is the CPU.
        root: where /proc and /sys are.
    """
    if device is not None and device.type == "cuda":
        import torch

        free: int = torch.cuda.mem_get_info(device)[0]
        # freed blocks that PyTorch keeps
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device is not None and device.type != "cpu":
        return None
    found = [size for size in (_system(root), _addresses(root), *_control_groups(root)) if size is not None]
    return max(0, min(found)) if found else None


def _system(root: Path) -> int | None:
    with suppress(OSError, KeyError, ValueError):
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        return sizes["MemAvailable"] + sizes.get("SwapFree", 0)
    with suppress(ImportError, AttributeError, OSError, ValueError):  # other systems say how much there is in all
        import os

        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _addresses(root: Path) -> int | None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int((root / "proc/self/statm").read_text(encoding="ascii").split()[0])
            return limit - pages * resource.getpagesize()
    return None


def _control_groups(root: Path) -> Iterator[int]:
    """Yield the bytes that each control group of this process, and each above it, has left."""
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
            yield from _left(folder)
            if folder == top:  # a container may see its own group at the top, whatever its path outside
                break


def _left(group: Path) -> Iterator[int]:
    for limit_file, use_file, cache_name in _CGROUP_FILES:
        with suppress(OSError, ValueError):
            limit = int((group / limit_file).read_text(encoding="ascii"))  # "max" is no limit
            use = int((group / use_file).read_text(encoding="ascii"))
            rows = (group / "memory.stat").read_text(encoding="ascii").splitlines()
            cache = next((int(row.split()[1]) for row in rows if row.startswith(f"{cache_name} ")), 0)
            yield limit - max(0, use - cache)


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f}"
