"""Simple baselines for the trained models of docs/results.md.

Usage: python benchmarks/accuracy/baselines.py classification TRAIN TEST
       python benchmarks/accuracy/baselines.py answers DEV.json

classification: predict the most frequent label of TRAIN, or the label with the nearest mean vector in TRAIN. The
vectors are those of all-MiniLM-L6-v2 without fine-tuning. Files are .tsv (text, label, no header) or .csv (text,label).
answers: in the sentence that shares the most words with the question, predict the first sequence of capitalized words
or numbers that the question does not contain. DEV.json has SQuAD's format.
"""

import argparse
import csv
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from clearhead import TextEncoder
from clearhead.data.sentences import sentences
from clearhead.data.squad import read_questions
from clearhead.metrics.classification import classification_scores
from clearhead.metrics.squad import answer_scores, normalize

NAME_OR_NUMBER = re.compile(r"(?:(?:[A-Z][\w'-]*|\d[\d.,:]*\d|\d)(?: (?:of|the|and|de) (?=[A-Z]))? ?)+")


def read_labelled(path: Path) -> tuple[list[str], list[str]]:
    """Read texts and their labels."""
    if path.suffix == ".tsv":
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
    else:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
    return [row[0] for row in rows], [row[1] for row in rows]


def classification(train: Path, test: Path) -> None:
    (train_texts, train_labels), (test_texts, expected) = read_labelled(train), read_labelled(test)
    names = sorted(set(train_labels))
    most_frequent = Counter(train_labels).most_common(1)[0][0]
    report("most frequent label", expected, [most_frequent] * len(test_texts), names)
    encoder = TextEncoder.from_pretrained()
    indices = defaultdict(list)
    for index, label in enumerate(train_labels):
        indices[label].append(index)
    vectors = encoder.encode(train_texts)
    means = np.stack([vectors[indices[name]].mean(axis=0) for name in names])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    nearest = (encoder.encode(test_texts) @ means.T).argmax(axis=1)
    report("nearest mean vector", expected, [names[index] for index in nearest], names)


def report(name: str, expected: list[str], predictions: list[str], names: list[str]) -> None:
    scores = classification_scores(predictions, expected, labels=names)
    print(f"{name}: accuracy {scores.accuracy:.2f}, macro F1 {scores.macro_f1:.2f}")


def answers(dev: Path) -> None:
    data = read_questions(dev)
    predictions = {question.id: predict(question.question, question.context) for question in data.questions}
    scores = answer_scores(data, predictions)
    print(f"nearby capitalized word or number: exact match {scores.exact_match:.2f}, F1 {scores.f1:.2f}")


def predict(question: str, context: str) -> str:
    """Return the first name or number outside the question, from the sentence most similar to the question."""
    words = set(normalize(question).split())
    best = sorted(sentences(context), key=lambda sentence: -len(words & set(normalize(sentence).split())))
    for sentence in best:
        for candidate in NAME_OR_NUMBER.findall(sentence):
            if not words & set(normalize(candidate).split()) and normalize(candidate):
                return candidate.strip()
    return best[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["classification", "answers"])
    parser.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    if args.task == "classification":
        classification(*args.files)
    else:
        answers(*args.files)


if __name__ == "__main__":
    main()
