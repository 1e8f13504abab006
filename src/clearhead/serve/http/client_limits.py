"""Limits and queues that clients share, such as bytes of memory or tokens of work."""

import heapq
import ipaddress
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


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


@dataclass(eq=False)
class Waiting(Generic[T]):
    """An item in a `FairQueue`, with its client, its cost and its start time among the items of the client."""

    client: Hashable
    start: float
    cost: int
    item: T


@dataclass
class _Lane(Generic[T]):
    """Waiting items of a client, with its start time among the clients and the time among its items."""

    start: float
    own_time: float = 0.0
    waiting: list[Waiting[T]] = field(default_factory=list)


class FairQueue(Generic[T]):
    """Waiting items, in an order that gives each client the same share, however much the others have sent.

    Fair queueing orders the clients, and the requests of each client: a large request does not delay later ones.

    Source: Goyal et al. 1996, "Start-time Fair Queueing"; the cost of an item is its length

    >>> queue = FairQueue[str]()
    >>> queue.add("greedy", [("a", 5), ("b", 5)])
    >>> queue.add("polite", [("c", 1)])
    >>> [waiting.item for waiting in queue.in_order()]
    ['a', 'c', 'b']
    """

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane[T]] = {}
        self._time = 0.0  # start time of the client that was served last

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, client: Hashable, items: Iterable[tuple[T, int]]) -> None:
        """Add the items of a request with their costs."""
        lane = self._lanes.get(client, _Lane(self._time))
        start = lane.own_time
        for item, cost in items:
            lane.waiting.append(Waiting(client, start, cost, item))
            start += cost
        lane.waiting.sort(key=lambda waiting: waiting.start)
        if lane.waiting:
            self._lanes[client] = lane

    def in_order(self) -> Iterator[Waiting[T]]:
        """Yield the items in fair order. The queue must not change meanwhile."""
        # ties go to the client that has waited longest
        heap = [(lane.start, number, lane, 0) for number, lane in enumerate(self._lanes.values())]
        heapq.heapify(heap)
        while heap:
            start, number, lane, index = heap[0]
            waiting = lane.waiting[index]
            yield waiting
            if index + 1 < len(lane.waiting):
                heapq.heapreplace(heap, (start + waiting.cost, number, lane, index + 1))
            else:
                heapq.heappop(heap)

    def remove(self, served: Sequence[Waiting[T]], cancelled: Sequence[Waiting[T]] = ()) -> None:
        """Remove items. Those that are served count for the share of their clients."""
        if served:
            self._time = max(self._time, self._lanes[served[0].client].start)
        for waiting in reversed(served):  # the first item of each client sets its time
            lane = self._lanes[waiting.client]
            lane.start, lane.own_time = lane.start + waiting.cost, waiting.start
        removed = {*served, *cancelled}
        for client in {waiting.client for waiting in removed}:
            lane = self._lanes[client]
            lane.waiting = [waiting for waiting in lane.waiting if waiting not in removed]
            if not lane.waiting:
                del self._lanes[client]  # otherwise the table would grow with every address


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
