"""Tune the memory allocation of a process, and return free memory to the system."""

import ctypes
import functools
import logging
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt` in malloc.h: when free pages are returned, and which blocks get their own pages."""


@functools.cache
def tune_process() -> None:
    """Tune the memory allocation of this process for speed. Call it once, before the first tensor is made.

    It changes the whole process, so the library never calls it. The command line, the server and workers do. It also
    changes the memory use of other libraries in the process. It saves memory in long runs. Encoding paragraphs takes as
    long with it as without it (`benchmarks/overhead/shared_process.py` on an AMD EPYC, Zen 5).

    - glibc keeps freed pages for the next batch.
    - PyTorch places large tensors on huge pages, so that a step of generation reads fewer page table entries.
    - oneDNN caches fewer kernels. It makes one for each number of rows: 60,000 texts left 100 MiB of kernels, and the
      varying batch lengths of a training several gigabytes.

    Settings in the environment win: THP_MEM_ALLOC_ENABLE, LRU_CACHE_CAPACITY and ONEDNN_PRIMITIVE_CACHE_CAPACITY. On
    other systems than Linux, only these variables are set.

    >>> import clearhead
    >>> clearhead.tune_process()  # doctest: +SKIP
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):  # PyTorch's cache, and oneDNN's own
        os.environ.setdefault(cache, "24")
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)  # the largest value that it accepts
        mallopt(_M_TRIM_THRESHOLD, 256 * 2**20)
    else:
        logging.getLogger(__name__).info("this system has no mallopt: only variables of the environment are set")


def trim_memory() -> None:
    """Return free memory between used blocks to the system.

    With texts of varying lengths the heap fragments, and a long run would use more and more memory.
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
