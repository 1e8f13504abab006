"""Write the page of a run as one self-contained HTML file."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from clearhead.io.atomic import atomic_file

_INLINED = ("page.css", "page.js", "cells.js", "steps.js", "figure.js", "search.js", "attention.js")


def render_page(data: dict[str, Any]) -> str:
    """Return the page as HTML, with styles, scripts and data inside and no external addresses.

    The page is safe for any text: the data is JSON without `<`, and the scripts insert it as text nodes.

    Args:
        data: the data of `collect`.
    """
    parts = resources.files("clearhead.inspection.report") / "assets"
    page = (parts / "page.html").read_text(encoding="utf-8")
    for name in _INLINED:
        page = page.replace(f"/* {name} */", (parts / name).read_text(encoding="utf-8"))
    return page.replace("{data}", json.dumps(data).replace("<", "\\u003c").replace("&", "\\u0026"), 1)


def write_page(data: dict[str, Any], path: Path) -> None:
    """Write the page to a file atomically."""
    with atomic_file(path) as file:
        file.write(render_page(data).encode("utf-8"))
