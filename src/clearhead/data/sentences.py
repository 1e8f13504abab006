"""Split long texts at sentence boundaries."""

import re
from collections.abc import Callable, Iterator, Sequence

_TITLES = r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bProf\.)"
# closing marks belong to the sentence; Chinese and Japanese have no space after a full stop
_END = re.compile(rf"{_TITLES}(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[”』」]*\s*|\s*\n\s*\n\s*")


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order, without the whitespace between them.

    A sentence ends at a full stop, question mark, exclamation mark or ellipsis before whitespace, and at an empty line.
    A title such as "Dr." does not end one, but other abbreviations before a space do.

    >>> from clearhead.data.sentences import sentences
    >>> sentences('It rained. "Did it?" It did.')
    ['It rained.', '"Did it?"', 'It did.']
    """
    result: list[str] = []
    start = 0
    for match in _END.finditer(text):
        result.append(text[start : match.start()] + match.group().rstrip())
        start = match.end()
    return [sentence for sentence in (*result, text[start:]) if sentence.strip()]


def split_by_tokens(text: str, count: Callable[[Sequence[str]], list[int]], limit: int) -> list[str]:
    """Split a text at sentence boundaries into parts of similar length, with at most `limit` tokens.

    A sentence longer than the limit is split between words, and a longer word between characters.

    Args:
        text: the text.
        count: returns the number of tokens of each of several texts. Special tokens count for each sentence, so parts
            may be shorter than necessary.
        limit: the maximum number of tokens in a part.
    """
    pieces = list(_split_to_limit(sentences(text), count, limit))
    lengths = count(pieces)
    # the smallest possible number of parts, of similar lengths
    target_length = sum(lengths) / -(-sum(lengths) // limit)
    parts: list[list[str]] = [[]]
    part_length = done = 0
    for piece, length in zip(pieces, lengths, strict=True):
        is_full = part_length + length > limit
        is_long_enough = done + length / 2 >= target_length * len(parts)
        if parts[-1] and (is_full or is_long_enough):
            parts.append([])
            part_length = 0
        parts[-1].append(piece)
        part_length += length
        done += length
    return [" ".join(part) for part in parts]


def _split_to_limit(pieces: Sequence[str], count: Callable[[Sequence[str]], list[int]], limit: int) -> Iterator[str]:
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
        yield from _split_to_limit(halves, count, limit)
