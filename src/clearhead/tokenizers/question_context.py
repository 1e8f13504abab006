"""A question with its context to token ids: in overlapping windows where the model cannot read both at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Encoding

from clearhead.tokenizers.tokenizer import Tokenizer


class ContextOverflowError(ValueError):
    """A question, or what else stands before a text, is so long that there is no room for the text."""


@dataclass(frozen=True)
class PairWindow:
    """A question and a part of its context, as a model sees them.

    Args:
        ids: token ids: special tokens and order as the tokenizer's own template for pairs has them.
        types: for each token, which text it belongs to as the template says; RoBERTa's says 0 everywhere.
        first: place of the context's first token; its other tokens follow.
        offsets: for each token of the context, the characters [start, end) of the whole context that it stands for.
    """

    ids: list[int]
    types: list[int]
    first: int
    offsets: list[tuple[int, int]]


def pair_windows(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], max_length: int, stride: int, *, before: int = 0
) -> list[list[PairWindow]]:
    """For each (question, context) the windows that together hold the whole context.

    The question stands in each of them. Neighbours share `stride` tokens of the context, so that an answer is seen
    whole, with words around it; but no more than half of what a window holds, so that reading always moves on.

    Args:
        tokenizer: the model's.
        pairs: questions and contexts.
        max_length: tokens in a window, the question and the special tokens included.
        stride: tokens that neighbours share.
        before: how many pairs came before these, for messages.

    Raises:
        ValueError: a question or context that is no Unicode string, blank, or nothing to this tokenizer; a question
            that leaves no room for its context (`ContextOverflowError`).

    >>> from clearhead.io.hub import resolve_model; from clearhead.tokenizers.tokenizer import Tokenizer
    >>> tokenizer = Tokenizer.from_folder(resolve_model("all-MiniLM-L6-v2"))
    >>> ((window,),) = pair_windows(tokenizer, [("Who?", "Ada did.")], max_length=20, stride=4)
    >>> tokenizer.words(window.ids)
    ['[CLS]', 'who', '?', '[SEP]', 'ada', 'did', '.', '[SEP]']
    """
    for number, pair in enumerate(pairs, start=before):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"pair {number} is {pair!r:.60}; a question and a context are wanted")
        _check(pair[0], f"the question of pair {number}")
        _check(pair[1], f"the context of pair {number}")
    # a list of two would be read as two texts by themselves
    encodings = tokenizer.backend.encode_batch([(question, context) for question, context in pairs])
    return [list(_windows(encoding, number, max_length, stride)) for number, encoding in enumerate(encodings, before)]


def _windows(encoding: Encoding, number: int, max_length: int, stride: int) -> Iterator[PairWindow]:
    ids, types, offsets = encoding.ids, encoding.type_ids, encoding.offsets
    places = [place for place, text in enumerate(encoding.sequence_ids) if text == 1]
    if not places:
        raise ValueError(f"the context of pair {number} holds nothing that this model's tokenizer takes for text")
    first, end = places[0], places[-1] + 1
    around = len(ids) - (end - first)
    room = max_length - around
    if room < 1:
        raise ContextOverflowError(
            f"the question of pair {number} takes {around} tokens with the special ones, of {max_length} in a window: "
            "that leaves nothing to the context; ask in fewer words"
        )
    step = room - min(stride, room // 2)
    # the last window is the first one that reaches the end
    for start in range(first, max(first, end - room) + step, step):
        stop = min(start + room, end)
        yield PairWindow(
            ids[:first] + ids[start:stop] + ids[end:],
            types[:first] + types[start:stop] + types[end:],
            first,
            offsets[start:stop],
        )


def _check(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{what} is a {type(text).__name__}; a string is wanted")
    if not text.strip():
        raise ValueError(f"{what} is {'blank' if text else 'empty'}; words are wanted")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds half a surrogate pair at character {error.start}, no Unicode text") from None
