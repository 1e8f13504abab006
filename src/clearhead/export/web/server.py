"""Serve an exported web page on this machine."""

import http.server
from functools import partial
from pathlib import Path
from typing import Any

_TYPES = {".js": "text/javascript", ".json": "application/json", ".gz": "application/gzip"}
"""Types that the operating system may define otherwise."""


class PageHandler(http.server.SimpleHTTPRequestHandler):
    """Handler that sends the files of a folder, and logs nothing."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | _TYPES

    def log_message(self, format: str, *arguments: Any) -> None:
        """Ignore a request."""

    def end_headers(self) -> None:
        """Add a header: a browser must ask whether its copy of a file is still current."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


def page_server(folder: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of a folder, for this machine only.

    Args:
        folder: a folder of `export_web`.
        port: the port; 0 for any that is free.

    Raises:
        ValueError: the port is in use.
    """
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), partial(PageHandler, directory=str(folder)))
    except OSError as error:
        raise ValueError(f"port {port} cannot be used: {error.strerror}. Give another --port, or 0 for any") from None
