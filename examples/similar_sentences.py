"""Encodes the lines of a text file and prints the pairs that mean most nearly the same.

Usage: python examples/similar_sentences.py FILE [HOW_MANY]
"""

import sys
from pathlib import Path

import numpy as np

from clearhead import TextEncoder


def main(path: Path, how_many: int) -> None:
    sentences = path.read_text(encoding="utf-8").splitlines()
    vectors = TextEncoder.from_pretrained().encode(sentences)
    cosines = vectors @ vectors.T  # the model gives vectors of length 1
    pairs = np.argwhere(np.triu(np.ones_like(cosines, dtype=bool), k=1))
    best = sorted(pairs, key=lambda pair: -cosines[tuple(pair)])[:how_many]
    print(f"The {how_many} most similar pairs of {len(sentences)} sentences:\n")
    for one, other in best:
        print(f"{cosines[one, other]:.3f}  {sentences[one]}\n       {sentences[other]}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8)
