"""The page: one file that needs nothing else."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from clearhead.io.atomic import atomic_file

_INSIDE = ("page.css", "page.js", "cells.js", "steps.js", "figure.js", "search.js", "attention.js")


def document(data: dict[str, Any]) -> str:
    """The page of what was gathered, as HTML: styles, script and data inside, and no address of anything outside.

    Whatever the texts hold, it shows as text: the data is JSON without any `<`, and the script puts it into the page
    as text alone.
    """
    parts = resources.files("clearhead.inspection.report")
    page = (parts / "page.html").read_text(encoding="utf-8")
    for name in _INSIDE:
        page = page.replace(f"/* {name} */", (parts / name).read_text(encoding="utf-8"))
    return page.replace("{data}", json.dumps(data).replace("<", "\\u003c").replace("&", "\\u0026"), 1)


def write(data: dict[str, Any], path: Path) -> None:
    """Writes the page, whole or not at all."""
    with atomic_file(path) as file:
        file.write(document(data).encode("utf-8"))
