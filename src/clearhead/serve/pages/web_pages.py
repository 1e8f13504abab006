"""The server's own pages, and what a browser may do on them: nothing that is not inside."""

import base64
import functools
import hashlib
import re
from importlib import resources
from typing import Any

from clearhead.inspection.report.html import render_page

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def page(name: str) -> tuple[str, str]:
    """A page and its Content-Security-Policy.

    Args:
        name: "home" or "docs".

    Its own script and styles are allowed by their hashes, and those of the page of a run, which is shown in a frame
    that inherits the policy; it may ask this server, and nobody else.
    """
    parts = resources.files("clearhead.serve.pages")
    text = (parts / f"{name}.html").read_text(encoding="utf-8")
    for file in ("pages.css", f"{name}.js"):
        text = text.replace(f"/* {file} */", (parts / file).read_text(encoding="utf-8"))
    return text, _policy(text + (render_page({}) if name == "home" else ""), connect="'self'")


def run(name: str, made: Any, text: str) -> str:
    """The page of a text's run through a loaded model."""
    from clearhead.inspection.report.collect import collect

    return render_page(collect(name, made, text))


@functools.cache
def run_policy() -> str:
    """The Content-Security-Policy of a run's page, which asks nobody."""
    return _policy(render_page({}), connect="'none'")


def headers(policy: str) -> dict[str, str]:
    """What is sent with a page."""
    return {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}


def _policy(text: str, *, connect: str) -> str:
    """What a browser may do on a page: run its own scripts and styles, known by their hashes."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, inside in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(allowed["script"]),
        "style-src": " ".join(allowed["style"]),
        "connect-src": connect,
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{rule} {value}" for rule, value in rules.items())
