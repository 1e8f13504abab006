"""Prepare the training data of `docs/results.md` from the published data sets.

Usage: python recipes/prepare.py NAME FOLDER [OUT]

FOLDER contains the data set NAME. The output folder is data/NAME, or OUT. A fixed seed makes the files reproducible.
The published test or validation files are used only for the final score, and the validation data is split off the
training files; banking77 splits its training file into three.
"""

import argparse
import csv
import gzip
import json
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SEED = 1


def lines(path: Path) -> list[str]:
    """Read the lines of a text file; unlike `splitlines`, split only at line feeds."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def write(path: Path, rows: Iterable[str]) -> None:
    """Write one line per row."""
    text = "".join(row + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{path}: {text.count(chr(10))} lines")


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write the rows as CSV, quoted where necessary."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    print(path)


def split(rows: list[Any], held_out: int) -> tuple[list[Any], list[Any]]:
    """Split rows at random into training and held-out rows."""
    held_out_indices = set(random.Random(SEED).sample(range(len(rows)), held_out))
    return [row for index, row in enumerate(rows) if index not in held_out_indices], [
        rows[index] for index in sorted(held_out_indices)
    ]


def scitldr(folder: Path, out: Path) -> None:
    """Abstracts with one summary each, as rows of source and target; 192 are for validation."""
    rows = [
        {"source": " ".join(text.strip() for text in paper["source"]), "target": paper["target"][0].strip()}
        for paper in map(json.loads, lines(folder / "train.jsonl"))
    ]
    for name, selected in zip(("train", "valid"), split(rows, 192), strict=True):
        write(out / f"{name}.jsonl", (json.dumps(row, ensure_ascii=False) for row in selected))


def squad(folder: Path, out: Path) -> None:
    """20,000 questions on complete paragraphs of SQuAD 1.1's training file; 1,000 on other articles for validation."""
    with gzip.open(folder / "train-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    generator = random.Random(SEED)
    generator.shuffle(articles)
    held_out, rest = articles[:20], articles[20:]
    for name, selected, num_questions in (("train", rest, 20_000), ("valid", held_out, 1_000)):
        paragraphs = [paragraph for article in selected for paragraph in article["paragraphs"]]
        generator.shuffle(paragraphs)
        kept: list[Any] = []
        for paragraph in paragraphs:
            questions = paragraph["qas"][: num_questions - sum(len(item["qas"]) for item in kept)]
            if not questions:
                break
            kept.append({**paragraph, "qas": questions})
        path = out / f"{name}.json"
        path.write_text(json.dumps({"version": "1.1", "data": [{"title": name, "paragraphs": kept}]}), encoding="utf-8")
        print(f"{path}: {sum(len(item['qas']) for item in kept)} questions")


def squad_reranking(folder: Path, out: Path) -> None:
    """Questions with the passage that answers them, label 1, and others of the same article, label 0, from SQuAD 1.1.

    A passage is a piece of a paragraph, at most 60 words. 12,000 questions have 3 other passages: two that share the
    most words with the question, and a random one. 200 questions on other articles, with 9 other passages, are for
    validation.
    """
    with gzip.open(folder / "train-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    generator = random.Random(SEED)
    generator.shuffle(articles)
    for name, selected, num_questions, num_others in (
        ("train", articles[20:], 12_000, 3),
        ("valid", articles[:20], 200, 9),
    ):
        questions: list[tuple[str, str, list[str]]] = []
        for article in selected:
            paragraphs = [passages(paragraph["context"]) for paragraph in article["paragraphs"]]
            texts = list(dict.fromkeys(text for pieces in paragraphs for _, text in pieces))
            for paragraph, pieces in zip(article["paragraphs"], paragraphs, strict=True):
                for question in paragraph["qas"]:
                    start = question["answers"][0]["answer_start"]
                    answer = next(text for position, text in reversed(pieces) if position <= start)
                    questions.append((question["question"].strip(), answer, texts))
        rows: list[tuple[str, str, int]] = []
        for query, answer, texts in generator.sample(questions, num_questions):
            others = shared_words_first(query, [text for text in texts if text != answer])
            chosen = [*others[: num_others - 1], generator.choice(others[num_others - 1 :])]
            rows += [(query, answer, 1), *((query, other, 0) for other in chosen)]
        if name == "train":
            generator.shuffle(rows)
        records = (dict(zip(("query", "document", "label"), row, strict=True)) for row in rows)
        write(out / f"{name}.jsonl", (json.dumps(record, ensure_ascii=False) for record in records))


def passages(paragraph: str, max_words: int = 60) -> list[tuple[int, str]]:
    """Return the pieces of a paragraph with their positions: whole sentences, about `max_words` words each."""
    sentence = re.compile(r"\S.*?(?:[.!?]['\")\]]*(?=\s+[A-Z\d])|\Z)", re.DOTALL)
    sentences = [(match.start(), " ".join(match.group().split())) for match in sentence.finditer(paragraph)]
    pieces: list[tuple[int, str]] = []
    for start, text in sentences:
        if pieces and len((pieces[-1][1] + " " + text).split()) <= max_words:
            pieces[-1] = (pieces[-1][0], f"{pieces[-1][1]} {text}")
        else:
            pieces.append((start, text))
    return pieces


def shared_words_first(query: str, texts: list[str]) -> list[str]:
    """Sort texts by the words that they share with a query; rare words count more."""
    words = [set(re.findall(r"\w+", text.lower())) for text in texts]
    wanted = set(re.findall(r"\w+", query.lower()))
    counts = Counter(word for text in words for word in text & wanted)
    weights = [sum(math.log((1 + len(texts)) / counts[word]) for word in text & wanted) for text in words]
    return [texts[index] for index in sorted(range(len(texts)), key=lambda index: -weights[index])]


def sst2(folder: Path, out: Path) -> None:
    """Sentences with their sentiment, 0 or 1; 692 are for validation."""
    for name, selected in zip(("train", "valid"), split(lines(folder / "train.tsv"), 692), strict=True):
        write(out / f"{name}.tsv", selected)
    write(out / "dev.tsv", lines(folder / "dev.tsv"))


def banking77(folder: Path, out: Path) -> None:
    """Customer questions with their intent; a fifth of each intent is for testing, a twentieth for validation."""
    with (folder / "train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    of_intent: dict[str, list[list[str]]] = defaultdict(list)
    for row in rows:
        of_intent[row["category"]].append([" ".join(row["text"].split()), row["category"]])
    generator = random.Random(SEED)
    splits: dict[str, list[list[str]]] = {"train": [], "valid": [], "test": []}
    for selected in of_intent.values():
        generator.shuffle(selected)
        fifth, twentieth = len(selected) // 5, -(-len(selected) // 20)
        splits["test"] += selected[:fifth]
        splits["valid"] += selected[fifth : fifth + twentieth]
        splits["train"] += selected[fifth + twentieth :]
    for name, selected in splits.items():
        write_csv(out / f"{name}.csv", [["text", "label"], *selected])


def stsb(folder: Path, out: Path) -> None:
    """Sentence pairs with a score from 0 to 5; 749 are for validation."""
    with (folder / "stsb-en-train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    for name, selected in zip(("train", "valid"), split(rows, 749), strict=True):
        write_csv(out / f"{name}.csv", [["first", "second", "score"], *selected])


DATA_SETS: dict[str, Callable[[Path, Path], None]] = {
    "scitldr": scitldr,
    "squad": squad,
    "squad-reranking": squad_reranking,
    "sst2": sst2,
    "banking77": banking77,
    "stsb": stsb,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=DATA_SETS, help="name of the data set")
    parser.add_argument("folder", type=Path, help="folder of its files")
    parser.add_argument("out", type=Path, nargs="?", help="output folder")
    args = parser.parse_args()
    out: Path = args.out or Path("data") / args.name
    out.mkdir(parents=True, exist_ok=True)
    DATA_SETS[args.name](args.folder, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
