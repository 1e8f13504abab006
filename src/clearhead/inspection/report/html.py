"""Write the page of a run as one self-contained HTML file."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from clearhead.io.atomic import atomic_file

_PLACEHOLDER = re.compile(r"/\* ([a-z/]+\.(?:css|js)) \*/")
_MODULE_SYNTAX = re.compile(r"^import .*\n|^export ", re.MULTILINE)


def render_page(data: dict[str, Any]) -> str:
    """Return the page as HTML, with styles, scripts and data inside and no external addresses.

    The page is safe for any text: the data is JSON without `<`, and the scripts insert it as text nodes.

    Args:
        data: the data of `collect`.
    """
    parts = resources.files("clearhead.inspection.report") / "assets"
    page = (parts / "page.html").read_text(encoding="utf-8")

    def inlined(placeholder: re.Match[str]) -> str:
        # the files of drawing/ are ES modules, which other pages import; here, all files are one script
        return _MODULE_SYNTAX.sub("", (parts / placeholder[1]).read_text(encoding="utf-8"))

    values = json.dumps(data).replace("<", "\\u003c").replace("&", "\\u0026")
    return _PLACEHOLDER.sub(inlined, page).replace("{data}", values, 1)


def write_page(data: dict[str, Any], path: Path) -> None:
    """Write the page to a file atomically."""
    with atomic_file(path) as file:
        file.write(render_page(data).encode("utf-8"))
