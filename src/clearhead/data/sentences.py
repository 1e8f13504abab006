"""Long texts in parts, cut where sentences end."""

import re
from collections.abc import Callable, Iterator, Sequence

# closing marks belong to the sentence; Chinese and Japanese write no blank behind a full stop
_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[”』」]*\s*|\s*\n\s*\n\s*")


def sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the blanks between them.

    A sentence ends at a full stop, question mark, exclamation mark or ellipsis before a blank, and at an empty line;
    so an abbreviation before a blank ends one too.

    >>> from clearhead.data.sentences import sentences
    >>> sentences('It rained. "Did it?" It did.')
    ['It rained.', '"Did it?"', 'It did.']
    """
    found: list[str] = []
    start = 0
    for match in _END.finditer(text):
        found.append(text[start : match.start()] + match.group().rstrip())
        start = match.end()
    return [sentence for sentence in (*found, text[start:]) if sentence.strip()]


def split_by_tokens(text: str, count: Callable[[Sequence[str]], list[int]], limit: int) -> list[str]:
    """A text as parts of up to `limit` tokens, alike in length, cut between sentences.

    A sentence that is longer than the limit is cut between words, and a word that is, between characters.

    Args:
        text: the text.
        count: the number of tokens of each of several texts; what stands around each text counts for each sentence, so
            that parts are rather too short than too long.
        limit: tokens in a part.
    """
    pieces = list(_short_enough(sentences(text), count, limit))
    lengths = count(pieces)
    # as many parts as there must be, none much shorter than another
    wanted = sum(lengths) / -(-sum(lengths) // limit)
    parts: list[list[str]] = [[]]
    held = done = 0
    for piece, length in zip(pieces, lengths, strict=True):
        full = held + length > limit
        near = done + length / 2 >= wanted * len(parts)
        if parts[-1] and (full or near):
            parts.append([])
            held = 0
        parts[-1].append(piece)
        held += length
        done += length
    return [" ".join(part) for part in parts]


def _short_enough(pieces: Sequence[str], count: Callable[[Sequence[str]], list[int]], limit: int) -> Iterator[str]:
    for piece, length in zip(pieces, count(pieces), strict=True):
        if length <= limit or len(piece) == 1:
            yield piece
            continue
        words = piece.split()
        middle = len(words) // 2
        if middle:
            halves = [" ".join(words[:middle]), " ".join(words[middle:])]
        else:
            halves = [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
        yield from _short_enough(halves, count, limit)
