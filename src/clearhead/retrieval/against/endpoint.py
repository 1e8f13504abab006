"""Vectors from an endpoint with OpenAI's API."""

import http.client
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np

from clearhead.runtime.vectors import Vectors

_TIMEOUT = 60.0
"""Seconds that an endpoint has for a whole answer."""
_MAX_BYTES = 64 * 2**20
"""Maximum size of an answer: a vector of a million columns has about 20 MB."""
_REFUSALS = (400, 413, 422)
"""Statuses with which an endpoint refuses a text; the body says why."""


def vector_of_endpoint(url: str, name: str | None = None) -> Callable[[str], Vectors]:
    """Return a function that asks an endpoint for the vector of a text.

    Args:
        url: address of the endpoint, with or without /v1 and /embeddings.
        name: name of the model; None for the only one of the endpoint.

    Raises:
        ValueError: the URL is not one, or the endpoint has several models. The function raises it for a text that the
            endpoint refuses, and for an answer without a vector.
        OSError: the endpoint cannot be reached, or does not answer in time. The function raises it, too.
    """
    if not url.partition("://")[2].strip("/ "):
        raise ValueError(f"{url} is not a URL: it has no host")
    base = url.rstrip("/").removesuffix("/embeddings")
    base = base if base.endswith("/v1") else f"{base}/v1"
    model = _only_model(base) if name is None else name

    def vector_of(text: str) -> Vectors:
        answer = _request(f"{base}/embeddings", {"model": model, "input": text})
        try:
            values = answer["data"][0]["embedding"]
            if all(type(value) in (int, float) for value in values):
                with np.errstate(over="ignore"):  # infinity is a difference
                    return np.array(values, np.float32)
        except (KeyError, IndexError, TypeError, OverflowError):
            pass
        raise ValueError(f"{base}/embeddings returned no embedding: {_start(json.dumps(answer))}")

    return vector_of


def _only_model(base: str) -> str:
    answer = _request(f"{base}/models")
    try:
        names = [str(model["id"]) for model in answer["data"]]
    except (KeyError, TypeError):
        raise ValueError(f"{base}/models lists no models; name the model of the endpoint with --name") from None
    if len(names) != 1:
        listed = _start(", ".join(names) or "(none)")
        raise ValueError(f"{base} has the models {listed}; choose one with --name")
    return names[0]


def _request(url: str, body: object = None) -> Any:
    """Return the JSON that a URL answers, with the key in OPENAI_API_KEY if it is set."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        if not (key.isascii() and key.isprintable()):
            raise ValueError("OPENAI_API_KEY has a line break or another character that no key has; set it again")
        headers["authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
        content = _answer(request)
    except urllib.error.HTTPError as error:
        if error.code in range(300, 400) and (location := error.headers.get("location")):
            raise OSError(f"{url} answered {error.code}: it has moved to {_start(location)}; give that URL") from None
        is_refusal = error.code in _REFUSALS and body is not None
        raise (ValueError if is_refusal else OSError)(
            f"{url} answered {error.code}: {_start(str(error.reason))}"
        ) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise OSError(f"{url} cannot be reached: {_start(str(reason)) or type(error).__name__}") from None
    except (http.client.InvalidURL, ValueError) as error:
        raise ValueError(f"{url} is not a URL: {_start(str(error))}") from None
    except (http.client.HTTPException, OverflowError) as error:  # of a chunk's size
        raise OSError(f"{url} did not answer as HTTP requires: {_start(str(error))}") from None
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{url} answered with more than {_MAX_BYTES // 2**20} MB")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{url} did not answer with JSON") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key is for one server."""

    def redirect_request(self, *arguments: object) -> None:
        """Do not follow a redirect."""


def _answer(request: urllib.request.Request) -> bytes:
    """Return the bytes of an answer that is complete in time.

    urllib limits the time of each read only, so a server that sends single bytes would never end it.
    """
    results = list[bytes | Exception]()

    def read() -> None:
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT) as answer:
                results.append(answer.read(_MAX_BYTES + 1))
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _REFUSALS:
                    error.msg = _refusal(error)
            results.append(error)
        except Exception as error:  # raised again below
            results.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    result = results[0] if results else TimeoutError(f"no complete answer in {_TIMEOUT:g} s")
    if isinstance(result, Exception):
        raise result
    return result


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        return _start(error.read(1000).decode(errors="replace"))
    except (OSError, http.client.HTTPException, OverflowError):
        return "(an incomplete answer)"


def _start(text: str) -> str:
    """Return the start of a server's text, in one line."""
    return "".join(one if one.isprintable() else " " for one in text[:200])
