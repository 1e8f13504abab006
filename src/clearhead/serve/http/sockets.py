"""Open the sockets that the server listens on."""

import errno
import socket
from typing import Any

_ADVICE = {
    errno.EADDRINUSE: "address already in use; choose another port with --port (0 for any free one)",
    errno.EACCES: "no permission; ports below 1024 may need extra rights: choose a higher one with --port",
    errno.EADDRNOTAVAIL: "not an address of this machine; choose one with --host, such as 127.0.0.1 or 0.0.0.0",
}


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host name.

    Args:
        host: a name or an address of this machine; "" for every address.
        port: 0 for any free one.
        backlog: connections that may wait to be accepted.

    Raises:
        ValueError: the name cannot be resolved, or an address cannot be listened on.
    """
    try:
        # a name that no domain name can be raises UnicodeError
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ValueError(
            f"cannot resolve the host name {host!r}; give an address of this machine with --host, such as 127.0.0.1"
        ) from None
    sockets: list[socket.socket] = []
    failed = ""
    for family, address in dict.fromkeys((one[0], one[4]) for one in found):
        try:
            sockets.append(socket.create_server(address, family=family, backlog=backlog))
        except OSError as error:
            failed = f"cannot listen on {written(address)}: {_ADVICE.get(error.errno or 0, error.strerror)}"
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # localhost is ::1 also without IPv6
                break
    else:
        if sockets:
            return sockets
    for one in sockets:
        one.close()
    raise ValueError(failed)


def written(address: tuple[Any, ...]) -> str:
    """Return an address and its port as they stand in a URL."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
