"""The built files of the web page."""

from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""Folder that `web/build.py` writes; the wheel contains it."""

_NAMES = ("index.html", "page.css", "page.js", "clearhead.js", "runtime.wasm.gz", "licenses.txt")


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
