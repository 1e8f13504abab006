"""A stream in windows: what is computed together, and what is prepared meanwhile."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

WINDOW_TEXTS = 4096
"""Texts that are sorted by length and computed together when an input is streamed."""

_WINDOW_CHARACTERS = 8_000_000

Item = TypeVar("Item")


def in_windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of up to `size` texts, and of no more than some millions of characters."""
    some: list[str] = []
    characters = 0
    for text in texts:
        some.append(text)
        characters += len(text)
        if len(some) == size or characters >= _WINDOW_CHARACTERS:
            yield some
            some, characters = [], 0
    if some:
        yield some


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; each is made, in another thread, while the one before it is in use."""
    end = object()
    with ThreadPoolExecutor(max_workers=1) as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield cast(Item, item)
