"""Pairs of sentences from which a model learns to copy: placeholders, and some addresses and emoji as they are."""

import random
import re

from people import invented_name
from slots import Value

from clearhead.pipelines.seq2seq.copying import PLACEHOLDERS

Pair = tuple[str, str]

_EMOJI = "😀 😂 😍 🙂 😉 😢 😡 👍 🙏 🎉 🎂 🌹 🌞 ⭐ 🍕 ☕ 🍺 🐶 🐱 🚗 🏠 💪 🔥 ✅ 🤔 😊 🥰 ❤ ☀ → • ✓ ★".split()
_GREEK = "αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώ"
_CYRILLIC = "абвгдежзийклмнопрстуфхцчшщъыьэюя"
_SIGNS = "& @ # * = < > [ ] _ { } | ~ ^ \\ ` / + § ° € £ ² …".split()
_NAMES = frozenset("Tom John Bill Jane Jim Bob Mike Ken Betty Nancy Jack Lucy Ann Tony Alice Peter Kate".split())
_CANDIDATE = re.compile(r"(?<![\w'’.,-])(?:[A-Z][a-z]+|\d[\d.,:]*\d|\d+)(?![\w'’-])(?![.,:]\d)")


def copied(r: random.Random, used: set[str], *, is_symbol: bool) -> Value:
    """Return a placeholder that a sentence does not have yet, or sometimes text as it is.

    Args:
        r: the source of randomness.
        used: the placeholders of the sentence so far.
        is_symbol: whether the slot is for emoji, not for a word.

    Exports to other programs have no placeholders, so a model sees some addresses, emoji and foreign words, too.
    """
    if r.random() < 0.85:
        name = r.choice([name for name in PLACEHOLDERS if name not in used])
        used.add(name)
        return Value(name, name)
    text = _symbols(r) if is_symbol else _raw(r)
    return Value(text, text)


def _symbols(r: random.Random) -> str:
    return r.choice(_SIGNS) if r.random() < 0.1 else "".join(r.sample(_EMOJI, r.choice((1, 1, 1, 2, 3))))


def _raw(r: random.Random) -> str:
    kind = r.random()
    word = invented_name(r).lower()
    if kind < 0.25:
        user = word + r.choice(("", ".", "_")) + invented_name(r).lower()
        return f"{user}@{invented_name(r).lower()}.{r.choice(('com', 'org', 'de'))}"
    if kind < 0.5:
        path = r.choice(
            ("", f"/{invented_name(r).lower()}", f"/{word}/{r.randrange(100)}", f"/?q={word}&page={r.randrange(9)}")
        )
        return f"{r.choice(('https://', 'https://www.', 'www.'))}{word}.{r.choice(('com', 'org', 'net', 'de'))}{path}"
    if kind < 0.8:
        letters = r.choice((_GREEK, _CYRILLIC))
        own = "".join(r.choices(letters, k=r.randint(2, 9)))
        return own if r.random() < 0.5 else own.capitalize()
    return str(r.randint(10_000, 99_999_999))


def with_placeholders(pair: Pair, r: random.Random) -> Pair | None:
    """Return a pair with placeholders for names and numbers that both sides have; None if there are none.

    >>> with_placeholders(("I saw Tom there.", "Ich sah Tom dort."), random.Random(1))
    ('I saw ⓷ there.', 'Ich sah ⓷ dort.')
    """
    shared = [word for word in _words(pair[0]) if _is_shared(word, pair)]
    if not shared:
        return None
    chosen = r.sample(shared, r.randint(1, min(3, len(shared))))
    names = r.sample(PLACEHOLDERS, len(chosen))
    return _replaced(pair, dict(zip(chosen, names, strict=True)))


def with_other_name(pair: Pair, name: str) -> Pair | None:
    """Return a pair with another name in place of Tom, John ...; None if it has none of them once on both sides.

    >>> with_other_name(("I saw Tom there.", "Ich sah Tom dort."), "Leyla")
    ('I saw Leyla there.', 'Ich sah Leyla dort.')
    """
    shared = [word for word in _words(pair[0]) if word in _NAMES and _is_shared(word, pair)]
    return _replaced(pair, {shared[0]: name}) if shared else None


def with_symbol(first: Pair, second: Pair, r: random.Random) -> Pair:
    """Return two pairs with a placeholder between them, as for an emoji after a sentence."""
    name = r.choice(PLACEHOLDERS)
    return f"{first[0]} {name} {second[0]}", f"{first[1]} {name} {second[1]}"


def _words(text: str) -> list[str]:
    return [match.group() for match in _CANDIDATE.finditer(text)]


def _is_shared(word: str, pair: Pair) -> bool:
    """Return whether both sides have a word exactly once, and it is a name or a number."""
    if any(len(re.findall(rf"(?<!\w){re.escape(word)}", side)) != 1 or word not in _words(side) for side in pair):
        return False
    # words such as "Was" and "So" start sentences of both languages
    return word in _NAMES or word[0].isdigit() or not any(side.lstrip('„"“').startswith(word) for side in pair)


def _replaced(pair: Pair, names: dict[str, str]) -> Pair:
    def one(side: str) -> str:
        return _CANDIDATE.sub(lambda match: names.get(match.group(), match.group()), side)

    return one(pair[0]), one(pair[1])
