"""Find the parts of a text that a translation must not change: addresses, codes, emoji, words in other scripts."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Span:
    """A part of a text that is copied.

    Args:
        start, end: its first character, and the one after its last.
        is_symbol: whether it is only symbols, such as emoji, which the grammar of the sentence does not need.
    """

    start: int
    end: int
    is_symbol: bool = False


_DOMAIN = r"(?:[^\W_](?:[\w-]*[^\W_])?\.)+"
_TOP_LEVEL = "com|org|net|edu|gov|int|info|biz|io|dev|app|ai|eu|de|at|ch|uk|us|fr|it|es|nl|be|pl|jp|cn|in|ru|ca|au|br"
_PATTERNS = {
    "email": rf"[\w.%+-]+@{_DOMAIN}[^\W\d_]{{2,}}",
    "url": rf"(?:[a-z][a-z0-9+.-]*://|www\.)[^\s<>\"“”„»«]+|(?i:\b{_DOMAIN}(?:{_TOP_LEVEL})\b)(?:[/?#:][^\s<>\"“”„»«]*)?",
    "handle": r"(?<![\w@])@\w+(?:\.\w+)*|(?<![\w#&])#(?=\w*[^\W\d])\w+",
    "keycap": r"[0-9#*]\ufe0f?\u20e3",
    "dotted": r"(?<![\w.])\d+(?:\.\d+){2,}(?![\w])|(?<![\w-])\d+(?:-\d+){2,}(?![\w-])|(?<![\w/])\d+(?:/\d+)+(?![\w/])",
    "phone": r"(?<![\w+])(?:\+|\(\+?|\b)\d(?:[ ()/-]{0,2}\d){6,}(?!\w)",
    "code": r"(?<![\w-])(?=[A-Z-]*\d)(?=[\d-]*[A-Z])(?!\d+[AP]M\b)[A-Z\d]+(?:-[A-Z\d]+)*(?![\w-])",
    "identifier": r"(?<!\w)\w*[^\W_]_\w+",
}
_COPIED = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()))
"""Text that looks the same in every language."""

_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_LONG_NUMBER = re.compile(r"\d{5,}(?:[.,]\d+)*")
_GROUPED = {
    ("en", "de"): re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"),
    ("de", "en"): re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?"),
}
"""Numbers with thousands separators by direction."""
# without any of these, a text has no span
_SUSPECT = re.compile(r"[^ !-~äöüÄÖÜß]|[@#_\d&*<=>\[\]^`{|}~\\]|\w\.\w|://")
_JOINING = re.compile(r"[\s,;:/&+|()\[\]–—-]*")
_JOINING_SENTENCES = re.compile(r"[^\w]*")
_IN_WORDS = "'’-&#@"
_CLOSING = ".,;:!?…)]}'’"


def find_spans(text: str, is_known: Callable[[str], bool], *, numbers: bool = False) -> list[Span]:
    """Return the spans of a text that are copied, in order; neighbors without words between them are one span.

    They are URLs, e-mail addresses, handles, hashtags, phone numbers, numbers of five digits or more, codes such as
    "XK-42", emoji and other symbols, and words with a character that is not Latin or that the tokenizer does not know.

    Args:
        text: the text.
        is_known: whether the tokenizer has a token for a character.
        numbers: whether to copy all numbers in digits.

    >>> text = "Write to me@example.org 😀"
    >>> [text[span.start : span.end] for span in find_spans(text, str.isascii)]
    ['me@example.org 😀']
    """
    if not _SUSPECT.search(text):
        return []
    found = list(_patterns(text, numbers))
    covered = {index for span in found for index in range(span.start, span.end)}
    found += [span for span in _foreign(text, is_known) if covered.isdisjoint(range(span.start, span.end))]
    return _joined(text, sorted(found, key=lambda span: span.start))


def lost_numbers(source: str, output: str) -> list[str]:
    """Return the numbers in digits of a source that its translation has neither in digits nor in words.

    Hours of 12 and of 24 count as equal, and so do "2:30" and "half past two" or "halb drei".

    >>> lost_numbers("He paid 1,250 euros at 7 p.m. for 2 seats.", "Er zahlte um 19 Uhr 1.520 Euro für zwei Plätze.")
    ['1,250']
    """
    if not any(map(str.isdigit, source)):
        return []
    words = set(re.findall(r"\w+", output.lower()))
    written = {group for number in _NUMBER.findall(output) for group in _groups(number)}
    written |= {value for value, names in _WORDS.items() if not words.isdisjoint(names)}
    if _HALF_OF_DAY.search(source):
        written |= {(hour + 12) % 24 for hour in written if hour < 24}
    return [
        match.group()
        for match in _NUMBER.finditer(source)
        if not _is_ordinal(source, match.end()) and not _is_written(match.group(), written, words)
    ]


def localized(number: str, direction: tuple[str, str] | None) -> str:
    """Return a number with the separators of the target language, if it has thousands separators of the source.

    "1,250" would be 1.25 to a German reader. Other numbers do not change: "3.5" can be a version or a date.

    >>> localized("1,250.50", ("en", "de")), localized("1.250,50", ("de", "en")), localized("3.5", ("en", "de"))
    ('1.250,50', '1,250.50', '3.5')
    """
    pattern = _GROUPED.get(direction) if direction else None
    swapped = str.maketrans(",.", ".,")
    return number.translate(swapped) if pattern and pattern.fullmatch(number) else number


def _is_written(number: str, written: set[int], words: set[str]) -> bool:
    groups = _groups(number)
    if re.fullmatch(r"\d{1,2}[:.]\d\d", number) and not words.isdisjoint(_FRACTIONS.get(groups[1], ())):
        return True
    if re.fullmatch(r"\d{1,2}[:.]00", number):
        groups = groups[:1]
    return written.issuperset(groups)


def _is_ordinal(text: str, end: int) -> bool:
    """Return whether a number that ends there is an ordinal number in English: it is a word in other places."""
    return text[end : end + 2] in ("st", "nd", "rd", "th")


def _groups(number: str) -> list[int]:
    """Return the numbers of "1,250", "2:30" or "1.250,50", without thousands separators."""
    groups = re.split(r"[.,:]", re.sub(r"[.,](?=\d{3}(?!\d))", "", number))
    return [int(group[:_MAX_DIGITS]) for group in groups]


_MAX_DIGITS = 100  # Python limits the conversion of longer numbers
_HALF_OF_DAY = re.compile(r"\d ?(?:[ap]\.?m\b|uhr\b)", re.IGNORECASE)
_FRACTIONS = {15: ("quarter", "viertel"), 30: ("half", "halb"), 45: ("quarter", "viertel", "dreiviertel")}
"""Words for the minutes of a time."""

_ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand"
)
_GERMAN = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf zwanzig dreißig vierzig fünfzig hundert tausend"
)
_VALUES = (*range(13), 20, 30, 40, 50, 100, 1000)
_WORDS = {value: {*names} for value, *names in zip(_VALUES, _ENGLISH.split(), _GERMAN.split(), strict=True)}
_WORDS[1] |= {"a", "an", "eins", "eine", "einen", "einem", "einer", "eines"}
_WORDS[2] |= {"both", "beide", "beiden", "beider", "zweien", "zweier"}
"""Numbers that a translation often writes in words, in English and German."""


def _patterns(text: str, numbers: bool) -> Iterator[Span]:
    for match in _COPIED.finditer(text):
        start, end = match.span()
        if match.lastgroup in ("url", "email"):
            end = start + len(_without_closing(match.group()))
        yield Span(start, end, match.lastgroup == "keycap")
    covered = {index for match in _COPIED.finditer(text) for index in range(*match.span())}
    for match in (_NUMBER if numbers else _LONG_NUMBER).finditer(text):
        if match.start() not in covered and not (numbers and _is_ordinal(text, match.end())):
            yield Span(*match.span())


def _without_closing(url: str) -> str:
    """Return a URL without the punctuation of its sentence."""
    while url[-1] in _CLOSING and not (url[-1] == ")" and url.count("(") >= url.count(")")):
        url = url[:-1]
    return url


def _foreign(text: str, is_known: Callable[[str], bool]) -> Iterator[Span]:
    """Yield the words with a foreign character, and the runs of symbols."""
    index = 0
    while index < len(text):
        if _is_symbol(text[index], is_known):
            start = index
            while index < len(text) and (_is_symbol(text[index], is_known) or _continues(text[index])):
                index += 1
            yield Span(start, index, True)
        elif _is_word(text[index]):
            start = index
            while index < len(text) and (_is_word(text[index]) or text[index] in _IN_WORDS):
                index += 1
            end = start + len(text[start:index].rstrip("'’-&@"))
            index = max(end, start + 1)
            if any(_is_foreign(character, is_known) for character in text[start:end] if character not in "'’-"):
                yield Span(start, end)
        else:
            index += 1


def _joined(text: str, spans: list[Span]) -> list[Span]:
    result: list[Span] = []
    for span in spans:
        if result and span.start < result[-1].end:
            result[-1] = Span(result[-1].start, max(span.end, result[-1].end), result[-1].is_symbol and span.is_symbol)
        elif result and _are_joined(text, result[-1], span):
            result[-1] = Span(result[-1].start, span.end, result[-1].is_symbol and span.is_symbol)
        else:
            result.append(span)
    return result


def _are_joined(text: str, first: Span, second: Span) -> bool:
    between = text[first.end : second.start]
    # sentences in another script are one span, and so are their full stops
    both_foreign = not any(character.isascii() for character in (text[first.end - 1], text[second.start]))
    return (_JOINING_SENTENCES if both_foreign else _JOINING).fullmatch(between) is not None


def _is_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character)[0] == "M"


@lru_cache(maxsize=4096)
def _is_latin(character: str) -> bool:
    return "LATIN" in unicodedata.name(character, "") or character in "ªºµ"


def _is_foreign(character: str, is_known: Callable[[str], bool]) -> bool:
    """Return whether a character of a word is not Latin, or unknown to the tokenizer."""
    if character.isascii():
        return not is_known(character)
    category = unicodedata.category(character)
    return not is_known(character) or (category[0] == "L" and not _is_latin(character)) or category == "Nd"


def _is_symbol(character: str, is_known: Callable[[str], bool]) -> bool:
    """Return whether a character is a symbol or an unknown punctuation mark."""
    if character.isspace() or _is_word(character):
        return False
    return not is_known(character) or (unicodedata.category(character) in ("So", "Co") and character > "ÿ")


def _continues(character: str) -> bool:
    """Return whether a character changes the emoji before it: a joiner, a variation selector, a skin tone or a tag."""
    return unicodedata.category(character) in ("Mn", "Me", "Cf", "Sk")
