"""Results of text generation."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from clearhead.generation.state import Hypothesis
from clearhead.generation.strategy import NextToken
from clearhead.pipelines.seq2seq.copying import Piece, join_pieces
from clearhead.pipelines.seq2seq.source_preparation import PreparedText
from clearhead.tokenizers.base import TextTokenizer


@dataclass(frozen=True)
class Generated:
    """The output for a text.

    Args:
        text: the output, including its forced prefix and the spans that were copied from the source.
        token_ids: ids of the new tokens, including the end token if there is one, without the prefix. If a text was
            translated in pieces, those of all pieces.
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

    def with_texts(self, change: Callable[[str], str]) -> "Generated":
        """Return this output with its text, and those of n_best, changed by a function."""
        n_best = tuple(output.with_texts(change) for output in self.n_best)
        return replace(self, text=change(self.text), n_best=n_best)


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


def copied_output(text: PreparedText) -> Generated:
    """Return the output of a text that has nothing to translate."""
    copied = text.protected.before
    return replace(EMPTY, text=copied if copied.strip() else "")


def join_outputs(pieces: Sequence[Piece], outputs: Sequence[Generated], length_penalty: float) -> Generated:
    """Return the output of a text that was translated in pieces.

    Args:
        pieces: all pieces of the text.
        outputs: the output of each piece that is translated.
        length_penalty: exponent of the length in the score.
    """
    if not outputs:
        return replace(EMPTY, text=join_pieces(pieces, []))
    num_outputs = max(len(output.n_best) for output in outputs)
    ranked = [[output.n_best[min(rank, len(output.n_best) - 1)] for output in outputs] for rank in range(num_outputs)]
    n_best = tuple(_join_ranked(pieces, own, length_penalty) for own in ranked)
    return replace(n_best[0], n_best=n_best)


def _join_ranked(pieces: Sequence[Piece], outputs: Sequence[Generated], length_penalty: float) -> Generated:
    log_probs = tuple(chain.from_iterable(output.log_probs for output in outputs))
    return Generated(
        text=join_pieces(pieces, [output.text for output in outputs]),
        token_ids=tuple(chain.from_iterable(output.token_ids for output in outputs)),
        tokens=tuple(chain.from_iterable(output.tokens for output in outputs)),
        log_probs=log_probs,
        score=sum(log_probs) / len(log_probs) ** length_penalty,
        complete=all(output.complete for output in outputs),
        truncated=any(output.truncated for output in outputs),
    )


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
    tokens: Iterable[NextToken], source: PreparedText, tokenizer: TextTokenizer
) -> Iterator[StreamedToken]:
    """Yield the tokens of one target with the text that each adds to the output.

    Args:
        tokens: the tokens, in order.
        source: the text; the first token's text includes its forced prefix.
        tokenizer: the tokenizer.
    """
    ids, emitted, protected = list(source.prefix_ids), "", source.protected
    before = protected.before
    for token in tokens:
        ids.append(token.id)
        text = tokenizer.decode(ids)
        # a character may consist of several tokens: an incomplete one is not emitted yet
        new = "" if text.endswith("\ufffd") and not token.is_last else text.removeprefix(emitted)
        emitted += new
        shown = before + protected.replace_in_stream(new)
        if token.is_last:
            shown += protected.rest(emitted)
        before = ""
        yield StreamedToken(token.id, tokenizer.ids_to_tokens([token.id])[0], shown, token.log_prob)


def chain_streams(parts: Iterable[str | Iterator[StreamedToken]]) -> Iterator[StreamedToken]:
    """Yield the tokens of several outputs and the texts between them, which belong to the tokens next to them."""
    text, last = "", None
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        for token in part:
            if last is not None:
                yield last
            last = replace(token, text=text + token.text)
            text = ""
    if last is not None:
        yield replace(last, text=last.text + text)
