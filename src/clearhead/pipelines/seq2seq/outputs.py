"""Results of text generation."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from clearhead.generation.state import Hypothesis
from clearhead.generation.strategy import NextToken
from clearhead.pipelines.seq2seq.source_preparation import PreparedText
from clearhead.tokenizers.base import TextTokenizer


@dataclass(frozen=True)
class Generated:
    """The output for a text.

    Args:
        text: the output, including its forced prefix.
        token_ids: ids of the new tokens, including the end token if there is one, without the prefix.
        tokens: the same as the tokenizer's pieces.
        log_probs: log-probability of each token.
        score: sum of the log-probabilities, divided by the number of tokens to the power of the length penalty.
        complete: whether the model ended the output; False if it was cut at the maximum length.
        truncated: whether the source was longer than the model's limit and was cut.
        n_best: all requested outputs, best first, including this one; () for an empty text.

    >>> from clearhead import TextToText
    >>> TextToText.from_pretrained().generate("Good morning!", return_details=True).text
    'Guten Morgen!'
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
    """A token of a streamed output.

    Args:
        id: token id.
        token: the tokenizer's piece.
        text: the text that it adds to the output; the texts of all tokens together are the output.
        log_prob: log-probability.

    >>> from clearhead import TextToText
    >>> "".join(token.text for token in TextToText.from_pretrained().stream("Good morning!"))
    'Guten Morgen!'
    """

    id: int
    token: str
    text: str
    log_prob: float


EMPTY = Generated("", (), (), (), 0.0)
"""The output for an empty text."""


def decode_hypotheses(
    hypotheses: Sequence[Hypothesis],
    text: PreparedText,
    tokenizer: TextTokenizer,
    *,
    eos_ids: Collection[int],
    forced_length: int | None,
) -> Generated:
    """Return the best hypothesis of a text as a `Generated`, with all of them in `n_best`.

    Args:
        hypotheses: outputs of a search, best first.
        text: the text.
        tokenizer: the tokenizer.
        eos_ids: ids that end an output.
        forced_length: number of new tokens at which the search forces an end token; None if it does not.
    """
    outputs = tuple(
        Generated(
            text=tokenizer.decode([*text.prefix_ids, *hypothesis.ids]),
            token_ids=hypothesis.ids,
            tokens=tuple(tokenizer.ids_to_tokens(hypothesis.ids)),
            log_probs=hypothesis.log_probs,
            score=hypothesis.score,
            complete=bool(hypothesis.ids) and hypothesis.ids[-1] in eos_ids and len(hypothesis.ids) != forced_length,
            truncated=text.truncated,
        )
        for hypothesis in hypotheses
    )
    return replace(outputs[0], n_best=outputs)


def streamed_tokens(
    tokens: Iterable[NextToken], prefix_ids: Sequence[int], tokenizer: TextTokenizer
) -> Iterator[StreamedToken]:
    """Yield the tokens of one target with the text that each adds to the output.

    Args:
        tokens: the tokens, in order.
        prefix_ids: ids of the forced prefix; the first token's text includes it.
        tokenizer: the tokenizer.
    """
    ids, emitted = list(prefix_ids), ""
    for token in tokens:
        ids.append(token.id)
        text = tokenizer.decode(ids)
        # a character may consist of several tokens: an incomplete one is not emitted yet
        new = "" if text.endswith("\ufffd") and not token.is_last else text.removeprefix(emitted)
        emitted += new
        yield StreamedToken(token.id, tokenizer.ids_to_tokens([token.id])[0], new, token.log_prob)
