"""Split a stream of texts into chunks, and prepare the next chunk in the background."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from clearhead.tokenizers.base import iterate_texts

WINDOW_TEXTS = 4096
"""Number of texts of a stream that are sorted by length and computed together."""

_WINDOW_CHARACTERS = 8_000_000

Item = TypeVar("Item")


def chunked(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of up to `size` texts; a list ends early after eight million characters.

    Raises:
        ValueError: as in `check_texts`.

    >>> list(chunked(["a", "b", "c"], 2))
    [['a', 'b'], ['c']]
    """
    chunk: list[str] = []
    characters = 0
    for text in iterate_texts(texts):
        chunk.append(text)
        characters += len(text)
        if len(chunk) == size or characters >= _WINDOW_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items; a thread computes the next item while the caller uses the current one.

    The thread is a daemon: a thread that waits for slow input does not keep the program from ending.
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
