"""Answers to questions, as the official scripts of SQuAD 1.1 and 2.0 score them: exact match and F1."""

import logging
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clearhead.data.squad_files import AnswerData, Question, Rules

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartScores:
    """Means over some questions, in percent.

    Args:
        exact_match: of `exact_match`.
        f1: of `f1`.
        questions: how many there are.
    """

    exact_match: float
    f1: float
    questions: int


@dataclass(frozen=True)
class AnswerScores(PartScores):
    """Means over all questions, in percent.

    Args:
        missing: questions without a prediction; each counts 0.
        has_answer, no_answer: the questions that have an answer and those that have none; None where there are no such
            questions, and under the rules of 1.1.
    """

    missing: int
    has_answer: PartScores | None
    no_answer: PartScores | None


def normalize(text: str) -> str:
    """A text as it is compared: in lower case, without ASCII punctuation, English articles and spare white space.

    Source: Rajpurkar et al. 2016, "SQuAD", Section 6.1, as the official script does it

    >>> normalize("The  Bridge's end!")
    'bridges end'
    """
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(prediction: str, answers: Sequence[str], *, rules: Rules = "2.0") -> float:
    """1 where the prediction is one of the answers, but for what `normalize` takes away; else 0.

    Equation: EM = max_a [norm(p) = norm(a)]
    Source: Rajpurkar et al. 2016, "SQuAD", Section 6.1; 2018 for questions without an answer

    Args:
        prediction: the answer to score; "" for none.
        answers: the right ones; () where none is the right one (2.0).
        rules: "2.0" leaves out answers of which `normalize` leaves nothing; "1.1" keeps them.

    Raises:
        ValueError: other rules; no answers under the rules of 1.1.

    >>> exact_match("bridge", ["The bridge.", "a ferry"])
    1.0
    """
    return max(float(normalize(prediction) == normalize(answer)) for answer in _golds(answers, rules))


def f1(prediction: str, answers: Sequence[str], *, rules: Rules = "2.0") -> float:
    """How many words the prediction and the answer nearest to it have in common, from 0 to 1.

    Equation: F1 = max_a 2 P R / (P + R), P = |p ∩ a| / |p|, R = |p ∩ a| / |a|, of bags of normalised words
    Source: Rajpurkar et al. 2016, "SQuAD", Section 6.1; 2018 for questions without an answer

    Args: as in `exact_match`. Where one of the two has no words, 2.0 gives 1 if the other has none either; 1.1 gives 0.

    Raises:
        ValueError: as in `exact_match`.

    >>> f1("the old bridge", ["bridge", "ferry"])
    0.6666666666666666
    """
    words = normalize(prediction).split()
    return max(_overlap(words, normalize(answer).split(), rules) for answer in _golds(answers, rules))


def answer_scores(data: AnswerData, predictions: Mapping[str, str]) -> AnswerScores:
    """Exact match and F1 of predictions over a data set, as the official script of its version gives them.

    Args:
        data: the questions with their answers.
        predictions: question id -> answer, "" for none. A question without a prediction counts 0, with a warning.

    Raises:
        ValueError: no prediction is of a question of this data set.

    >>> from clearhead.data.squad_files import AnswerData, Question
    >>> data = AnswerData([Question("q1", "Who?", "Ada did.", ("Ada",))], rules="1.1")
    >>> answer_scores(data, {"q1": "Ada did"}).exact_match
    0.0
    """
    missing = [question.id for question in data.questions if question.id not in predictions]
    if len(missing) == len(data.questions):
        such = f"; the data's ids are such as {missing[0]!r}" if missing else ""
        raise ValueError(f"none of the {len(predictions)} predictions has the id of a question of this data{such}")
    if missing:
        log.warning("%d questions have no prediction, such as %s: each counts 0", len(missing), missing[0])
    strange = len(predictions) + len(missing) - len(data.questions)
    if strange:
        log.warning("%d predictions are of no question of this data: they were left aside", strange)
    scores = {question.id: _scored(question, predictions, data.rules) for question in data.questions}
    whole = _mean(list(scores.values()))
    parts = {
        answered: [scores[question.id] for question in data.questions if bool(question.answers) == answered]
        for answered in (True, False)
    }
    return AnswerScores(
        **vars(whole),
        missing=len(missing),
        has_answer=_mean(parts[True]) if data.rules == "2.0" and parts[True] else None,
        no_answer=_mean(parts[False]) if parts[False] else None,
    )


_PUNCTUATION = frozenset(string.punctuation)


def _golds(answers: Sequence[str], rules: Rules) -> Sequence[str]:
    if isinstance(answers, str):
        raise ValueError("a list of answers is wanted; got a single string: put it in a list")
    if rules == "2.0":
        return [answer for answer in answers if normalize(answer)] or [""]
    if rules != "1.1":
        raise ValueError(f"rules are 1.1 or 2.0; got {rules!r}")
    if not answers:
        raise ValueError("under the rules of 1.1 each question has an answer; got none")
    return answers


def _overlap(prediction: list[str], answer: list[str], rules: Rules) -> float:
    if rules == "2.0" and not (prediction and answer):
        return float(prediction == answer)
    common = (Counter(prediction) & Counter(answer)).total()
    return 2 * common / (len(prediction) + len(answer)) if common else 0.0


def _scored(question: Question, predictions: Mapping[str, str], rules: Rules) -> tuple[float, float]:
    prediction = predictions.get(question.id)
    if prediction is None:
        return 0.0, 0.0
    return exact_match(prediction, question.answers, rules=rules), f1(prediction, question.answers, rules=rules)


def _mean(scores: Sequence[tuple[float, float]]) -> PartScores:
    exact, overlap = (100 * sum(column) / len(scores) for column in zip(*scores, strict=True))
    return PartScores(exact, overlap, len(scores))
