"""Web pages of the server, with a Content-Security-Policy that allows only their own scripts and styles."""

import base64
import functools
import hashlib
import re
from importlib import resources
from typing import Any

from clearhead.inspection.report.html import render_page

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def page(name: str) -> tuple[str, str]:
    """Return a page and its Content-Security-Policy.

    The policy allows its scripts and styles by their hashes. The home page shows reports in a frame, which inherits the
    policy, so it allows theirs too. The page can connect only to this server.

    Args:
        name: "home" or "docs".
    """
    folder = resources.files("clearhead.serve.pages")
    text = (folder / f"{name}.html").read_text(encoding="utf-8")
    for file in ("pages.css", f"{name}.js"):
        text = text.replace(f"/* {file} */", (folder / file).read_text(encoding="utf-8"))
    return text, _policy(text + (render_page({}) if name == "home" else ""), connect="'self'")


def report(name: str, pipeline: Any, text: str) -> str:
    """Return the HTML report of a forward pass.

    Args:
        name: name of the model.
        pipeline: the loaded model.
        text: the text.
    """
    from clearhead.inspection.report.collect import collect

    return render_page(collect(name, pipeline, text))


@functools.cache
def report_policy() -> str:
    """Return the Content-Security-Policy of a report, which makes no connections."""
    return _policy(render_page({}), connect="'none'")


def security_headers(policy: str) -> dict[str, str]:
    """Return the security headers of a page with a Content-Security-Policy."""
    return {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}


def _policy(text: str, *, connect: str) -> str:
    """Return a policy that allows only the inline scripts and styles of a page."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(hashes["script"]),
        "style-src": " ".join(hashes["style"]),
        "connect-src": connect,
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{rule} {value}" for rule, value in rules.items())
