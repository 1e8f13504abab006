"""Hostile requests to a server: generated from its OpenAPI document, and changed byte by byte."""

import atexit
import contextlib
import functools
import http.client
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutations
from fuzz.outcomes import Case, CaseRandom, Target

PER_CASE = 30
"""Requests of a case: the generator takes most of the time of its first request."""
SECONDS = 90
"""Time after which the requests of a case count as stuck."""
GENERATOR_MB = 4000
"""Memory that a case with generated requests may take: that of the generator, which makes arrays of any length."""
MODELS = ("bert", "classifier", "reader", "reranker", "marian", "index")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "bert", "input": ["the old bridge", "storm"], "encoding_format": "float"},
    "/v1/rerank": {"model": "reranker", "query": "bridge", "documents": ["the storm", {"text": "x"}], "top_n": 1},
    "/search": {"model": "index", "query": "the old bridge", "top_k": 2},
    "/translate": {"model": "marian", "text": "the storm", "beam_size": 2, "max_new_tokens": 3, "length_penalty": 1.0},
    "/summarize": {"model": "marian", "text": ["the storm"], "max_new_tokens": 3},
    "/answer": {"model": "reader", "question": "who?", "context": "the old bridge", "n_best": 2},
    "/classify": {"model": "classifier", "text": ["the storm"], "truncate": True},
    "/view": {"model": "bert", "text": "the storm"},
}
GET_PATHS = ("/health/live", "/health/ready", "/metrics", "/v1/models", "/v1/models/{name}")
MAX_GROWTH_MB = 600
"""Growth of the server's peak memory that all requests together may cause."""
NOT_IMPLEMENTED = {501, 505}
"""Statuses of a request whose method or version of HTTP the server does not implement."""


def prepare(folder: Path) -> None:
    """Write a model for each task, and an index."""
    from support.models.served import write_models

    write_models(folder)


@functools.cache
def start_server(folder: Path) -> tuple[Any, float]:
    """Start a server for this process, which ends with the process; return it and its peak memory."""
    from support import served

    running = contextlib.ExitStack()
    atexit.register(running.close)
    models = {name: folder / name for name in MODELS}
    server = running.enter_context(served.server(models, tasks=["marian=translate,summarize"]))
    return server, server.peak_memory()


def _counted(originals: Path, send: Callable[[], int]) -> int:
    """Send requests, check the memory of the server, and return the number of the requests."""
    server, before = start_server(originals)
    count = send()
    grown = server.peak_memory() - before
    assert grown < MAX_GROWTH_MB, f"the server's memory has grown by {grown:,.0f} MB"
    return count


@functools.cache
def _document(address: str) -> Any:
    import schemathesis

    return schemathesis.openapi.from_url(f"{address}/openapi.json")


def make(originals: Path, random: CaseRandom, workspace: Path) -> Case:
    """Return a case of several requests to one operation."""
    address = start_server(originals)[0].address
    paths = [*sorted(BODIES), *GET_PATHS]
    path = paths[random.number % len(paths)]
    method = "POST" if path in BODIES else "GET"
    kinds = ["valid", "invalid", "changed", "bytes"]
    if method == "GET":
        kinds.remove("invalid")  # they have no parameters
    kind = kinds[random.number // len(paths) % len(kinds)]
    if kind in ("valid", "invalid"):
        number = random.randrange(2**32)
        return Case(
            f"{kind} requests for {method} {path}",
            lambda: _counted(originals, lambda: _generated(address, method, path, kind, number)),
            [path],
            memory_mb=GENERATOR_MB,
            seconds=SECONDS,
        )
    requests = [_changed(method, path, kind, random) for _ in range(PER_CASE)]
    return Case(
        f"{method} {path}: {kind}",
        lambda: _counted(originals, lambda: _send_all(address, requests)),
        [path],
        seconds=SECONDS,
    )


def _generated(address: str, method: str, path: str, kind: str, number: int) -> int:
    """Send requests that are valid or invalid by the OpenAPI document, check the responses against it, and count them."""
    import requests
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks

    count = 0
    mode = GenerationMode.POSITIVE if kind == "valid" else GenerationMode.NEGATIVE
    used = [not_a_server_error, checks.content_type_conformance, checks.response_schema_conformance]
    used += [checks.status_code_conformance, checks.negative_data_rejection]
    quiet = [
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ]

    @seed(number)
    @settings(max_examples=PER_CASE, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=quiet)
    @given(case=_document(address)[path][method].as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        nonlocal count
        count += 1
        if kind == "valid" and path in BODIES and isinstance(case.body, dict):
            case.body["model"] = BODIES[path]["model"]  # a loaded one, or no request comes as far as a model
            if "max_new_tokens" in BODIES[path]:  # a search with 16 beams to the limit of the model takes minutes
                case.body |= {"max_new_tokens": 3} if count % 5 else {"beam_size": 1}
        try:
            response = case.call(timeout=SECONDS)
        except requests.RequestException as error:  # an OSError, which would count as a refusal
            raise AssertionError(f"{method} {path}: no response: {error}") from None
        # schemathesis does not know that 413 refuses a request, too
        case.validate_response(response, checks=used[:-1] if response.status_code == 413 else used)

    send()
    return count


def _changed(method: str, path: str, kind: str, random: Random) -> tuple[str, bytes, bool]:
    """Return a description and the bytes of a request with changed JSON or changed bytes; a GET may have a body, too."""
    body: Any = BODIES.get(path, {"model": "bert"})
    path = path.replace("{name}", random.choice(["bert", "x", "..", "%00", "a/b", "%ff", "bert?x=1", "x" * 9000]))
    what = ""
    if kind == "changed":
        for _ in range(random.choice([1, 1, 2])):
            body, one = mutations.change_value(body, random)
            what += f"{one}; "
    content = mutations.json_text(body, random)
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    request = f"{head}content-length: {len(content)}\r\n\r\n".encode() + content
    if kind == "bytes":
        part = random.choice(["request", "body", "header"])
        if part == "request":
            request, what = mutations.change_bytes(request, random)
        elif part == "body":
            content, what = mutations.change_bytes(content, random)
            request = f"{head}content-length: {len(content)}\r\n\r\n".encode() + content
        else:
            what = random.choice(HEADERS)
            request = f"{head}{what}\r\ncontent-length: {len(content)}\r\n\r\n".encode("latin-1") + content
    may_close = kind == "bytes" and (part == "request" or len(what) > 50_000)  # closed while it is still sent
    return f"{path[:200]}: {what[:200]}", request, may_close


HEADERS = [
    *("content-length: -1", "content-length: 1", "content-length: 99999999999999999999", "content-length: 5, 6"),
    *("transfer-encoding: chunked", "transfer-encoding: gzip", "transfer-encoding: chunked, identity", "te: x"),
    *("expect: 100-continue", "expect: x", "content-type: text/plain", "content-type: application/json; charset=utf-16"),
    *("content-encoding: gzip", "authorization: Bearer x", "authorization: \xff", "host: y", "host:", "x: " + "y" * 70_000),
    *("x-request-id: a b", "x-request-id: " + "9" * 500, "connection: upgrade", "upgrade: websocket", "accept: text/html"),
    *("range: bytes=0-1", "x\0: y", "no colon", " folded: x", "content-length: 0x10", "cookie: " + "a=b;" * 1000),
]  # fmt: skip


def _send_all(address: str, requests: list[tuple[str, bytes, bool]]) -> int:
    """Send requests, check their responses and that the server still answers, and return their number."""
    for what, request, may_close in requests:
        _send(address, what, request, may_close)
    try:
        urllib.request.urlopen(f"{address}/health/live", timeout=SECONDS).close()
    except OSError as error:
        raise AssertionError(f"the server does not answer after {requests[-1][0]}: {error}") from None
    return len(requests)


def _send(address: str, what: str, request: bytes, may_close: bool) -> None:
    """Send the bytes of a request and check the response, which may be missing if the bytes may be no request."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        with contextlib.suppress(OSError):  # an early refusal
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        status, content = _response(connection)
    if status == 0 and not may_close:
        raise AssertionError(f"{what}: no response")
    if status >= 500 and status not in NOT_IMPLEMENTED:
        raise AssertionError(f"{what}: status {status}: {content[:300]!r}")
    if 400 <= status < 500 and content and b"error" not in content and b"Invalid HTTP" not in content:
        raise AssertionError(f"{what}: status {status} without an error message: {content[:300]!r}")
    if b"Traceback" in content:
        raise AssertionError(f"{what}: traceback in the response")


def _response(connection: socket.socket) -> tuple[int, bytes]:
    """Return the status and body of a response; 0 for a connection that the server closed without one."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return response.status, response.read()
    except (http.client.HTTPException, ConnectionError):
        return 0, b""


TARGET = Target(prepare, make)
