"""Simple baselines beside the trained models of docs/results.md.

Usage: python benchmarks/baselines.py classification TRAIN TEST
       python benchmarks/baselines.py answers DEV.json

classification: the commonest label of TRAIN; and for each text of TEST the label whose mean vector in TRAIN is nearest,
of vectors by all-MiniLM-L6-v2 as it is. Both files are .tsv (text, label, without a header) or .csv (text,label).
answers: in the sentence that shares most words with the question, the first run of capitalised words or numbers that
the question does not hold; in SQuAD's layout.
"""

import argparse
import csv
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from clearhead import TextEncoder
from clearhead.data.sentences import sentences
from clearhead.data.squad_files import read_questions
from clearhead.metrics.classification import classification_scores
from clearhead.metrics.squad import answer_scores, normalize

RUN = re.compile(r"(?:(?:[A-Z][\w'-]*|\d[\d.,:]*\d|\d)(?: (?:of|the|and|de) (?=[A-Z]))? ?)+")


def labelled(path: Path) -> tuple[list[str], list[str]]:
    """Texts and their labels."""
    if path.suffix == ".tsv":
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
    else:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
    return [row[0] for row in rows], [row[1] for row in rows]


def classification(train: Path, test: Path) -> None:
    (known, of_known), (asked, wanted) = labelled(train), labelled(test)
    names = sorted(set(of_known))
    commonest = Counter(of_known).most_common(1)[0][0]
    report("the commonest label", wanted, [commonest] * len(asked), names)
    encoder = TextEncoder.from_pretrained()
    places = defaultdict(list)
    for place, label in enumerate(of_known):
        places[label].append(place)
    vectors = encoder.encode(known)
    means = np.stack([vectors[places[name]].mean(axis=0) for name in names])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    nearest = (encoder.encode(asked) @ means.T).argmax(axis=1)
    report("the nearest mean vector", wanted, [names[place] for place in nearest], names)


def report(name: str, wanted: list[str], found: list[str], names: list[str]) -> None:
    scores = classification_scores(found, wanted, labels=names)
    print(f"{name}: accuracy {scores.accuracy:.2f}, macro F1 {scores.macro_f1:.2f}")


def answers(dev: Path) -> None:
    data = read_questions(dev)
    found = {question.id: guess(question.question, question.context) for question in data.questions}
    scores = answer_scores(data, found)
    print(f"a capitalised word or number near by: exact match {scores.exact_match:.2f}, F1 {scores.f1:.2f}")


def guess(question: str, context: str) -> str:
    """The first name or number, that is not in the question, of the sentence that is most like it."""
    words = set(normalize(question).split())
    best = sorted(sentences(context), key=lambda sentence: -len(words & set(normalize(sentence).split())))
    for sentence in best:
        for run in RUN.findall(sentence):
            if not words & set(normalize(run).split()) and normalize(run):
                return run.strip()
    return best[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["classification", "answers"])
    parser.add_argument("files", type=Path, nargs="+")
    told = parser.parse_args()
    if told.task == "classification":
        classification(*told.files)
    else:
        answers(*told.files)


if __name__ == "__main__":
    main()
