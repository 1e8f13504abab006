"""The load of a soak, its record, and clients that send ordinary requests: polite ones and a greedy one."""

import asyncio
import json
import math
import multiprocessing
import os
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from connection import ClosedError, Connection, encode_request
from offline import Request, differs

MARGIN = 1.0
"""A request that was sent this many seconds before SIGTERM is accepted, also by a server that is slow to read it."""
TIMEOUT = 600
"""Seconds after which a response counts as missing: longer than a slow machine needs for a full queue."""
POLITE = 4
THINK_SECONDS = 0.3
"""Mean time between a response and the next request of a polite client."""
GREEDY_CONNECTIONS = 96
"""Enough to use up the greedy client's share of the queue."""
RARE = {"view": 0.1, "models": 0.3, "health": 0.3, "metrics": 0.3}
"""Weights of the kinds of requests that polite clients send less often than the others."""


@dataclass
class Load:
    """Settings that all client processes share.

    Args:
        address: host and port of the server.
        keys: API key of each client by name.
        requests: ordinary requests.
        large: requests of the greedy client.
        start, end: times of `time.monotonic`; SIGTERM follows the end.
        period: seconds between a start and an end of the greedy client.
        signaled_at: shared time of SIGTERM; infinity before.
    """

    address: tuple[str, int]
    keys: dict[str, str]
    requests: list[Request]
    large: list[Request]
    start: float
    end: float
    period: float
    signaled_at: Any

    def has_greedy(self, now: float) -> bool:
        """Return whether the greedy client sends at a time: in every second period, and at the end."""
        return now >= self.end or int((now - self.start) / self.period) % 2 == 1

    def is_settled(self, now: float) -> bool:
        """Return whether a time is in the second half of a period. In the first, the queue fills or empties."""
        return (now - self.start) % self.period >= self.period / 2

    @property
    def signaled(self) -> bool:
        """Whether SIGTERM was sent."""
        return self.signaled_at.value < math.inf


@dataclass
class Record:
    """Results of the clients of one process.

    Args:
        counts: number of each outcome, such as "translate 200".
        latencies: time, seconds and kind of each correct response of a polite client.
        wrong, unexpected, lost: a line for each wrong result, unexpected status or end, and accepted request without
            its response.
        finished_after_signal: accepted requests that were answered after SIGTERM.
    """

    counts: Counter[str] = field(default_factory=Counter)
    latencies: list[tuple[float, float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    finished_after_signal: int = 0


class Client:
    """A client with a key and an address.

    Args:
        load: the load.
        record: the record of its process.
        name: name of its key.
        source: its address.
    """

    def __init__(self, load: Load, record: Record, name: str, source: str) -> None:
        self.load, self.record, self.name, self.source = load, record, name, source
        self.key = load.keys[name]

    def connect(self, receive_buffer=None):
        """Return a new connection."""
        return Connection(self.load.address, self.source, receive_buffer)

    def note_end(self, kind, sent, what):
        """Record a response that is missing or was refused because of SIGTERM."""
        if not self.load.signaled:
            self.record.unexpected.append(f"{self.name}, {kind}: {what}")
        elif sent < self.load.signaled_at.value - MARGIN:
            self.record.lost.append(f"{self.name}, {kind}: {what}")
        else:
            self.record.counts[f"{kind} refused after SIGTERM"] += 1

    async def ask(self, connection, request, allowed=(200,)):
        """Send a request, check the response, and return its head; None if the connection ended."""
        sent = math.inf
        try:
            async with asyncio.timeout(TIMEOUT):
                start = time.monotonic()
                await connection.send(encode_request(request.path, request.body, key=self.key))
                sent = time.monotonic()
                head, body = await connection.response()
        except ClosedError as error:
            self.note_end(request.kind, sent, f"closed: {error}")
            return None
        except TimeoutError:
            self.note_end(request.kind, sent, f"no response in {TIMEOUT} s")
            return None
        self.check(request, head, body, sent, allowed)
        if head.status == 200:
            self.record.latencies.append((start, time.monotonic() - start, request.kind))
        return head

    def check(self, request, head, body, sent, allowed=(200,)):
        """Check a complete response."""
        is_draining = b'"draining"' in body and (head.status == 503 or request.kind == "stream")
        if is_draining:
            self.note_end(request.kind, sent, "the server drains")
            return
        self.record.counts[f"{request.kind} {head.status}"] += 1
        if head.status not in allowed:
            self.record.unexpected.append(f"{self.name}, {request.kind}: status {head.status}: {body[:200]!r}")
        elif head.status == 200:
            if differs(request.expected, result(request, body)):
                self.record.wrong.append(f"{self.name}, {request.kind}: {request.body!r:.300}: {body[:300]!r}")
            if sent < self.load.signaled_at.value - MARGIN and self.load.signaled:
                self.record.finished_after_signal += 1


def result(request, body):
    """Return the result in a response in the form of `Request.expected`."""
    if request.expected is None:
        return None
    if request.kind == "view":
        return body.decode()
    if request.kind == "stream":
        return [json.loads(part) for part in events(body)[:-1]] if events(body)[-1:] == ["[DONE]"] else body
    return json.loads(body)


def events(body):
    """Return the data of the server-sent events."""
    return [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: ")]


def run_clients(clients, load, sender):
    """Run the clients of a process, and send their record. The process ends with its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    record = Record()
    asyncio.run(clients(load, record))
    sender.send(record)


def _end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


async def polite(load, record):
    """Run the polite clients: each sends one request at a time, and pauses between them."""
    await asyncio.gather(*(_polite(Client(load, record, f"polite {n}", f"127.0.1.{n + 1}"), n) for n in range(POLITE)))


async def _polite(client, seed):
    generator, requests = random.Random(seed), defaultdict(list)
    for request in client.load.requests:
        requests[request.kind].append(request)
    kinds, weights = list(requests), [RARE.get(kind, 1.0) for kind in requests]
    while True:
        try:
            async with client.connect() as connection:
                while True:
                    request = generator.choice(requests[generator.choices(kinds, weights)[0]])
                    head = await client.ask(connection, request)
                    if head is None or head.closes:
                        break
                    await asyncio.sleep(generator.expovariate(1 / THINK_SECONDS))
        except ClosedError as error:
            client.note_end("connection", math.inf, str(error))
            await asyncio.sleep(0.1)
        if client.load.signaled:
            return


async def greedy(load, record):
    """Run the greedy client: it sends on many connections without a pause, in every second period."""
    client = Client(load, record, "greedy", "127.0.2.1")
    await asyncio.gather(*(_greedy(client, seed) for seed in range(GREEDY_CONNECTIONS)))
    record.latencies.clear()  # only those of polite clients count


async def _greedy(client, seed):
    generator = random.Random(seed)
    while not client.load.signaled:
        if not client.load.has_greedy(time.monotonic()):
            await asyncio.sleep(0.2)
            continue
        try:
            async with client.connect() as connection:
                while client.load.has_greedy(time.monotonic()):
                    head = await client.ask(connection, generator.choice(client.load.large), (200, 429, 503))
                    if head is None or head.closes:
                        break
                    if head.status != 200:
                        await asyncio.sleep(0.1)
        except ClosedError as error:
            client.note_end("connection", math.inf, str(error))
            await asyncio.sleep(0.1)
