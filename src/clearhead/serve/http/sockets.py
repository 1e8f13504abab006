"""Listening sockets of the server."""

import errno
import socket
from typing import Any

_MESSAGES = {
    errno.EADDRINUSE: "address already in use; choose another port with --port (0 for any free one)",
    errno.EACCES: "no permission; ports below 1024 may need extra rights: choose a higher one with --port",
    errno.EADDRNOTAVAIL: "not an address of this machine; choose one with --host, such as 127.0.0.1 or 0.0.0.0",
}


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host name.

    Args:
        host: a host name or an address of this machine; "" for every address.
        port: a port; 0 for any free port.
        backlog: maximum number of connections that wait to be accepted.

    Raises:
        ValueError: the name cannot be resolved, or listening on an address fails.
    """
    try:
        # an invalid domain name raises UnicodeError
        results = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ValueError(
            f"cannot resolve the host name {host!r}; give an address of this machine with --host, such as 127.0.0.1"
        ) from None
    sockets: list[socket.socket] = []
    message = ""
    for family, address in dict.fromkeys((result[0], result[4]) for result in results):
        try:
            sockets.append(socket.create_server(address, family=family, backlog=backlog))
        except OSError as error:
            message = f"cannot listen on {format_address(address)}: {_MESSAGES.get(error.errno or 0, error.strerror)}"
            if error.errno not in (
                errno.EADDRNOTAVAIL,
                errno.EAFNOSUPPORT,
            ):  # localhost resolves to ::1 even without IPv6
                break
    else:
        if sockets:
            return sockets
    for opened in sockets:
        opened.close()
    raise ValueError(message)


def format_address(address: tuple[Any, ...]) -> str:
    """Return the host and port of an address as in a URL."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
