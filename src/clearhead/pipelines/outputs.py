"""What is generated for a text, as people read it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Generated:
    """What was generated for a text.

    Args:
        text: the output, with the prefix that was forced.
        token_ids: the new tokens' ids, the end token's too where there is one; without the prefix.
        tokens: the same as the tokenizer's pieces.
        log_probs: the log-probability of each.
        score: their sum, divided by their number to the power of the length penalty.
        complete: whether the output ends where the model ended it; False where it was cut at the greatest length.
        truncated: whether the source was longer than the model takes and has been cut.
        n_best: all outputs that were asked for, best first, this one included; () of an empty text.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]
    score: float
    complete: bool = True
    truncated: bool = False
    n_best: "tuple[Generated, ...]" = ()


@dataclass(frozen=True)
class StreamedToken:
    """A token of an output, as soon as it is chosen.

    Args:
        id: its id.
        token: the tokenizer's piece.
        text: what it adds to the output; the texts of all tokens together are the output.
        log_prob: its log-probability.
    """

    id: int
    token: str
    text: str
    log_prob: float


EMPTY = Generated("", (), (), (), 0.0)
"""The output for an empty text."""
