"""Compile the kernels next to this file: `python src/clearhead/kernels/native/build.py`.

The package's build runs it. It uses the standard library only.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "kernels.linux-x86_64.so"

# no -ffast-math and no contraction: a result does not depend on the instruction set
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-ffp-contract=off"]
INSTRUCTION_SETS = {
    "avx512vnni": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma"],
    "avxvnni": ["-mavx2", "-mfma", "-mavxvnni"],
    "avx2": ["-mavx2", "-mfma"],
}


def compiler() -> str | None:
    """Return the C compiler, GCC: $CC, gcc or cc. Clang's OpenMP is not the one of PyTorch's wheels."""
    for name in (os.environ.get("CC", ""), "gcc", "cc"):
        path = shutil.which(name) if name else None
        if (
            path
            and "Free Software Foundation" in subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        ):
            return path
    return None


def build() -> str | None:
    """Compile the kernels, and return None; if they cannot be compiled here, return the reason.

    The library omits instruction sets that the compiler does not know.
    """
    LIBRARY.unlink(missing_ok=True)
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"there are kernels for Linux on x86-64 only, and this is {sys.platform} on {platform.machine()}"
    cc = compiler()
    if cc is None:
        return "GCC was not found"
    with tempfile.TemporaryDirectory() as workspace:
        objects = []
        errors = ""
        for name, flags in INSTRUCTION_SETS.items():
            target = str(Path(workspace, f"{name}.o"))
            command = [cc, *FLAGS, *flags, f"-DISA={name}", "-c", str(FOLDER / "kernels.c"), "-o", target]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode == 0:
                objects.append(target)
            else:
                errors = result.stderr
        # not linked with libgomp: the kernels use the OpenMP library that PyTorch has loaded, and its threads
        library = str(Path(workspace, LIBRARY.name))
        if not objects or subprocess.run([cc, "-shared", "-o", library, *objects, "-lm"]).returncode:
            return f"GCC failed: {errors}"
        shutil.copyfile(library, LIBRARY)
    return None


if __name__ == "__main__":
    reason = build()
    if reason is not None:
        sys.exit(f"the kernels were not compiled: {reason}")
