"""all-MiniLM-L6-v2 here and in sentence-transformers: distances, correlations, and a text alone against in company.

Usage: python benchmarks/agreement.py PAIRS.csv [--json FILE]

PAIRS.csv holds text, text, score. The first 400 texts are also encoded one by one.
"""

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
from scipy import stats

from clearhead import TextEncoder
from clearhead.io import hub
from clearhead.metrics.similarity import evaluate_similarity, read_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    first, second, scores = read_pairs(options.pairs)
    texts = [*first, *second]
    ours = {name: TextEncoder.from_pretrained(precision=name, device="cpu") for name in ("float32", "bfloat16")}
    theirs = sentence_transformers.SentenceTransformer(str(hub.resolve_model(hub.DEFAULT_MODEL)), device="cpu")
    exact, half, peer = ours["float32"].encode(texts), ours["bfloat16"].encode(texts), theirs.encode(texts)
    some = texts[:400]
    alone = np.concatenate([ours["float32"].encode([text]) for text in some])
    apart = np.linalg.norm(alone - exact[: len(some)], axis=1)
    cosines = (peer[: len(first)] * peer[len(first) :]).sum(axis=1)
    figures = {
        "spearman of sentence-transformers": float(stats.spearmanr(cosines, scores).statistic),
        "spearman here": evaluate_similarity(lambda asked: exact, first, second, scores).spearman,
        "largest distance to sentence-transformers": float(np.linalg.norm(exact - peer, axis=1).max()),
        "smallest cosine of bfloat16 with float32": float((exact * half).sum(axis=1).min()),
        "largest distance of a text alone to itself in company": float(apart.max()),
        "median of that": float(np.median(apart)),
    }
    for name, figure in figures.items():
        print(f"{name}: {figure:.7g}")
    if options.json:
        about = {"machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
        options.json.write_text(json.dumps({**about, **figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
