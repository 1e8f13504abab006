"""Available memory, and the check before large allocations."""

import resource

import pytest
import torch

from clearhead.memory import available_memory, check_memory

GIB = 2**30


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
    return root


MEMINFO = f"MemTotal: {64 * 2**20} kB\nMemAvailable: {48 * 2**20} kB\nSwapFree: {2 * 2**20} kB\n"
V1 = "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": MEMINFO}, 50 * GIB),
        (
            {  # version 2: the limit of a group above, and file cache that can be reclaimed
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/user/job\n",
                "sys/fs/cgroup/user/job/memory.max": "max\n",
                "sys/fs/cgroup/user/job/memory.current": f"{GIB}\n",
                "sys/fs/cgroup/user/memory.max": f"{8 * GIB}\n",
                "sys/fs/cgroup/user/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/user/memory.stat": f"anon 1\ninactive_file {GIB}\n",
            },
            6 * GIB,
        ),
        (
            {  # in a container, whose path outside is not there inside
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/../outside\n",
                "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/memory.current": f"{GIB}\n",
                "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
            },
            3 * GIB,
        ),
        (
            {  # version 1
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "5:cpu,cpuacct:/a\n9:memory:/a\n",
                f"{V1}/a/memory.limit_in_bytes": f"{2 * GIB}\n",
                f"{V1}/a/memory.usage_in_bytes": f"{5 * GIB}\n",
                f"{V1}/a/memory.stat": f"total_inactive_file {4 * GIB}\n",
            },
            GIB,
        ),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "damaged"}, 50 * GIB),
    ],
    ids=["system", "version 2", "container", "version 1", "damaged"],
)
def test_available_memory(tmp_path, files, expected):
    assert available_memory(root=write(tmp_path, files)) == expected


def test_address_space_limit(tmp_path):
    import subprocess
    import sys

    code = "from clearhead.memory import available_memory; print(available_memory())"
    limit = 4 * GIB
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert 0 < int(done.stdout) < limit


def test_fallback_is_physical_memory(tmp_path):
    assert available_memory(root=tmp_path) > 2**28


def test_device_without_its_own_memory_is_not_checked():
    assert available_memory(torch.device("meta")) is None
    check_memory(2**80, "a tensor", "Make it smaller.", torch.device("meta"))


def test_message_has_required_and_available_memory_and_advice():
    message = r"a batch needs at least 1,048,576.0 GiB of memory; [\d,.]+ GiB are available. Use a smaller one."
    with pytest.raises(ValueError, match=message):
        check_memory(2**50, "a batch", "Use a smaller one.")
    check_memory(2**20, "a batch", "Use a smaller one.")
