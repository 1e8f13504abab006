"""Clients that misbehave: slow readers, aborted streams, half requests, oversized and malformed bodies, wrong keys."""

import asyncio
import json
import math
import random
import time

from connection import ClosedError, encode_request
from load import Client

LOOPS = 6
PAUSE_SECONDS = 0.5
"""Mean time between two attacks of a loop."""
SLOW_BUFFER = 4096
STALLED_SECONDS = 80
"""Longer than the time that the server gives a client to read a response."""
BODY_BYTES = 5 * 2**20
"""More than the server accepts."""


async def hostile(load, record):
    """Run all hostile clients."""
    client = Client(load, record, "hostile", "127.0.3.1")
    loops = [_loop(client, [stalled_reader, half_request_until_timeout], 100)]
    await asyncio.gather(*loops, *(_loop(client, ATTACKS, seed) for seed in range(LOOPS)))
    record.latencies.clear()  # only those of polite clients count


async def _loop(client, attacks, seed):
    generator = random.Random(seed)
    while not client.load.signaled:
        attack = generator.choice(attacks)
        sent = time.monotonic()
        try:
            await attack(client, generator)
            client.record.counts[attack.__name__] += 1
        except ClosedError as error:
            client.note_end(attack.__name__, math.inf if client.load.signaled else sent, str(error))
        await asyncio.sleep(generator.expovariate(1 / PAUSE_SECONDS))


async def _pause(client, seconds):
    """Wait some seconds, but not much longer than until SIGTERM."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop and not client.load.signaled:
        await asyncio.sleep(min(0.25, max(0.0, stop - time.monotonic())))


async def slow_reader(client, generator):
    """Read a large response in small parts, and check it."""
    request = client.load.large[0]
    async with client.connect(SLOW_BUFFER) as connection:
        await connection.send(encode_request(request.path, request.body, key=client.key))
        sent = time.monotonic()
        head, parts = await connection.head(), []
        async for part in connection.parts(head):
            parts.append(part)
            await asyncio.sleep(0.02)
        client.check(request, head, b"".join(parts), sent)


async def stalled_reader(client, generator):
    """Never read a large response. The server closes the connection, unless the system has taken all of it."""
    request = client.load.large[0]
    async with client.connect(SLOW_BUFFER) as connection:
        await connection.send(encode_request(request.path, request.body, key=client.key))
        await _pause(client, STALLED_SECONDS)
        connection.reset()


async def aborted_stream(client, generator):
    """Close a stream after some events."""
    request = generator.choice([one for one in client.load.requests if one.kind == "stream"])
    async with client.connect() as connection:
        await connection.send(encode_request(request.path, request.body, key=client.key))
        count, head = generator.randrange(4), await connection.head()
        if not _is_expected(client, head.status, (200,)):
            _unexpected(client, "aborted stream", head.status)
        async for _ in connection.parts(head):
            count -= 1
            if count <= 0:
                break
        if generator.random() < 0.5:
            connection.reset()


async def abandoned_request(client, generator):
    """Close the connection before the response."""
    request = generator.choice([*client.load.requests, *client.load.large[:2]])
    async with client.connect() as connection:
        await connection.send(encode_request(request.path, request.body, key=client.key))
        await asyncio.sleep(generator.uniform(0, 0.3))
        if generator.random() < 0.5:
            connection.reset()


async def half_request(client, generator):
    """Send a part of a request, wait and close the connection."""
    data = _some_request(client, generator)
    async with client.connect() as connection:
        await connection.send(data[: generator.randrange(len(data))])
        await _pause(client, generator.uniform(0, 3))


async def half_request_until_timeout(client, generator):
    """Send a part of a request, and wait until the server gives up."""
    data = _some_request(client, generator)
    async with client.connect() as connection:
        await connection.send(data[: generator.randrange(1, len(data))])
        waiting = asyncio.ensure_future(connection.wait_for_end())
        await asyncio.wait([waiting, asyncio.ensure_future(_pause(client, 60))], return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            answer = waiting.result()
            if answer and not answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 503")):
                _unexpected(client, "half request", answer[:100])
        else:
            waiting.cancel()
            if not client.load.signaled:
                _unexpected(client, "half request", "still open after 60 s")


async def oversized_body(client, generator):
    """Send a body that is too large, or announce one."""
    if generator.random() < 0.3:
        data = encode_request("/classify", json.dumps({"text": "a" * BODY_BYTES}).encode(), key=client.key)
    else:
        data = encode_request("/classify", b"{", key=client.key, headers=[f"content-length: {10**10}"])
    await _expect(client, data, {413})


async def malformed_body(client, generator):
    """Send JSON that is invalid, has wrong values, or names what does not exist."""
    request = generator.choice([one for one in client.load.requests if one.body])
    text = json.dumps(request.body).encode()
    data, statuses = generator.choice(
        [
            (encode_request(request.path, text[:-1], key=client.key), {422}),
            (encode_request(request.path, b"\xff" + text, key=client.key), {400, 422}),
            (encode_request(request.path, request.body | {"unknown": 1}, key=client.key), {422}),
            (encode_request(request.path, request.body | {"model": 5}, key=client.key), {422}),
            (encode_request(request.path, request.body | {"model": "unknown"}, key=client.key), {404}),
            (encode_request("/classify", {"text": "long " * 600}, key=client.key), {400}),
            (encode_request("/translate", {"text": ["a", "b"], "stream": True}, key=client.key), {400}),
            (encode_request("/unknown", request.body, key=client.key), {404}),
            (encode_request(request.path, key=client.key), {405}),
            (b"NONSENSE\r\n\r\n", {400}),
        ]
    )
    await _expect(client, data, statuses)


async def wrong_key(client, generator):
    """Send a request with a wrong key or none."""
    request = generator.choice([one for one in client.load.requests if one.kind != "health"])
    key = generator.choice([None, client.key[:-1], client.key + "x", "x" * 1000])
    await _expect(client, encode_request(request.path, request.body, key=key), {401})


ATTACKS = [
    *(slow_reader, aborted_stream, aborted_stream, abandoned_request, half_request),
    *(oversized_body, malformed_body, malformed_body, wrong_key),
]


async def _expect(client, data, statuses):
    async with client.connect() as connection:
        await connection.send(data)
        head, body = await connection.response()
        if not _is_expected(client, head.status, statuses):
            _unexpected(client, f"request {data[:200]!r}", f"{head.status}, not {statuses}: {body[:200]!r}")


def _is_expected(client, status, statuses):
    """Whether a response has one of these statuses, or is refused after SIGTERM."""
    return status in statuses or (client.load.signaled and status == 503)


def _some_request(client, generator):
    request = generator.choice(client.load.requests)
    return encode_request(request.path, request.body, key=client.key)


def _unexpected(client, what, found):
    client.record.unexpected.append(f"{client.name}, {what}: {found}")
