"""Copy the spans that a translation must not change, such as URLs and emoji, from the source to the output."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from clearhead.pipelines.seq2seq.protected_spans import Span, find_spans, localized, lost_numbers
from clearhead.tokenizers.base import TextTokenizer

PLACEHOLDERS = "⓵⓶⓷⓸⓹⓺⓻⓼⓽⓾"
"""Characters that replace copied spans in the texts that a model is trained on. Unicode normalization keeps them."""

_SPACED = re.compile(rf" ?[{PLACEHOLDERS}] ?")
_LEADING = re.compile(r"[\s,;:.!?)\]–—-]*")
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_DECOMPOSED = re.compile(r"[A-Za-z][\u0300-\u036f]+")


@dataclass(frozen=True)
class Placeholder:
    """The span that a placeholder replaces.

    Args:
        text: the span of the source.
        glued: whether it touches the word before it, and the word after it.
    """

    text: str
    glued: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class ProtectedText:
    """A text with placeholders for the spans that are copied.

    Args:
        core: the text that the model translates.
        before, after: symbols and whitespace at the edges of the text, which the model does not see.
        placeholders: the span that each placeholder in `core` replaces.
        checked: whether the output must have each placeholder once, and the numbers of the core.
        split: whether the model has no placeholders, or too few: the text is translated in pieces.

    >>> ProtectedText("Write to ⓵.", placeholders={"⓵": Placeholder("me@example.org")}).restore("Schreib an ⓵.")
    'Schreib an me@example.org.'
    """

    core: str
    before: str = ""
    after: str = ""
    placeholders: dict[str, Placeholder] = field(default_factory=dict)
    checked: bool = False
    split: bool = False

    def loses(self, output: str) -> bool:
        """Return whether the model's output lacks a placeholder, repeats one, or lacks a number."""
        if not self.checked:
            return False
        found = sorted(character for character in output if character in PLACEHOLDERS)
        return found != sorted(self.placeholders) or bool(lost_numbers(self.core, output))

    def restore(self, output: str) -> str:
        """Return the translation of the text; the spans whose placeholders the output lacks are appended."""
        restored = _SPACED.sub(self._replacement, output) if self.placeholders else output
        return self.before + restored + self.rest(output)

    def rest(self, output: str) -> str:
        """Return the end of an output: the spans whose placeholders it lacks, and `after`."""
        missing = (" " + mark.text for name, mark in self.placeholders.items() if name not in output)
        return "".join(missing) + self.after

    def replace_in_stream(self, text: str) -> str:
        """Return a part of an output with the spans of its placeholders, without those that the text does not have."""
        if not self.checked:
            return text
        texts = {name: self.placeholders[name].text if name in self.placeholders else "" for name in PLACEHOLDERS}
        return "".join(texts.get(character, character) for character in text)

    def _replacement(self, match: re.Match[str]) -> str:
        spaced = match.group()
        mark = self.placeholders.get(spaced.strip())
        if mark is None:
            return spaced
        before, after = ("" if glued else " " for glued in mark.glued)
        return (before if spaced[0] == " " else "") + mark.text + (after if spaced[-1] == " " else "")


@dataclass(frozen=True)
class Piece:
    """A part of a text.

    Args:
        text: the part.
        is_copied: whether it is copied; otherwise it is translated by itself.
    """

    text: str
    is_copied: bool


@dataclass(frozen=True)
class CopyRule:
    """Copy URLs, e-mail addresses, codes, long numbers, emoji and words that the tokenizer does not know.

    A model that was trained with `PLACEHOLDERS` translates the text around them. Where it loses one or a number, and
    for other models, the text is translated in pieces between the spans, so that nothing is lost.

    Args:
        tokenizer: the model's tokenizer.
        direction: source and target language, for the separators in numbers; None to copy them as they are.
    """

    tokenizer: TextTokenizer
    direction: tuple[str, str] | None = None

    @cached_property
    def has_placeholders(self) -> bool:
        """Whether the model was trained with placeholders: they are tokens at the start of a word."""
        return all(self.tokenizer.token_id("▁" + name) is not None for name in PLACEHOLDERS)

    def protect(self, text: str, *, numbers: bool = False) -> ProtectedText:
        """Return a text with placeholders.

        Args:
            text: the text.
            numbers: whether to copy all numbers in digits, not only long ones.
        """
        text = _DECOMPOSED.sub(lambda match: unicodedata.normalize("NFC", match.group()), text)
        spans = find_spans(text, self.is_known, numbers=numbers)
        start, end = _core(text, spans)
        if not any(map(str.isalnum, _outside(text, spans))):
            return ProtectedText("", before=text)
        inner = [span for span in spans if start <= span.start and span.end <= end]
        core, before, after = text[start:end], text[:start], text[end:]
        if inner and (not self.has_placeholders or len(inner) > len(PLACEHOLDERS)):
            return ProtectedText(core, before, after, split=True)
        core, placeholders = self._with_placeholders(text, inner, start, end)
        return ProtectedText(core, before, after, placeholders, checked=True)

    def pieces(self, text: str) -> list[Piece]:
        """Return the parts of a text, which together are the text: copied spans and what is translated between them."""
        pieces, start = [], 0
        for span in [*find_spans(text, self.is_known, numbers=True), Span(len(text), len(text))]:
            between = text[start : span.start]
            left = len(_LEADING.match(between)[0])  # type: ignore[index]  # it matches every text
            stripped = between[left:].rstrip()
            copied = localized(text[span.start : span.end], self.direction)
            parts = (between[:left], stripped, between[left + len(stripped) :], copied)
            has_words = any(map(str.isalpha, stripped))
            pieces += [Piece(part, index != 1 or not has_words) for index, part in enumerate(parts) if part]
            start = span.end
        return pieces

    def is_known(self, character: str) -> bool:
        """Return whether the tokenizer has a token for a character."""
        known = self._known
        if "\ud800" <= character <= "\udfff":  # half a surrogate pair: encoding the text reports its position
            return True
        if character not in known:
            ids = self.tokenizer.target_ids(character)
            tokens = self.tokenizer.ids_to_tokens(ids)
            is_encoded = any(map(_BYTE.fullmatch, tokens)) or not self.tokenizer.special_ids.isdisjoint(ids)
            known[character] = bool(ids) and not is_encoded and character not in PLACEHOLDERS
        return known[character]

    def _with_placeholders(
        self, text: str, spans: Sequence[Span], start: int, end: int
    ) -> tuple[str, dict[str, Placeholder]]:
        parts: list[str] = []
        placeholders: dict[str, Placeholder] = {}
        for name, span in zip(PLACEHOLDERS, spans, strict=False):
            glued = (text[start : span.start][-1:].isalnum(), text[span.end : end][:1].isalnum())
            placeholders[name] = Placeholder(localized(text[span.start : span.end], self.direction), glued)
            first, last = (" " if touches else "" for touches in glued)
            parts += [text[start : span.start], first, name, last]
            start = span.end
        return "".join([*parts, text[start:end]]), placeholders

    @cached_property
    def _known(self) -> dict[str, bool]:
        return {}


def without_placeholders(output: str) -> str:
    """Return the output of a piece without placeholders, which a piece does not have.

    >>> without_placeholders("Das ist ⓷ gut."), without_placeholders("⓵")
    ('Das ist gut.', '')
    """
    return _SPACED.sub(" ", output).strip() if any(name in output for name in PLACEHOLDERS) else output


def join_pieces(pieces: Sequence[Piece], outputs: Sequence[str]) -> str:
    """Return the pieces of a text with the outputs in place of those that are translated.

    >>> join_pieces([Piece("XK-42", True), Piece(" ", True), Piece("is red", False)], ["ist rot."])
    'XK-42 ist rot'
    """
    translated = iter(outputs)
    return "".join(piece.text if piece.is_copied else _as_unfinished(piece.text, next(translated)) for piece in pieces)


def _as_unfinished(source: str, output: str) -> str:
    """Return an output without a full stop that its source does not have."""
    return output if source[-1] in ".!?…" else output.rstrip(".!?…")


def _outside(text: str, spans: Sequence[Span]) -> str:
    """Return the text outside of its spans."""
    ends = [0, *(span.end for span in spans)]
    starts = [*(span.start for span in spans), len(text)]
    return "".join(text[end:start] for end, start in zip(ends, starts, strict=True))


def _core(text: str, spans: Sequence[Span]) -> tuple[int, int]:
    """Return start and end of a text without the symbols at its edges."""
    start, end = 0, len(text)
    if spans and spans[0].is_symbol and not text[: spans[0].start].strip():
        start = spans[0].end + len(text[spans[0].end :]) - len(text[spans[0].end :].lstrip())
    if spans and spans[-1].is_symbol and not text[spans[-1].end :].strip() and spans[-1].start >= start:
        end = len(text[: spans[-1].start].rstrip())
    return start, max(start, end)
