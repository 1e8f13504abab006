"""Build the files of the web page of `clearhead export --to web`: `python web/build.py`, or `make web`.

npm installs the packages from the lock file. The result is part of the wheel and not of the repository.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PACKAGES = tuple(f"node_modules/{name}" for name in ("onnxruntime-web", "onnxruntime-web-scalar", "fflate", "esbuild"))


def build() -> str | None:
    """Install the packages of the lock file, and write the files of the page.

    Returns:
        None, or the reason why they cannot be built.
    """
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return "npm is not installed"
    if not _is_installed():
        done = _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        if done is not None:
            return f"npm ci failed: {done}"
    done = _run([node, "build.mjs"])
    return None if done is None else f"esbuild failed: {done}"


def _is_installed() -> bool:
    """Return whether the versions of the lock file are installed."""
    locked = json.loads((FOLDER / "package-lock.json").read_text("utf-8"))["packages"]
    for name in PACKAGES:
        package = FOLDER / name / "package.json"
        if not package.is_file() or json.loads(package.read_text("utf-8"))["version"] != locked[name]["version"]:
            return False
    return True


def _run(command: list[str]) -> str | None:
    """Run a command in the folder; return the last line of its errors, or None."""
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or ["no message"]
    return None if done.returncode == 0 else lines[-1]


if __name__ == "__main__":
    problem = build()
    if problem is not None:
        sys.exit(problem)
