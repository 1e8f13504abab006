"""Compare all-MiniLM-L6-v2 in Clearhead with sentence-transformers: distances, correlations, and batch invariance.

Usage: python benchmarks/accuracy/agreement.py PAIRS.csv [--json FILE]

PAIRS.csv has the columns text, text, score. The first 400 texts are also encoded one by one.
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
    args = parser.parse_args()
    first, second, scores = read_pairs(args.pairs)
    texts = [*first, *second]
    encoders = {name: TextEncoder.from_pretrained(precision=name, device="cpu") for name in ("float32", "bfloat16")}
    reference_model = sentence_transformers.SentenceTransformer(str(hub.resolve_model(hub.DEFAULT_MODEL)), device="cpu")
    float32, bfloat16, reference = (
        encoders["float32"].encode(texts),
        encoders["bfloat16"].encode(texts),
        reference_model.encode(texts),
    )
    first_texts = texts[:400]
    unbatched = np.concatenate([encoders["float32"].encode([text]) for text in first_texts])
    distances = np.linalg.norm(unbatched - float32[: len(first_texts)], axis=1)
    cosines = (reference[: len(first)] * reference[len(first) :]).sum(axis=1)
    figures = {
        "spearman of sentence-transformers": float(stats.spearmanr(cosines, scores).statistic),
        "spearman of Clearhead": evaluate_similarity(lambda _: float32, first, second, scores).spearman,
        "largest distance to sentence-transformers": float(np.linalg.norm(float32 - reference, axis=1).max()),
        "smallest cosine of bfloat16 with float32": float((float32 * bfloat16).sum(axis=1).min()),
        "largest distance between a text alone and in a batch": float(distances.max()),
        "median of these distances": float(np.median(distances)),
    }
    for name, figure in figures.items():
        print(f"{name}: {figure:.7g}")
    if args.json:
        environment = {"machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
        args.json.write_text(json.dumps({**environment, **figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
