"""Values for the slots of `frames.txt`: times, dates, prices, measures, phone numbers and names.

Each slot draws one value, and returns how English and German write it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from numerals import (
    english,
    english_digits,
    english_ordinal,
    english_year,
    german,
    german_digits,
    german_ordinal,
    german_year,
    ordinal_digits,
)
from people import CITIES, COUNTRIES, FIRST_NAMES, SURNAMES, invented_name

MONTHS = {
    "January": "Januar", "February": "Februar", "March": "März", "April": "April", "May": "Mai", "June": "Juni",
    "July": "Juli", "August": "August", "September": "September", "October": "Oktober", "November": "November",
    "December": "Dezember",
}  # fmt: skip
WEEKDAYS = {
    "Monday": "Montag", "Tuesday": "Dienstag", "Wednesday": "Mittwoch", "Thursday": "Donnerstag", "Friday": "Freitag",
    "Saturday": "Samstag", "Sunday": "Sonntag",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """How two languages write one value.

    Args:
        en, de: the usual form, for the target.
        en_forms, de_forms: other forms, for the source only.
    """

    en: str
    de: str
    en_forms: tuple[str, ...] = ()
    de_forms: tuple[str, ...] = ()


def clock(r: random.Random) -> Value:
    """A time after "at" and "um": half past seven, 7:30, 7:30 p.m., seven o'clock."""
    hour = r.randint(1, 12)
    kind = r.random()
    if kind < 0.22:
        return _half_or_quarter(r, hour)
    if kind < 0.32:
        minutes = r.choice((5, 10, 20))
        if r.random() < 0.5:
            return Value(f"{english(minutes)} past {english(hour)}", f"{german(minutes)} nach {german(hour)}")
        return Value(f"{english(minutes)} to {english(hour)}", f"{german(minutes)} vor {german(hour)}")
    if kind < 0.45:
        return Value(
            f"{english(hour)} o'clock",
            f"{german(hour, 'ein')} Uhr",
            (f"{hour} o'clock", f"{english(hour)}"),
        )
    minutes = r.choice((*range(5, 60, 5), 15, 30, 30, 45, r.randrange(1, 60)))
    if kind < 0.7:
        time = f"{hour}:{minutes:02}"
        return Value(time, f"{time} Uhr", (f"{hour}.{minutes:02}",), (f"{hour}.{minutes:02} Uhr", time))
    if hour == 12:
        return Value(f"12:{minutes:02} p.m.", f"12:{minutes:02} Uhr", (f"12:{minutes:02} pm", f"12:{minutes:02} PM"))
    return _half_of_day(r, hour, minutes if kind < 0.9 else 0)


def _half_or_quarter(r: random.Random, hour: int) -> Value:
    following = german(hour % 12 + 1)
    name, one = english(hour), german(hour)
    value = {
        "half": Value(f"half past {name}", f"halb {following}", (f"half {name}",)),
        "past": Value(
            f"quarter past {name}", f"Viertel nach {one}", (f"a quarter past {name}",), (f"viertel nach {one}",)
        ),
        "to": Value(f"quarter to {name}", f"Viertel vor {one}", (f"a quarter to {name}",), (f"viertel vor {one}",)),
    }[r.choice(("half", "half", "past", "to"))]
    if r.random() < 0.2:
        afternoon = r.random() < 0.6
        en, de = ("in the morning", "morgens") if not afternoon else ("in the evening", "abends")
        if afternoon and hour < 6:
            en, de = "in the afternoon", "nachmittags"
        return Value(f"{value.en} {en}", f"{value.de} {de}") if 4 < hour < 12 or (afternoon and hour != 12) else value
    return value


def _half_of_day(r: random.Random, hour: int, minutes: int) -> Value:
    """A time with a.m. or p.m., which German writes with 24 hours."""
    is_afternoon = r.random() < 0.65
    shown = f"{hour}:{minutes:02}" if minutes else str(hour)
    full = hour + 12 * is_afternoon
    german_time = f"{full}:{minutes:02}" if minutes else str(full)
    half = "pm" if is_afternoon else "am"
    forms = [f"{shown} {half}", f"{shown}{half}", f"{shown} {half.upper()}", f"{shown.replace(':', '.')} {half}"]
    german_forms = [f"{german_time.replace(':', '.')} Uhr"] + ([] if minutes else [f"{german_time}:00 Uhr"])
    return Value(f"{shown} {half[0]}.m.", f"{german_time} Uhr", tuple(forms), tuple(german_forms))


def date(r: random.Random) -> Value:
    """A date after "on" and "am" in digits: May 3rd, 3. Mai."""
    month, day = r.choice(list(MONTHS)), r.randint(1, 28)
    number = ordinal_digits(day)
    forms = (f"{day} {month}", f"{month} {day}", f"the {number} of {month}", f"{number} {month}")
    return Value(f"{month} {number}", f"{day}. {MONTHS[month]}", forms)


def full_date(r: random.Random) -> Value:
    """A date with its year: May 3, 1984, 3. Mai 1984."""
    month, day, year = r.choice(list(MONTHS)), r.randint(1, 28), r.randint(1900, 2024)
    number = ordinal_digits(day)
    forms = (f"{day} {month} {year}", f"{month} {number}, {year}", f"the {number} of {month}, {year}")
    return Value(f"{month} {day}, {year}", f"{day}. {MONTHS[month]} {year}", forms)


def spelled_date(r: random.Random) -> Value:
    """A date after "on" and "am" in words: the third of May, dritten Mai."""
    month, day = r.choice(list(MONTHS)), r.randint(1, 31)
    day = min(day, 28) if month == "February" else min(day, 30)
    german_day = f"{german_ordinal(day)}n {MONTHS[month]}"
    return Value(f"the {english_ordinal(day)} of {month}", german_day, (f"{month} the {english_ordinal(day)}",))


def weekday(r: random.Random) -> Value:
    return Value(*r.choice(list(WEEKDAYS.items())))


def month(r: random.Random) -> Value:
    return Value(*r.choice(list(MONTHS.items())))


def year_number(r: random.Random) -> int:
    return r.randint(1950, 2024) if r.random() < 0.75 else r.randint(1600, 1949)


def year(r: random.Random) -> Value:
    number = year_number(r)
    if r.random() < 0.15 and number > 1850:
        return Value(english_year(number), german_year(number))
    return Value(str(number), str(number))


def count(r: random.Random) -> Value:
    """A number above one before a plural: in words up to twelve, else mostly in digits."""
    if r.random() < 0.55:
        number = r.randint(2, 12)
        return Value(english(number), german(number)) if r.random() < 0.6 else Value(str(number), str(number))
    number = r.choice((r.randint(13, 99), r.randint(13, 99), r.randint(100, 999)))
    if r.random() < 0.15:
        return Value(english(number), german(number))
    return Value(str(number), str(number))


def large(r: random.Random) -> Value:
    """A number of thousands or more, in digits or words."""
    number = r.choice(
        (r.randint(1000, 9999), r.randint(10_000, 999_999), 1000 * r.randint(1, 900), 100 * r.randint(11, 99))
    )
    if number % 1000 == 0 and r.random() < 0.3:
        thousands = number // 1000
        return Value(f"{english(thousands)} thousand", f"{german(thousands, 'ein')}tausend")
    digits = str(number)
    spaced = f"{number:,}".replace(",", " ")
    return Value(english_digits(number), german_digits(number), (digits,), (digits, spaced))


def millions(r: random.Random) -> Value:
    whole, tenth = r.randint(2, 90), r.randint(1, 9)
    if r.random() < 0.5:
        return Value(f"{whole}.{tenth} million", f"{whole},{tenth} Millionen")
    return Value(f"{whole} million", f"{whole} Millionen")


def price(r: random.Random) -> Value:
    kind = r.random()
    whole, cents = r.choice((r.randint(2, 99), r.randint(2, 999))), r.choice((99, 95, 50, 49, r.randint(1, 98)))
    if kind < 0.2:
        return Value(f"${whole}.{cents:02}", f"{whole},{cents:02} Dollar", (), (f"{whole},{cents:02} $",))
    if kind < 0.4:
        return Value(
            f"€{whole}.{cents:02}", f"{whole},{cents:02} €", (f"{whole}.{cents:02} €",), (f"{whole},{cents:02} Euro",)
        )
    if kind < 0.5:
        return Value(f"{whole}.{cents:02} euros", f"{whole},{cents:02} Euro")
    if kind < 0.6:
        return Value(f"${whole}", f"{whole} Dollar", (f"{whole} dollars",), (f"{whole} $",))
    if kind < 0.7:
        number = r.choice((*range(2, 21), 30, 40, 50, 80, 100, 200, 500))
        unit = r.choice((("dollars", "Dollar"), ("euros", "Euro"), ("pounds", "Pfund")))
        return Value(
            f"{english(number)} {unit[0]}", f"{german(number, 'ein')} {unit[1]}".replace("einhundert", "hundert")
        )
    if kind < 0.8:
        number = r.choice((100 * r.randint(10, 99), 1000 * r.randint(2, 400), r.randint(1000, 99_999)))
        return Value(
            f"{number:,} euros",
            f"{german_digits(number)} Euro",
            (f"€{number:,}", f"{number} euros"),
            (f"{number} Euro",),
        )
    if kind < 0.88:
        return Value(f"£{whole}", f"{whole} Pfund", (f"{whole} pounds",), (f"{whole} £",))
    if kind < 0.94:
        return Value(f"{cents} cents", f"{cents} Cent") if cents > 1 else Value("10 cents", "10 Cent")
    return Value(f"{whole} euros", f"{whole} Euro", (f"€{whole}", f"{whole} €"), (f"{whole} €",))


def _decimal(r: random.Random, low: int, high: int) -> tuple[str, str]:
    whole, tenth = r.randint(low, high), r.randint(1, 9)
    if whole < 50 and r.random() < 0.4:
        return f"{whole}.{tenth}", f"{whole},{tenth}"
    return str(whole), str(whole)


def _measure(*units: tuple[str, str, int, int], decimals: bool = True) -> Callable[[random.Random], Value]:
    """Return a slot for an amount of a unit: English and German unit, smallest and largest amount."""

    def draw(r: random.Random) -> Value:
        en_unit, de_unit, low, high = r.choice(units)
        en, de = _decimal(r, low, high) if decimals else (str(r.randint(low, high)),) * 2
        if "." not in en and int(en) <= 12 and r.random() < 0.5:
            en, de = english(int(en)), german(int(en))
        return Value(f"{en} {en_unit}", f"{de} {de_unit}")

    return draw


distance = _measure(("kilometers", "Kilometer", 2, 900), ("km", "km", 2, 900), ("miles", "Meilen", 2, 300))
steps = _measure(("meters", "Meter", 20, 900), decimals=False)
weight = _measure(("kilograms", "Kilogramm", 2, 40), ("kg", "kg", 2, 40), ("kilos", "Kilo", 2, 40))
volume = _measure(("liters", "Liter", 2, 9))
short = _measure(("minutes", "Minuten", 2, 59), ("hours", "Stunden", 2, 14), decimals=False)
duration = _measure(
    ("minutes", "Minuten", 2, 59), ("hours", "Stunden", 2, 30), ("days", "Tage", 2, 30), ("weeks", "Wochen", 2, 20),
    ("years", "Jahre", 2, 60), ("months", "Monate", 2, 30), decimals=False,
)  # fmt: skip
years_or_months = _measure(
    ("years", "Jahre", 2, 60), ("months", "Monate", 2, 30), ("weeks", "Wochen", 2, 20), decimals=False
)


def dative(slot: Callable[[random.Random], Value]) -> Callable[[random.Random], Value]:
    """Return a slot for an amount in the dative, as after "seit", "in", "vor" and "nach"."""

    def draw(r: random.Random) -> Value:
        value = slot(r)
        return Value(value.en, f"{value.de}n") if value.de.endswith(("Tage", "Jahre", "Monate", "Meter")) else value

    return draw


def temperature(r: random.Random) -> Value:
    number = r.randint(2, 39)
    if r.random() < 0.3:
        return Value(f"{number} °C", f"{number} °C", (f"{number}°C",), (f"{number}°C",))
    if r.random() < 0.15:
        return Value(f"minus {number} degrees", f"minus {number} Grad")
    return Value(f"{number} degrees", f"{number} Grad", (f"{number}°",), (f"{number}°",))


def percent(r: random.Random) -> Value:
    en, de = _decimal(r, 2, 99)
    return Value(f"{en} percent", f"{de} Prozent", (f"{en}%", f"{en} per cent"), (f"{de} %", f"{de}%"))


def phone(r: random.Random) -> Value:
    def digits(length: int) -> str:
        return "".join(str(r.randrange(10)) for _ in range(length))

    number = r.choice(
        (f"+49 {r.choice((30, 40, 89, 221, 151, 170))} {digits(7)}", f"0{digits(3)} {digits(6)}", f"555-{digits(4)}",
         f"({digits(3)}) 555-{digits(4)}", f"+1 {digits(3)} {digits(3)} {digits(4)}", f"0{digits(3)}/{digits(7)}")
    )  # fmt: skip
    return Value(number, number)


def code(r: random.Random) -> Value:
    """A number of a room, a flight, a bus or a page."""
    number = str(r.choice((r.randint(2, 99), r.randint(100, 999), r.randint(1000, 4999))))
    return Value(number, number)


def age(r: random.Random) -> Value:
    number = r.randint(2, 99)
    if r.random() < 0.35:
        return Value(english(number), german(number))
    return Value(str(number), str(number))


def floor(r: random.Random) -> Value:
    """An ordinal number after "the", and its dative in German."""
    number = r.choice((*range(1, 13), *range(13, 32)))
    words = Value(english_ordinal(number), f"{german_ordinal(number)}n", (ordinal_digits(number),), (f"{number}.",))
    return words if number <= 12 or r.random() < 0.3 else Value(ordinal_digits(number), f"{number}.")


def score(r: random.Random) -> Value:
    first, second = r.randint(1, 6), r.randint(0, 5)
    return Value(
        f"{first}–{second}", f"{first}:{second}", (f"{first}-{second}", f"{first}:{second}"), (f"{first}-{second}",)
    )


def name(r: random.Random) -> Value:
    """A first name, sometimes an invented one: the spelling is copied."""
    own = invented_name(r) if r.random() < 0.3 else r.choice(FIRST_NAMES)
    return Value(own, own)


def surname(r: random.Random) -> Value:
    own = invented_name(r) if r.random() < 0.3 else r.choice(SURNAMES)
    return Value(own, own)


def full_name(r: random.Random) -> Value:
    own = f"{name(r).en} {surname(r).en}"
    return Value(own, own)


def city(r: random.Random) -> Value:
    if r.random() < 0.2:
        own = invented_name(r)
        return Value(own, own)
    return Value(*r.choice(CITIES))


def country(r: random.Random) -> Value:
    return Value(*r.choice(COUNTRIES))


SLOTS: dict[str, Callable[[random.Random], Value]] = {
    "age": age, "city": city, "clock": clock, "code": code, "count": count, "country": country, "date": date,
    "distance": distance, "duration": duration, "durations": dative(duration),
    "floor": floor, "full_name": full_name,
    "large": large, "month": month, "name": name, "percent": percent, "phone": phone, "price": price, "score": score,
    "spelled_date": spelled_date, "surname": surname, "temperature": temperature, "volume": volume, "weekday": weekday,
    "weight": weight, "year": year, "full_date": full_date, "millions": millions, "steps": steps,
    "after_steps": dative(steps), "short": short,
    "years": dative(years_or_months),
}  # fmt: skip
