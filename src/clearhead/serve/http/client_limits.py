"""Limits that clients share, such as bytes of memory or tokens of work."""

import ipaddress
from collections import Counter
from collections.abc import Hashable


class Shares:
    """A limit on what all clients hold, of which one client cannot use up everything.

    A client that already holds something may add to it only while it leaves as much free as it holds itself. One client
    adds up to half of the limit, two add up to a third each, so that a new client finds room. The first thing that a
    client holds may be of any size within the limit: otherwise a large request would be refused forever.

    Source: Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory packet switches", alpha = 1

    Args:
        limit: the most that all clients may hold.

    >>> shares = Shares(10)
    >>> shares.take("greedy", 4), shares.take("greedy", 2), shares.take("new", 3)
    (True, False, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self._of: Counter[Hashable] = Counter()

    def take(self, client: Hashable, amount: int, *, instead_of: int = 0) -> bool:
        """Reserve an amount for a client and return whether there was room.

        Args:
            client: who holds it.
            amount: how much.
            instead_of: what the client already holds and the amount replaces. A smaller amount always has room.
        """
        other, held = self._of[client] - instead_of, self.held - instead_of + amount
        if amount > instead_of and (held > self.limit or (other and other + amount > self.limit - held)):
            return False
        self.held = held
        self._set(client, other + amount)
        return True

    def release(self, client: Hashable, amount: int) -> None:
        """Return an amount that a client held."""
        self.held -= amount
        self._set(client, self._of[client] - amount)

    def _set(self, client: Hashable, amount: int) -> None:
        if amount:
            self._of[client] = amount
        else:
            self._of.pop(client, None)  # addresses come and go


def network(client: tuple[str, int] | None) -> str:
    """Return the part of a peer's address that stands for one client: an IPv4 address, or an IPv6 network of 64 bits.

    One IPv6 client can use any address of its network.

    >>> network(("192.0.2.7", 50000)), network(("::ffff:192.0.2.7", 50000)), network(("2001:db8::7", 50000))
    ('192.0.2.7', '192.0.2.7', '2001:db8::')
    """
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))
