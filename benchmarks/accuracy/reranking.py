"""Measure how much a cross-encoder improves the ranking of a bi-encoder on SQuAD's questions.

Usage: python benchmarks/accuracy/reranking.py DEV.json[.gz] RERANKER [--encoder all-MiniLM-L6-v2] [--questions 1000]
       [--candidates 20] [--precision auto]

Each question searches all paragraphs of the file. The bi-encoder's vectors give its best CANDIDATES paragraphs, and the
cross-encoder ranks them again. A question's own paragraph is the only relevant one. MRR@10 and accuracy@1 of both; a
question whose paragraph is not among the candidates counts 0.
"""

import argparse
import gzip
import json
import random
from pathlib import Path

import numpy as np

from clearhead import Reranker, TextEncoder


def read(path, count):
    """Return the paragraphs, and a random sample of (question, index of its paragraph)."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        articles = json.load(file)["data"]
    paragraphs, questions = [], []
    for article in articles:
        for paragraph in article["paragraphs"]:
            questions += [(question["question"].strip(), len(paragraphs)) for question in paragraph["qas"]]
            paragraphs.append(paragraph["context"])
    return paragraphs, random.Random(1).sample(questions, min(count, len(questions)))


def scores(ranks):
    """Return MRR@10 and accuracy@1 of ranks from 1; 0 for a paragraph that was not found."""
    reciprocal = [1 / rank if 1 <= rank <= 10 else 0.0 for rank in ranks]
    return {"mrr@10": float(np.mean(reciprocal)), "accuracy@1": float(np.mean([rank == 1 for rank in ranks]))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("reranker")
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--precision", default="auto")
    args = parser.parse_args()
    paragraphs, questions = read(args.file, args.questions)
    encoder = TextEncoder.from_pretrained(args.encoder, precision=args.precision)
    similarity = encoder.similarity([question for question, _ in questions], paragraphs)
    candidates = np.argsort(-similarity, axis=1, kind="stable")[:, : args.candidates]
    reranker = Reranker.from_pretrained(args.reranker, precision=args.precision)
    before, after = [], []
    for (question, relevant), found in zip(questions, candidates.tolist(), strict=True):
        before.append(1 + found.index(relevant) if relevant in found else 0)
        ranking = next(reranker.stream([question], [paragraphs[index] for index in found]))
        order = [found[one.index] for one in ranking]
        after.append(1 + order.index(relevant) if relevant in order else 0)
    about = {"paragraphs": len(paragraphs), "questions": len(questions), "candidates": args.candidates}
    print(json.dumps(about | {"found": float(np.mean([rank > 0 for rank in before]))}))
    print(json.dumps({"bi-encoder": scores(before), "reranked": scores(after)}, indent=1))


if __name__ == "__main__":
    main()
