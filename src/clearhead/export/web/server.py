"""Serve an exported web page on this machine."""

import http.server
import sys
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

    def send_head(self) -> Any:
        """Open the file of a request. Only regular files in the folder are served."""
        try:
            path = Path(self.translate_path(self.path))
            if all(self._is_own(one) for one in (path, path / "index.html", path / "index.htm")):
                return super().send_head()
        except (ValueError, OSError):  # a null byte, a name that is too long, a folder that may not be read
            pass
        self.send_error(http.HTTPStatus.NOT_FOUND)
        return None

    def _is_own(self, path: Path) -> bool:
        """Whether a path is missing, or a file or folder in the served folder: no pipe, and no link to the outside."""
        if not path.exists():
            return True
        is_inside = path.resolve().is_relative_to(Path(self.directory).resolve())
        return is_inside and (path.is_file() or path.is_dir())

    def end_headers(self) -> None:
        """Add a header: a browser must ask whether its copy of a file is still current."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


class PageServer(http.server.ThreadingHTTPServer):
    """Server that ignores browsers which close a connection early."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error of a request, unless the browser went away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def page_server(folder: Path, port: int) -> PageServer:
    """Return a server of a folder, for this machine only.

    Args:
        folder: a folder of `export_web`.
        port: the port; 0 for any that is free.

    Raises:
        ValueError: the port is in use.
    """
    try:
        return PageServer(("127.0.0.1", port), partial(PageHandler, directory=str(folder)))
    except OSError as error:
        raise ValueError(f"port {port} cannot be used: {error.strerror}. Give another --port, or 0 for any") from None
