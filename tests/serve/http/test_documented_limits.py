"""The limits that docs/deploy.md states are those of the server. Other tests check what happens at each limit."""

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from clearhead.generation.config import GenerationConfig
from clearhead.serve.handlers import base
from clearhead.serve.handlers.generation import GenerationHandler
from clearhead.serve.handlers.view import ViewRequest
from clearhead.serve.http import framing
from clearhead.serve.http.request_bodies import BodyBudget
from clearhead.serve.server import read_api_keys
from clearhead.serve.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "deploy.md").read_text(encoding="utf-8")
SETTINGS = Settings(models=[])
MB = 2**20


@pytest.mark.parametrize(
    "sentence",
    [
        f"a body over {SETTINGS.max_body_bytes // MB} MB",
        f"bodies of all clients over {SETTINGS.max_buffered_bytes // MB} MB",
        f"more than {SETTINGS.max_connections:,} connections",
        f"unread responses over {SETTINGS.max_unread_bytes // MB} MB",
        f"headers not complete in {SETTINGS.header_seconds:.0f} s, or a body in {SETTINGS.body_seconds:.0f} s",
        f"a response not read in {SETTINGS.response_seconds:.0f} s",
        f"more than {SETTINGS.max_generated_tokens:,} tokens",
        f"Accepted requests have {SETTINGS.drain_seconds:.0f} seconds",
        f"headers over {framing.MAX_HEADER_BYTES // 1024} KB or {framing._MAX_HEADERS} lines",
        f"exact up to {base._MAX_COUNTED_TOKENS:,} tokens",
    ],
)
def test_page_states_the_limit(sentence):
    assert sentence in PAGE


@pytest.mark.parametrize(("limit", "expected"), [(100, 10 + 3 * 36), (30, 10 + 3 * 30)])
def test_cost_of_a_generation_is_twice_the_input_plus_16(limit, expected):
    handler = SimpleNamespace(max_new_tokens=lambda config: limit)
    assert GenerationHandler.cost(handler, 10, GenerationConfig(beam_size=3)) == expected


@pytest.mark.parametrize("expected", [7, 400])
def test_a_body_over_the_limit_is_read_up_to_four_times_its_size(expected):
    assert "up to four times that is read" in PAGE
    budget = BodyBudget(max_body_bytes=100, max_buffered_bytes=1000, seconds=5.0)
    read = 0

    async def receive():
        nonlocal read
        read += 1
        return {"type": "http.request", "body": b"a", "more_body": read < (expected if expected == 7 else 10**6)}

    with budget.reader({b"content-length": b"1000000"}, receive) as reader:
        asyncio.run(reader.drain())
    assert read == expected


def test_short_api_keys_are_refused(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text("0123456789abcdef\n", encoding="utf-8")
    assert read_api_keys(path) == ["0123456789abcdef"]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # of an editor on Windows
    assert read_api_keys(path) == ["0123456789abcdef"]
    path.write_text("0123456789abcde\n", encoding="utf-8")
    with pytest.raises(ValueError, match="an API key needs at least 16 characters"):
        read_api_keys(path)
    path.write_bytes(b"\xff0123456789abcdef\n")
    with pytest.raises(ValueError, match=rf"{path} is not UTF-8"):
        read_api_keys(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_api_keys_may_be_in_a_pipe(tmp_path):
    path = tmp_path / "keys"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text("0123456789abcdef\n", encoding="utf-8"))
    writer.start()
    assert read_api_keys(path) == ["0123456789abcdef"]
    writer.join()


def test_text_of_a_report_has_at_most_2000_characters():
    assert ViewRequest(text="a" * 2000).text == "a" * 2000
    with pytest.raises(ValidationError, match="at most 2000 characters"):
        ViewRequest(text="a" * 2001)
