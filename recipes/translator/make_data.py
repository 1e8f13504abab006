"""Prepare the training data of the translators in the package.

Usage: python recipes/translator/make_data.py {en-de,de-en} FOLDER [OUT] [--generated N] [--seed N]

FOLDER has the sentence pairs of tatoeba.org: train.en, train.de, dev.en, dev.de. OUT is data/translator-en-de or
data/translator-de-en by default, and gets train, valid and dev in both languages. A fixed seed makes the files
reproducible.

- valid: 1,500 distinct sources that are cut from train, with all their translations and everything that shares one.
- dev: the held-out pairs, for the final score. Train and valid have none of their sentences, in either language.
- train: the other pairs; generated pairs with numbers, times, dates, prices and names; pairs with placeholders for
  what is copied; pairs with other names; texts of two to five sentences; notes without capital and full stop.
"""

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from copies import Pair, with_other_name, with_placeholders, with_symbol
from generate import generate
from slots import name

NUM_VALIDATION = 1500
_MAX_GROUP = 12
"""Largest group of pairs that is cut from train: groups of pairs such as "Yes." would take many sentences with them."""


def read(folder: Path, part: str) -> list[Pair]:
    """Read the pairs of a part; unlike `splitlines`, split only at line feeds."""
    english, german = (
        (folder / f"{part}.{language}").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for language in ("en", "de")
    )
    return list(zip(english, german, strict=True))


def write(out: Path, part: str, pairs: Iterable[Pair]) -> None:
    """Write the pairs of a part."""
    listed = list(pairs)
    for number, language in enumerate(("en", "de")):
        path = out / f"{part}.{language}"
        path.write_text("".join(f"{pair[number]}\n" for pair in listed), encoding="utf-8", newline="\n")
    print(f"{out / part}.en, .de: {len(listed)} pairs")


def groups(pairs: list[Pair]) -> list[list[Pair]]:
    """Return the pairs in groups: pairs that share a sentence are in one group, directly or over other pairs.

    >>> groups([("a", "A"), ("b", "B"), ("a", "B")])
    [[('a', 'A'), ('b', 'B'), ('a', 'B')]]
    """
    parent: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for english, german in pairs:
        parent[root((0, english))] = root((1, german))
    result: dict[tuple[int, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        result[root((0, pair[0]))].append(pair)
    return list(result.values())


def split(pairs: list[Pair], num_sources: int, side: int, r: random.Random) -> tuple[list[Pair], list[Pair]]:
    """Cut pairs with a number of distinct sources from train; no sentence is in both parts.

    Args:
        pairs: all pairs.
        num_sources: number of distinct sources of the validation pairs.
        side: 0 if the sources are English, 1 if they are German.
        r: the source of randomness.
    """
    shuffled = groups(pairs)
    r.shuffle(shuffled)
    held_out: list[Pair] = []
    sources: set[str] = set()
    for group in shuffled:
        own = {pair[side] for pair in group}
        if len(group) <= _MAX_GROUP and len(sources | own) <= num_sources:
            held_out += group
            sources |= own
    selected = set(held_out)
    return [pair for pair in pairs if pair not in selected], sorted(held_out, key=lambda pair: pair[side])


def without(pairs: list[Pair], held_out: list[Pair]) -> list[Pair]:
    """Return the pairs whose two sentences are in no held-out pair."""
    english, german = ({pair[side] for pair in held_out} for side in (0, 1))
    return [pair for pair in pairs if pair[0] not in english and pair[1] not in german]


def augmented(pairs: list[Pair], r: random.Random) -> list[Pair]:
    """Return further training pairs that are made of the pairs: with placeholders, names, joined, and as notes."""
    copying = [own for pair in pairs if (own := with_placeholders(pair, r)) and r.random() < 0.6]
    renamed = [own for pair in pairs if r.random() < 0.3 and (own := with_other_name(pair, name(r).en))]
    symbols = [with_symbol(*r.sample(pairs, 2), r) for _ in range(4000)]
    joined = [
        tuple(" ".join(side) for side in zip(*r.sample(pairs, r.randint(2, 5)), strict=True)) for _ in range(10_000)
    ]
    notes = [
        (english[:1].lower() + english[1:].rstrip(".?!"), german.rstrip(".?!"))
        for english, german in r.sample(pairs, min(5000, len(pairs)))
        if not english.startswith(("I ", "I'"))
    ]
    return [*copying, *renamed, *symbols, *joined, *notes]  # type: ignore[list-item]  # joined has pairs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("direction", choices=["en-de", "de-en"])
    parser.add_argument("folder", type=Path, help="folder of train.en, train.de, dev.en and dev.de")
    parser.add_argument("out", type=Path, nargs="?", help="output folder")
    parser.add_argument("--generated", type=int, default=40_000, help="number of generated pairs")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    source, target = args.direction.split("-")
    r = random.Random(f"{args.seed} {args.direction}")
    dev = read(args.folder, "dev")
    pairs = without(list(dict.fromkeys(read(args.folder, "train"))), dev)
    train, valid = split(pairs, NUM_VALIDATION, ("en", "de").index(source), r)
    train += [*augmented(train, r), *generate(args.generated, target, args.seed)]
    out = args.out or Path("data") / f"translator-{args.direction}"
    out.mkdir(parents=True, exist_ok=True)
    write(out, "train", without(train, [*valid, *dev]))  # generated sentences can be held-out ones by chance
    write(out, "valid", valid)
    write(out, "dev", dev)
    return 0


if __name__ == "__main__":
    sys.exit(main())
