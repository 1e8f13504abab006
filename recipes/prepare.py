"""Makes the files that the recipes of `docs/results.md` learn from, out of the public data sets as they are published.

Usage: python recipes/prepare.py tatoeba FOLDER OUT

What is drawn is drawn from a fixed seed: the same files come out everywhere.
"""

import argparse
import random
import sys
from pathlib import Path

SEED = 1


def lines(path: Path) -> list[str]:
    """A text file's lines; not `splitlines`, which also splits at characters within a line."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def write(path: Path, rows: list[str]) -> None:
    """A line for each row."""
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8", newline="\n")
    print(f"{path}: {len(rows)} lines")


def tatoeba(folder: Path, out: Path) -> None:
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
        write(out / f"train.{language}", [pair[number] for pair in (*pairs, *joined, *notes)])
        write(out / f"dev.{language}", lines(folder / f"dev.{language}"))


PREPARED = {"tatoeba": tatoeba}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PREPARED, help="the data set")
    parser.add_argument("folder", type=Path, help="where its files are")
    parser.add_argument("out", type=Path, help="the folder for what is made of them")
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    PREPARED[told.name](told.folder, told.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
