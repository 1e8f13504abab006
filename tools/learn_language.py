"""Learn the statistics of `clearhead.pipelines.seq2seq.language_detection`: the n-grams that tell English from German.

Usage: python tools/learn_language.py train.en train.de [NUMBER]

Prints n-grams of three or fewer letters with their weights, the NUMBER most informative of each language. A weight is
the logarithm of how much more frequent an n-gram is in the texts of one language.
"""

import math
import sys
from collections import Counter
from pathlib import Path

from clearhead.pipelines.seq2seq.language_detection import ngrams


def main(english: Path, german: Path, number: int) -> None:
    counts = []
    for path in (english, german):
        lines = path.read_text(encoding="utf-8").split("\n")
        counts.append(Counter(ngram for line in lines for ngram in set(ngrams(line))))
    totals = [counter.total() for counter in counts]
    weights: dict[str, float] = {}
    for ngram in counts[0].keys() | counts[1].keys():
        frequencies = [(counter[ngram] + 1) / total for counter, total in zip(counts, totals, strict=True)]
        weights[ngram] = math.log(frequencies[0] / frequencies[1])
    information = {
        ngram: abs(weight) * max(c[ngram] / t for c, t in zip(counts, totals, strict=True))
        for ngram, weight in weights.items()
    }
    ranked = sorted(weights, key=lambda ngram: -information[ngram])
    for name, sign in (("ENGLISH", 1), ("GERMAN", -1)):
        chosen = [ngram for ngram in ranked if sign * weights[ngram] > 0][:number]
        by_weight: dict[int, list[str]] = {}
        for ngram in chosen:
            by_weight.setdefault(max(1, min(6, round(abs(weights[ngram])))), []).append(ngram)
        rows = {weight: " ".join(sorted(by_weight[weight])) for weight in sorted(by_weight, reverse=True)}
        sys.stdout.write(f"_{name} = {rows!r}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 200)
