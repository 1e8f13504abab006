"""Generate pairs of sentences with numbers, times, dates, prices and names from the frames of `frames.txt`."""

import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from copies import copied
from people import PEOPLE
from slots import SLOTS, Value

Pair = tuple[str, str]

_SLOT = re.compile(r"\{(\w+)\}")
_OTHER_FORM = 0.4
"""Probability of another form than the usual one in the source, such as 7pm for 7 p.m."""


@cache
def frames() -> dict[str, list[Pair]]:
    """Return the frames of each category."""
    result: dict[str, list[Pair]] = {}
    category = ""
    for line in Path(__file__).with_name("frames.txt").read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith("# "):
            category = line.removeprefix("# ")
            continue
        english, german = line.split(" | ")
        result.setdefault(category, []).append((english, german))
    return result


def fill(frame: Pair, target: str, r: random.Random) -> Pair:
    """Return a frame with random values.

    Args:
        frame: English and German, with the same slots.
        target: "de" or "en": the side that has the usual form of each value.
        r: the source of randomness.

    >>> fill(("I'm in room {code}.", "Ich bin in Zimmer {code}."), "de", random.Random(3))
    ("I'm in room 42.", 'Ich bin in Zimmer 42.')
    """
    names = _SLOT.findall(frame[0])
    if sorted(names) != sorted(_SLOT.findall(frame[1])):
        raise ValueError(f"the two sides of a frame have different slots: {frame}")
    used: set[str] = set()
    values: dict[str, list[Value]] = {}
    for name in names:
        values.setdefault(name, []).append(_draw(name, r, used))
    other = r.random() < _OTHER_FORM
    sides = []
    for language, text in zip(("en", "de"), frame, strict=True):
        remaining = {name: iter(own) for name, own in values.items()}

        def form(
            match: re.Match[str], language: str = language, remaining: dict[str, Iterator[Value]] = remaining
        ) -> str:
            value = next(remaining[match[1]])
            forms = value.en_forms if language == "en" else value.de_forms
            usual = value.en if language == "en" else value.de
            return r.choice(forms) if forms and other and language != target else usual

        filled = _SLOT.sub(form, text).replace("..", ".")
        sides.append(filled[0].upper() + filled[1:])
    return sides[0], sides[1]


def _draw(name: str, r: random.Random, used: set[str]) -> Value:
    if name in ("copy", "symbol"):
        return copied(r, used, is_symbol=name == "symbol")
    if name in ("who", "Who"):
        return Value(*r.choice(PEOPLE))
    return SLOTS[name](r)


def generate(count: int, target: str, seed: int = 1) -> list[Pair]:
    """Return distinct pairs, English first; the same seed gives the same pairs.

    Args:
        count: number of pairs.
        target: "de" or "en", the language of the targets.
        seed: the seed.
    """
    r = random.Random(f"{seed} {target}")
    listed = [frame for own in frames().values() for frame in own]
    pairs: dict[Pair, None] = {}
    while len(pairs) < count:
        english, german = fill(r.choice(listed), target, r)
        if r.random() < 0.08 and english[-1] == german[-1] == ".":
            english, german = english[:-1], german[:-1]  # notes without a full stop
        pairs[english, german] = None
    return list(pairs)
