"""Write the data of recipes/tiny: sentences from small grammars; each task trains in seconds.

    python recipes/tiny/make_data.py

The files are in the repository. This script documents their origin and can generate more of them.
"""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

DATA = Path(__file__).parent / "data"
T = TypeVar("T")

# English, German, gender
ANIMATE = [
    *(("dog", "Hund", "m"), ("cat", "Katze", "f"), ("horse", "Pferd", "n"), ("child", "Kind", "n")),
    *(("woman", "Frau", "f"), ("man", "Mann", "m"), ("teacher", "Lehrer", "m"), ("girl", "Mädchen", "n")),
]
THINGS = [
    *(("house", "Haus", "n"), ("apple", "Apfel", "m"), ("bridge", "Brücke", "f"), ("book", "Buch", "n")),
    *(("ball", "Ball", "m"), ("flower", "Blume", "f"), ("boat", "Boot", "n"), ("lamp", "Lampe", "f")),
]
ADJECTIVES = [("old", "alt"), ("small", "klein"), ("red", "rot"), ("big", "groß"), ("new", "neu"), ("white", "weiß")]
VERBS = [("sees", "sieht"), ("finds", "findet"), ("paints", "malt"), ("buys", "kauft"), ("carries", "trägt")]
TIMES = [("", ""), ("", ""), ("today", "heute"), ("now", "jetzt"), ("on Monday", "am Montag")]
# (definite?, case, gender): article, ending of the adjective
DECLENSION = {
    (True, "nom", "m"): ("der", "e"),
    (True, "nom", "f"): ("die", "e"),
    (True, "nom", "n"): ("das", "e"),
    (True, "acc", "m"): ("den", "en"),
    (True, "acc", "f"): ("die", "e"),
    (True, "acc", "n"): ("das", "e"),
    (False, "nom", "m"): ("ein", "er"),
    (False, "nom", "f"): ("eine", "e"),
    (False, "nom", "n"): ("ein", "es"),
    (False, "acc", "m"): ("einen", "en"),
    (False, "acc", "f"): ("eine", "e"),
    (False, "acc", "n"): ("ein", "es"),
}


def translation(generator: Random) -> tuple[str, str]:
    """A sentence in English and in German, where the verb comes second and articles agree."""
    subject = _phrase(generator, ANIMATE, "nom")
    object_ = _phrase(generator, THINGS, "acc")
    verb, time = generator.choice(VERBS), generator.choice(TIMES)
    english = f"{time[0]} {subject[0]} {verb[0]} {object_[0]}".strip()
    german = f"{time[1]} {verb[1]} {subject[1]}" if time[1] else f"{subject[1]} {verb[1]}"
    return _sentence(english), _sentence(f"{german} {object_[1]}")


def _phrase(generator: Random, nouns: list[tuple[str, str, str]], case: str) -> tuple[str, str]:
    english, german, gender = generator.choice(nouns)
    definite = generator.random() < 0.5
    article, ending = DECLENSION[definite, case, gender]
    if generator.random() < 0.3:
        return f"{'the' if definite else _a(english)} {english}", f"{article} {german}"
    adjective = generator.choice(ADJECTIVES)
    return (
        f"{'the' if definite else _a(adjective[0])} {adjective[0]} {english}",
        f"{article} {adjective[1]}{ending} {german}",
    )


def _a(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


TOWNS = ["Lindau", "Bergen", "Porto", "Oslo", "Turin", "Graz", "Ghent", "York"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
CAUSES = ["storm", "flood", "fire", "snow", "strike", "frost"]
PLACES = ["bridge", "school", "station", "market", "museum", "harbour"]
BY_THE_WAY = [
    *("Nobody was hurt.", "The mayor asked everybody to stay calm.", "It may take three days.", "Buses were late."),
    *("Many people stayed at home.", "The shops stayed open.", "Children watched from the hill."),
]


def report(generator: Random) -> dict[str, str]:
    """A report of what happened in a town, and its headline."""
    town, day, cause, place = (generator.choice(words) for words in (TOWNS, DAYS, CAUSES, PLACES))
    judgment = generator.choice(
        [
            f"The {cause} came to {town} on {day}. The {place} had to be closed.",
            f"On {day} the {place} in {town} did not open. The {cause} was the reason.",
            f"People in {town} could not get to the {place} on {day} because of the {cause}.",
        ]
    )
    before, after = generator.sample(BY_THE_WAY, 2)
    text = f"{before} {judgment} {after}" if generator.random() < 0.5 else f"{judgment} {before} {after}"
    return {"article": text, "headline": f"{cause.capitalize()} closes {place} in {town}."}


def judged(generator: Random, count: int) -> list[tuple[str, str, str]]:
    """Rows of a question about a town, a sentence, and a label: 1 for that town, else 0. Four sentences a question."""
    rows = []
    for _ in range(count):
        towns = generator.sample(TOWNS[:5], 4)
        asked = generator.choice(towns)
        query = generator.choice([f"What happened in {asked}?", f"Is there news from {asked}?"])
        rows += [(query, _news(generator, town), str(int(town == asked))) for town in towns]
    return rows


def _news(generator: Random, town: str) -> str:
    day, cause, place = (generator.choice(words) for words in (DAYS, CAUSES, PLACES))
    return generator.choice(
        [
            f"The {cause} came to {town} on {day}.",
            f"On {day} the {place} in {town} did not open.",
            f"People in {town} could not get to the {place} on {day}.",
        ]
    )


NAMES = ["Anna", "Tom", "Maria", "Paul", "Lena", "Omar", "Ruth", "Felix"]
DEEDS = ["opened", "painted", "cleaned", "repaired"]
GOODS = ["gate", "boat", "clock", "piano", "fence", "tower"]


def paragraph(generator: Random, number: int) -> dict[str, Any]:
    """A paragraph with questions and the positions of their answers, in SQuAD's format."""
    name, deed, good, town, day = (generator.choice(words) for words in (NAMES, DEEDS, GOODS, TOWNS, DAYS))
    judgment = generator.choice(
        [
            f"On {day} {name} {deed} the {good} in {town}.",
            f"{name} {deed} the {good} in {town} on {day}.",
            f"The {good} in {town} was {deed} by {name} on {day}.",
        ]
    )
    aside = generator.choice(BY_THE_WAY)
    context = f"{aside} {judgment}" if generator.random() < 0.5 else f"{judgment} {aside}"
    questions = [
        (f"Who {deed} the {good}?", name),
        (f"Where was the {good} {deed}?", town),
        (f"When was the {good} {deed}?", day),
        (f"What was {deed} in {town}?", good),
    ]
    questions = [
        {
            "id": f"{number}-{index}",
            "question": question,
            "answers": [{"text": answer, "answer_start": context.index(answer)}],
        }
        for index, (question, answer) in enumerate(questions)
    ]
    return {"context": context, "qas": questions}


def squad(paragraphs: list[dict[str, Any]]) -> str:
    """Paragraphs as a file of SQuAD 1.1."""
    return json.dumps({"version": "1.1", "data": [{"title": "Events", "paragraphs": paragraphs}]}, indent=1) + "\n"


PRAISE = ["good", "fresh", "friendly"]
BLAME = ["bad", "stale", "rude"]
JUDGED = ["soup", "room", "waiter", "table", "coffee", "service", "bread", "cook"]
NEUTRAL = ["We came on Monday.", "It was our first visit.", "My brother was there too.", "It was raining.", ""]


def review(generator: Random) -> tuple[str, str]:
    """A review, and whether it praises or complains: "not" turns a word into its contrary."""
    good, negated = generator.random() < 0.5, generator.random() < 0.3
    word = generator.choice(PRAISE if good else BLAME)
    judgment = (
        f"The {generator.choice(JUDGED)} was {'not ' if negated else ''}{generator.choice(['very ', '', ''])}{word}."
    )
    parts = [generator.choice(NEUTRAL), judgment, generator.choice(NEUTRAL)]
    return " ".join(part for part in parts if part), "praise" if good != negated else "complaint"


# synonyms
AGENTS = [("man", "gentleman"), ("woman", "lady"), ("child", "kid"), ("dog", "hound"), ("doctor", "physician")]
ACTS = [("watching", "looking at"), ("mending", "repairing"), ("purchasing", "buying"), ("hiding", "concealing")]
OBJECTS = [("bicycle", "bike"), ("picture", "painting"), ("sofa", "couch"), ("jacket", "coat"), ("stone", "rock")]
WHERE = [("in the woods", "in the forest"), ("at the shore", "at the coast"), ("in the shop", "in the store")]
WHEN = [("at dawn", "early in the morning"), ("at night", "after dark"), ("at noon", "at midday")]
SLOTS = (AGENTS, ACTS, OBJECTS, WHERE, WHEN)


def meaning(generator: Random) -> list[tuple[str, str]]:
    """Choose an agent, an action, an object, a place and a time."""
    return [generator.choice(slot) for slot in SLOTS]


def express(generator: Random, chosen: list[tuple[str, str]]) -> str:
    """Express a meaning in one of its sentences."""
    agent, act, thing, where, when = (generator.choice(words) for words in chosen)
    return generator.choice(
        [
            f"The {agent} is {act} the {thing} {where} {when}.",
            f"{when[0].upper()}{when[1:]} the {agent} is {act} the {thing} {where}.",
        ]
    )


def pair(generator: Random) -> tuple[str, str]:
    """Generate two sentences with the same meaning."""
    chosen = meaning(generator)
    return express(generator, chosen), express(generator, chosen)


def scored_pair(generator: Random) -> tuple[str, str, str]:
    """Generate two sentences and the number of their five parts with the same meaning."""
    one, num_equal = meaning(generator), generator.randint(0, 5)
    equal_parts = set(generator.sample(range(5), num_equal))
    other = [
        chosen if index in equal_parts else generator.choice([words for words in slot if words != chosen])
        for index, (chosen, slot) in enumerate(zip(one, SLOTS, strict=True))
    ]
    return express(generator, one), express(generator, other), str(num_equal)


def distinct(make: Callable[[Random], T], seed: int) -> list[T]:
    """Generate 600 distinct sentences of a grammar."""
    generator, previous = Random(seed), []
    while len(previous) < 600:
        if (output := make(generator)) not in previous:
            previous.append(output)
    return previous


def table(rows: list[tuple[str, ...]], separator: str) -> str:
    """Format rows as CSV or TSV."""
    output = io.StringIO()
    csv.writer(output, delimiter=separator, lineterminator="\n").writerows(rows)
    return output.getvalue()


def files() -> dict[str, str]:
    """Return the text of every file by name; held-out examples are in no training file."""
    output: dict[str, str] = {}
    lines = distinct(translation, 1)
    reports, reviews = distinct(report, 2), distinct(review, 3)
    pairs, scored = distinct(pair, 4), distinct(scored_pair, 5)
    generator = Random(6)
    paragraphs = [paragraph(generator, number) for number in range(120)]
    for name, part in (("train", slice(0, 400)), ("valid", slice(400, 450))):
        for side, language in enumerate(("en", "de")):
            output[f"{name}.{language}"] = "".join(f"{line[side]}\n" for line in lines[part])
        output[f"reports-{name}.jsonl"] = "".join(json.dumps(row) + "\n" for row in reports[part])
        output[f"reviews-{name}.tsv"] = table([("text", "label"), *reviews[part]], "\t")
        output[f"pairs-{name}.csv"] = table([("first", "second"), *pairs[part]], ",")
    generator = Random(7)
    for name, count in (("train", 500), ("valid", 50)):
        output[f"judged-{name}.csv"] = table([("query", "document", "label"), *judged(generator, count)], ",")
    output["questions-train.json"] = squad(paragraphs[:100])
    output["questions-valid.json"] = squad(paragraphs[100:])
    output["scored-train.csv"] = table([("first", "second", "score"), *scored[:400]], ",")
    output["scored-valid.csv"] = table([("first", "second", "score"), *scored[400:450]], ",")
    return output


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for name, text in files().items():
        (DATA / name).write_text(text, encoding="utf-8", newline="\n")
