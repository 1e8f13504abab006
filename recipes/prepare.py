"""Makes the files that the runs of `docs/results.md` learn from, out of the public data sets as they are published.

Usage: python recipes/prepare.py NAME FOLDER [OUT]

FOLDER holds the data set NAME; what is made goes to data/NAME, or OUT. What is drawn is drawn from a fixed seed: the
same files come out everywhere. What is held out by the publisher is for the last score alone, and validation is taken
from the training files; but of tatoeba-en-de there is one held-out half for both, and of banking77 the training file
alone is read, and parted in three.
"""

import argparse
import csv
import gzip
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SEED = 1


def lines(path: Path) -> list[str]:
    """A text file's lines; not `splitlines`, which also splits at characters within a line."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def write(path: Path, rows: Iterable[str]) -> None:
    """A line for each row."""
    text = "".join(row + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{path}: {text.count(chr(10))} lines")


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """A row for each row, quoted where needed."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    print(path)


def parted(rows: list[Any], held_out: int) -> tuple[list[Any], list[Any]]:
    """The rows but some, and those, drawn."""
    drawn = set(random.Random(SEED).sample(range(len(rows)), held_out))
    return [row for place, row in enumerate(rows) if place not in drawn], [rows[place] for place in sorted(drawn)]


def tatoeba_en_de(folder: Path, out: Path) -> None:
    """The sentence pairs, and beside those of train.en and train.de what users type and the corpus lacks.

    Tatoeba's entries are single sentences of 6 words on average, with a capital and a full stop. So 10,000 lines of
    two to five pairs in a row teach longer texts, and 5,000 without the capital and the stop teach notes.
    """
    pairs = list(zip(lines(folder / "train.en"), lines(folder / "train.de"), strict=True))
    draw = random.Random(SEED)
    joined = [
        tuple(" ".join(side) for side in zip(*draw.sample(pairs, draw.randint(2, 5)), strict=True))
        for _ in range(10_000)
    ]
    notes = [
        (english[:1].lower() + english[1:].rstrip(".?!"), german.rstrip(".?!"))
        for english, german in draw.sample(pairs, 5_000)
        if not english.startswith(("I ", "I'"))
    ]
    for number, language in enumerate(("en", "de")):
        write(out / f"train.{language}", (pair[number] for pair in (*pairs, *joined, *notes)))
        write(out / f"dev.{language}", lines(folder / f"dev.{language}"))


def scitldr(folder: Path, out: Path) -> None:
    """Abstracts with one summary each, as rows of source and target; 192 of them for validation."""
    rows = [
        {"source": " ".join(text.strip() for text in paper["source"]), "target": paper["target"][0].strip()}
        for paper in map(json.loads, lines(folder / "train.jsonl"))
    ]
    for name, some in zip(("train", "valid"), parted(rows, 192), strict=True):
        write(out / f"{name}.jsonl", (json.dumps(row, ensure_ascii=False) for row in some))


def squad(folder: Path, out: Path) -> None:
    """20,000 questions of SQuAD 1.1's training half, whole paragraphs of many articles; 1,000 of other articles for
    validation."""
    with gzip.open(folder / "train-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    draw = random.Random(SEED)
    draw.shuffle(articles)
    held_out, rest = articles[:20], articles[20:]
    for name, some, wanted in (("train", rest, 20_000), ("valid", held_out, 1_000)):
        paragraphs = [paragraph for article in some for paragraph in article["paragraphs"]]
        draw.shuffle(paragraphs)
        kept: list[Any] = []
        for paragraph in paragraphs:
            questions = paragraph["qas"][: wanted - sum(len(one["qas"]) for one in kept)]
            if not questions:
                break
            kept.append({**paragraph, "qas": questions})
        path = out / f"{name}.json"
        path.write_text(json.dumps({"version": "1.1", "data": [{"title": name, "paragraphs": kept}]}), encoding="utf-8")
        print(f"{path}: {sum(len(one['qas']) for one in kept)} questions")


def sst2(folder: Path, out: Path) -> None:
    """Sentences with their sentiment, 0 or 1; 692 for validation."""
    for name, some in zip(("train", "valid"), parted(lines(folder / "train.tsv"), 692), strict=True):
        write(out / f"{name}.tsv", some)
    write(out / "dev.tsv", lines(folder / "dev.tsv"))


def banking77(folder: Path, out: Path) -> None:
    """Customers' questions with their intent. Of each intent a fifth is for the last score, a twentieth for
    validation."""
    with (folder / "train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    of_intent: dict[str, list[list[str]]] = defaultdict(list)
    for row in rows:
        of_intent[row["category"]].append([" ".join(row["text"].split()), row["category"]])
    draw = random.Random(SEED)
    made: dict[str, list[list[str]]] = {"train": [], "valid": [], "test": []}
    for some in of_intent.values():
        draw.shuffle(some)
        fifth, twentieth = len(some) // 5, -(-len(some) // 20)
        made["test"] += some[:fifth]
        made["valid"] += some[fifth : fifth + twentieth]
        made["train"] += some[fifth + twentieth :]
    for name, some in made.items():
        write_csv(out / f"{name}.csv", [["text", "label"], *some])


def stsb(folder: Path, out: Path) -> None:
    """Sentence pairs with a score from 0 to 5; 749 for validation."""
    with (folder / "stsb-en-train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    for name, some in zip(("train", "valid"), parted(rows, 749), strict=True):
        write_csv(out / f"{name}.csv", [["first", "second", "score"], *some])


PREPARED: dict[str, Callable[[Path, Path], None]] = {
    "tatoeba-en-de": tatoeba_en_de,
    "scitldr": scitldr,
    "squad": squad,
    "sst2": sst2,
    "banking77": banking77,
    "stsb": stsb,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PREPARED, help="the data set")
    parser.add_argument("folder", type=Path, help="where its files are")
    parser.add_argument("out", type=Path, nargs="?", help="the folder for what is made of them")
    told = parser.parse_args()
    out: Path = told.out or Path("data") / told.name
    out.mkdir(parents=True, exist_ok=True)
    PREPARED[told.name](told.folder, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
