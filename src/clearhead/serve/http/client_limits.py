"""Limits that clients share, such as bytes of memory or tokens of work."""

import ipaddress
from collections import Counter
from collections.abc import Hashable


class FairLimit:
    """A limit on the total usage of all clients that keeps room for new clients.

    A client that already uses an amount can add to it only while the free amount is at least as large as its usage
    after the addition. One client can add up to half of the limit, two can add up to a third each. The first amount of
    a client can be as large as the limit; otherwise a large request would never be accepted.

    Source: Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory packet switches", alpha = 1

    Args:
        limit: maximum total usage.

    >>> limit = FairLimit(10)
    >>> limit.acquire("greedy", 4), limit.acquire("greedy", 2), limit.acquire("new", 3)
    (True, False, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._used_by: Counter[Hashable] = Counter()

    def acquire(self, client: Hashable, amount: int, *, replaces: int = 0) -> bool:
        """Reserve an amount for a client and return whether there was room.

        Args:
            client: the client that uses the amount.
            amount: the amount.
            replaces: a reserved amount of the client that is released instead. A smaller amount always has room.
        """
        other, used = self._used_by[client] - replaces, self.used - replaces + amount
        if amount > replaces and (used > self.limit or (other and other + amount > self.limit - used)):
            return False
        self.used = used
        self._set(client, other + amount)
        return True

    def release(self, client: Hashable, amount: int) -> None:
        """Release an amount of a client."""
        self.used -= amount
        self._set(client, self._used_by[client] - amount)

    def _set(self, client: Hashable, amount: int) -> None:
        if amount:
            self._used_by[client] = amount
        else:
            self._used_by.pop(client, None)  # otherwise the table would grow with every address


def client_network(client: tuple[str, int] | None) -> str:
    """Return the part of an address that identifies a client: an IPv4 address, or the /64 network of an IPv6 address.

    An IPv6 client can use any address of its network.

    >>> client_network(("192.0.2.7", 50000)), client_network(("::ffff:192.0.2.7", 50000))
    ('192.0.2.7', '192.0.2.7')
    >>> client_network(("2001:db8::7", 50000))
    '2001:db8::'
    """
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))
