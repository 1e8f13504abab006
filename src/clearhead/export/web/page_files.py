"""The built files of the web page."""

from importlib import metadata
from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""Folder that `web/build.py` writes; the wheel contains it."""

LESSON = ("lesson.html", "lesson.css", "lesson.js")
"""Files of the lesson, which only some models have."""

RUNTIMES = ("runtime.wasm.gz", "runtime_scalar.wasm.gz", "worker_scalar.js.gz")
"""ONNX Runtime Web, and a slower version with its worker for browsers without WebAssembly SIMD or shared memory."""

_NAMES = ("index.html", "page.css", "page.js", "clearhead.js", "licenses.txt", *RUNTIMES, *LESSON)


def page_files() -> list[Path]:
    """Return the files of the page.

    Raises:
        ValueError: this installation has none.
    """
    files = [STATIC / name for name in _NAMES]
    if not all(path.is_file() for path in files):
        raise ValueError(
            "this installation has no files for web pages: it was built without npm. "
            "Install Node.js, and run `make web` in a checkout, or install the wheel again"
        )
    return files


def repository() -> str | None:
    """Return the address of the source code from the package's metadata; None where it has none."""
    try:
        addresses = metadata.metadata("clearhead").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    named = dict(one.split(", ", 1) for one in addresses)
    return named.get("Repository")
