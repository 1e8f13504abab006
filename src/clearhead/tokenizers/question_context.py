"""Tokenize a question with its context, in overlapping windows if the context is too long for the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Encoding

from clearhead.tokenizers.base import check_not_blank
from clearhead.tokenizers.tokenizer import Tokenizer


class ContextOverflowError(ValueError):
    """A question or another prefix fills the model's input, so that no token of the text fits."""


@dataclass(frozen=True)
class PairWindow:
    """Token ids of a question and a part of its context.

    Args:
        ids: the token ids, in the order of the tokenizer's template for pairs, with its special tokens.
        token_types: the token type of each token from the same template; RoBERTa's are all 0.
        context_start: the index of the first token of the context; its other tokens follow.
        offsets: for each token of the context, its characters [start, end) in the whole context.
    """

    ids: list[int]
    token_types: list[int]
    context_start: int
    offsets: list[tuple[int, int]]


def pair_windows(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], max_length: int, stride: int, *, first_number: int = 0
) -> list[list[PairWindow]]:
    """Return for each (question, context) pair the windows that together cover the context.

    Each window repeats the question. Successive windows share `stride` tokens of the context, so that one of them
    contains the whole answer with some context. The overlap is at most half of a window's context.

    Args:
        tokenizer: the tokenizer of the model.
        pairs: questions and contexts.
        max_length: the maximum number of tokens in a window, including the question and special tokens.
        stride: the number of tokens that successive windows share.
        first_number: the number of the first pair, for messages.

    Raises:
        ValueError: a question or context is not a string, not valid Unicode, blank or without any token.
        ContextOverflowError: a question leaves no room for its context.

    >>> from clearhead.io.hub import resolve_model; from clearhead.tokenizers.tokenizer import Tokenizer
    >>> tokenizer = Tokenizer.from_folder(resolve_model("all-MiniLM-L6-v2"))
    >>> ((window,),) = pair_windows(tokenizer, [("Who?", "Ada did.")], max_length=20, stride=4)
    >>> tokenizer.ids_to_tokens(window.ids)
    ['[CLS]', 'who', '?', '[SEP]', 'ada', 'did', '.', '[SEP]']
    """
    for number, pair in enumerate(pairs, start=first_number):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"pair {number} is {pair!r:.60}; expected a question and a context")
        _check(pair[0], f"the question of pair {number}")
        _check(pair[1], f"the context of pair {number}")
    # tuples: the library takes a list of two for two separate texts
    encodings = tokenizer.backend.encode_batch([(question, context) for question, context in pairs])
    return [
        list(_windows(encoding, number, max_length, stride)) for number, encoding in enumerate(encodings, first_number)
    ]


def _windows(encoding: Encoding, number: int, max_length: int, stride: int) -> Iterator[PairWindow]:
    ids, types, offsets = encoding.ids, encoding.type_ids, encoding.offsets
    indices = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    if not indices:
        raise ValueError(f"the context of pair {number} has no token in this model's tokenizer")
    first, end = indices[0], indices[-1] + 1
    num_other = len(ids) - (end - first)
    room = max_length - num_other
    if room < 1:
        raise ContextOverflowError(
            f"the question of pair {number} has {num_other} tokens with the special ones, of {max_length} in a window. "
            "That leaves no room for the context; shorten the question"
        )
    step = room - min(stride, room // 2)
    # stop at the first window that reaches the end
    for start in range(first, max(first, end - room) + step, step):
        stop = min(start + room, end)
        yield PairWindow(
            ids[:first] + ids[start:stop] + ids[end:],
            types[:first] + types[start:stop] + types[end:],
            first,
            offsets[start:stop],
        )


def _check(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{name} is a {type(text).__name__}; expected a string")
    check_not_blank(text, name)
