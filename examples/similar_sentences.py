"""Encode the lines of a text file and print the most similar pairs.

Usage: python examples/similar_sentences.py FILE [NUMBER_OF_PAIRS]
"""

import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from clearhead import TextEncoder


def main(path: Path, num_pairs: int) -> None:
    sentences = path.read_text(encoding="utf-8").splitlines()
    vectors = TextEncoder.from_pretrained().encode(sentences)
    cosines = vectors @ vectors.T  # the vectors have length 1
    pairs = np.argwhere(np.triu(np.ones_like(cosines, dtype=bool), k=1))
    best = sorted(pairs, key=lambda pair: -cosines[tuple(pair)])[:num_pairs]
    table = Table("cosine", "sentence", "similar sentence", title=f"Most similar pairs of {len(sentences)} sentences")
    for first, second in best:
        table.add_row(f"{cosines[first, second]:.2f}", sentences[first], sentences[second])
    Console().print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8)
