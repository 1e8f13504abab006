"""A use of a model: from a request's body to jobs, and from jobs of many requests to their results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from clearhead.serve.http.errors import RefusedError
from clearhead.tokenizers.base import TextTokenizer, Tokens

Name = Literal["embed", "translate", "summarize", "answer", "classify", "view"]

ANSWER_TOKENS = 30
"""Most tokens of an answer, as in `QuestionAnswerer.answers`."""
_ADVICE = "truncate=true cuts it"
_CHARACTERS = 4
"""Characters to a token, for a guess before they are counted."""


@dataclass(frozen=True)
class PreparedRequest:
    """What is to be computed for a request.

    Args:
        jobs: what `Use.perform` takes of each text, with its cost.
        options: what is computed together has the same.
        join: from the jobs' results to the request's, where a job is but a part; it may raise a RefusedError.
    """

    jobs: list[tuple[Any, int]]
    options: tuple[tuple[str, Any], ...] = ()
    join: Callable[[list[Any]], list[Any]] = list


@runtime_checkable
class Handler(Protocol):
    """Something that a model does."""

    def estimate(self, asked: Any) -> int:
        """A guess of the cost of a request from the number of its characters, for what is refused is not counted first.

        Raises:
            RefusedError: an option that the model does not take.
        """

    def prepare(self, asked: Any) -> PreparedRequest:
        """The work of a request; what is long is several jobs, between which others have their turn.

        Raises:
            RefusedError: what cannot be, such as a text that is too long.
        """

    def perform(self, payloads: Sequence[Any], **options: Any) -> Sequence[Any]:
        """The results of jobs with the same options, in their order."""


def estimate_tokens(texts: Sequence[str], limit: int | None = None) -> int:
    """About how many tokens texts have, each of which is cut at the limit."""
    counts = [1 + len(text) // _CHARACTERS for text in texts]
    return sum(counts) if limit is None else sum(min(count, limit) for count in counts)


def lengths(
    tokenizer: TextTokenizer, texts: Sequence[str], limit: int | None, *, cut: bool, advice: str = _ADVICE
) -> list[int]:
    """How many tokens of each text the model sees.

    Args:
        tokenizer: the model's.
        texts: the texts.
        limit: how many the model takes.
        cut: whether what is longer is cut.
        advice: what a client is told to do about a text that is too long.

    Raises:
        RefusedError: one is too long, and may not be cut.
    """
    tokens = tokenizer.encode(texts, limit if cut else None)
    if not cut:
        check_lengths(tokens, limit, advice)
    return [len(one.ids) if limit is None else min(len(one.ids), limit) for one in tokens]


def check_lengths(tokens: Sequence[Tokens], limit: int | None, advice: str = _ADVICE) -> None:
    """Raises a RefusedError for a text that is longer than the model takes, with what to do about it."""
    for number, one in enumerate(tokens):
        if limit is not None and len(one.ids) > limit:
            raise RefusedError(
                f"text {number}: the text has {len(one.ids)} tokens; this model takes at most {limit}; {advice}"
            )
