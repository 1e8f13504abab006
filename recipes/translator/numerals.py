"""Numbers in words, in English and German."""

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_EINER = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
_ZEHNER = "_ _ zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_ORDINALS |= {"twelve": "twelfth"}
_ORDNUNGSZAHLEN = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}


def english(number: int) -> str:
    """Return a number from 0 to 999,999 in English words.

    >>> english(342_105)
    'three hundred and forty-two thousand one hundred and five'
    """
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" and {english(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    return f"{english(thousands)} thousand" + (f"{' and' if rest < 100 else ''} {english(rest)}" if rest else "")


def german(number: int, one: str = "eins") -> str:
    """Return a number from 0 to 999,999 in German words.

    Args:
        number: the number.
        one: the form of a final one: "eins" in counting, "ein" before "Uhr", "hundert" or "tausend".

    >>> german(342_105)
    'dreihundertzweiundvierzigtausendeinhundertfünf'
    """
    if number == 1:
        return one
    if number < 20:
        return _EINER[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return (f"{german(ones, 'ein')}und" if ones else "") + _ZEHNER[tens]
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{german(hundreds, 'ein')}hundert" + (german(rest, one) if rest else "")
    thousands, rest = divmod(number, 1000)
    return f"{german(thousands, 'ein')}tausend" + (german(rest, one) if rest else "")


def english_ordinal(number: int) -> str:
    """Return an ordinal number in English words.

    >>> english_ordinal(3), english_ordinal(20), english_ordinal(31)
    ('third', 'twentieth', 'thirty-first')
    """
    words = english(number)
    start, separator, last = words.rpartition("-")
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return start + separator + _ORDINALS.get(last, regular)


def german_ordinal(number: int) -> str:
    """Return an ordinal number from 1 to 99 in German words, in the weak form without the final n.

    >>> german_ordinal(3), german_ordinal(20), german_ordinal(31)
    ('dritte', 'zwanzigste', 'einunddreißigste')
    """
    if number in _ORDNUNGSZAHLEN:
        return _ORDNUNGSZAHLEN[number]
    return german(number) + ("te" if number < 20 else "ste")


def ordinal_digits(number: int) -> str:
    """Return an English ordinal number in digits.

    >>> ordinal_digits(3), ordinal_digits(11), ordinal_digits(22)
    ('3rd', '11th', '22nd')
    """
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def english_year(year: int) -> str:
    """Return a year in English words.

    >>> english_year(1984), english_year(1905), english_year(2007), english_year(1900)
    ('nineteen eighty-four', 'nineteen oh five', 'two thousand and seven', 'nineteen hundred')
    """
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return english(year)
    if rest == 0:
        return f"{english(century)} hundred"
    return f"{english(century)} {'oh ' if rest < 10 else ''}{english(rest)}"


def german_year(year: int) -> str:
    """Return a year in German words.

    >>> german_year(1984), german_year(2007)
    ('neunzehnhundertvierundachtzig', 'zweitausendsieben')
    """
    if year >= 2000:
        return german(year)
    century, rest = divmod(year, 100)
    return f"{german(century)}hundert" + (german(rest) if rest else "")


def english_digits(number: int) -> str:
    """Return a number in digits with English thousands separators: 12500 → 12,500."""
    return f"{number:,}"


def german_digits(number: int) -> str:
    """Return a number in digits with German thousands separators: 12500 → 12.500."""
    return f"{number:,}".replace(",", ".")
