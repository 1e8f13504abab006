"""Encode the lines of a text file and print the most similar pairs.

Usage: python examples/similar_sentences.py FILE [HOW_MANY]
"""

import sys
from pathlib import Path

import numpy as np

from clearhead import TextEncoder


def main(path: Path, num_pairs: int) -> None:
    sentences = path.read_text(encoding="utf-8").splitlines()
    vectors = TextEncoder.from_pretrained().encode(sentences)
    cosines = vectors @ vectors.T  # the vectors have length 1
    pairs = np.argwhere(np.triu(np.ones_like(cosines, dtype=bool), k=1))
    best = sorted(pairs, key=lambda pair: -cosines[tuple(pair)])[:num_pairs]
    print(f"The {num_pairs} most similar pairs of {len(sentences)} sentences:\n")
    for first, second in best:
        print(f"{cosines[first, second]:.3f}  {sentences[first]}\n       {sentences[second]}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8)
