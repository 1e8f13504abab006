"""A stream in windows: what is computed together, and what is prepared meanwhile."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

WINDOW_TEXTS = 4096
"""Texts that are sorted by length and computed together when an input is streamed."""

_WINDOW_CHARACTERS = 8_000_000

Item = TypeVar("Item")


def chunked(texts: Iterable[str], size: int) -> Iterator[list[str]]:
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


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; each is made, in another thread, while the one before it is in use.

    The thread is a daemon: one that waits for slow input does not keep the program from ending.
    """
    end = object()

    def fetch(box: list[object]) -> None:
        try:
            box.append(next(items, end))
        except BaseException as error:
            box.append(_Raised(error))

    def start() -> tuple[threading.Thread, list[object]]:
        box: list[object] = []
        thread = threading.Thread(target=fetch, args=(box,), daemon=True)
        thread.start()
        return thread, box

    thread, box = start()
    while True:
        thread.join()
        (item,) = box
        if isinstance(item, _Raised):
            raise item.error
        if item is end:
            return
        thread, box = start()
        yield cast(Item, item)


@dataclass(frozen=True)
class _Raised:
    error: BaseException
