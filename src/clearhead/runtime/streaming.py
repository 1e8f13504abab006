"""Split a stream of texts into chunks, and prepare the next chunk in the background."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from clearhead.tokenizers.base import iterate_texts

WINDOW_TEXTS = 4096
"""Number of texts of a stream that are sorted by length and computed together."""

_WINDOW_CHARACTERS = 8_000_000

Item = TypeVar("Item")


class PrefixCountError(ValueError):
    """There are fewer or more prefixes than texts."""


def chunked(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of up to `size` texts; a list ends early after eight million characters.

    Raises:
        ValueError: the argument is a single string, or an item is not a string.

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


def with_prefixes(
    chunks: Iterable[list[str]], prefixes: Iterable[str] | None, label: Callable[[int], str]
) -> Iterator[tuple[list[str], list[str] | None]]:
    """Yield each chunk of texts with its prefixes, or with None if there are none.

    Args:
        chunks: the chunks.
        prefixes: one prefix per text, or None.
        label: returns the name of a text in messages, from its index.

    Raises:
        PrefixCountError: there are fewer or more prefixes than texts.

    >>> list(with_prefixes([["a", "b"], ["c"]], ["x", "y", "z"], "text {}".format))
    [(['a', 'b'], ['x', 'y']), (['c'], ['z'])]
    """
    if prefixes is None:
        yield from ((chunk, None) for chunk in chunks)
        return
    remaining, done = iter(prefixes), 0
    for chunk in chunks:
        own = list(itertools.islice(remaining, len(chunk)))
        if len(own) < len(chunk):
            raise PrefixCountError(f"each text has a prefix, which may be empty; {label(done + len(own))} has none")
        yield chunk, own
        done += len(chunk)
    if next(remaining, None) is not None:
        raise PrefixCountError(f"each text has a prefix; there are more prefixes than the {done} texts")


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
