"""Question answering metrics: exact match and F1, as in the official scripts of SQuAD 1.1 and 2.0."""

import logging
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clearhead.data.squad import AnswerData, Question, Rules

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartScores:
    """Mean scores over some questions, in percent.

    Args:
        exact_match: mean of `exact_match`.
        f1: mean of `f1`.
        questions: number of questions.
    """

    exact_match: float
    f1: float
    questions: int


@dataclass(frozen=True)
class AnswerScores(PartScores):
    """Mean scores over all questions, in percent.

    Args:
        missing: number of questions without a prediction; each counts as 0.
        has_answer, no_answer: scores of the questions with and without an answer; None if there are no such questions,
            and by the rules of 1.1.
    """

    missing: int
    has_answer: PartScores | None
    no_answer: PartScores | None


def normalize(text: str) -> str:
    """Return a text in lowercase, without ASCII punctuation, English articles and extra whitespace.

    Source: Rajpurkar et al. 2016, "SQuAD", Section 6.1, as in the official script

    >>> normalize("The  Bridge's end!")
    'bridges end'
    """
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(prediction: str, answers: Sequence[str], *, rules: Rules = "2.0") -> float:
    """Return 1 if the normalized prediction equals one of the normalized answers, else 0.

    Equation: EM = max_a [norm(p) = norm(a)]
    Source: Rajpurkar et al. 2016, "SQuAD", Section 6.1; 2018 for questions without an answer

    Args:
        prediction: predicted answer; "" for none.
        answers: reference answers; () if the question has none (2.0).
        rules: "2.0" ignores answers that are empty after `normalize`; "1.1" keeps them.

    Raises:
        ValueError: the rules are unknown, or there are no answers by the rules of 1.1.

    >>> exact_match("bridge", ["The bridge.", "a ferry"])
    1.0
    """
    return max(float(normalize(prediction) == normalize(answer)) for answer in _references(answers, rules))


def f1(prediction: str, answers: Sequence[str], *, rules: Rules = "2.0") -> float:
    """Return the word overlap of the prediction and the most similar answer, from 0 to 1.

    Equation: F1 = max_a 2 P R / (P + R), P = |p ∩ a| / |p|, R = |p ∩ a| / |a|, of bags of normalized words
    Source: Rajpurkar et al. 2016, "SQuAD", Section 6.1; 2018 for questions without an answer

    Arguments and errors are those of `exact_match`. If both sides have no words, 2.0 gives 1 and 1.1 gives 0.

    >>> f1("the old bridge", ["bridge", "ferry"])
    0.6666666666666666
    """
    words = normalize(prediction).split()
    return max(_overlap(words, normalize(answer).split(), rules) for answer in _references(answers, rules))


def answer_scores(data: AnswerData, predictions: Mapping[str, str]) -> AnswerScores:
    """Return exact match and F1 over a data set, as the official script of its version.

    Args:
        data: questions with their answers.
        predictions: question id -> answer, "" for none. A question without a prediction counts as 0, with a warning.

    Raises:
        ValueError: no prediction belongs to a question of this data set.

    >>> from clearhead.data.squad import AnswerData, Question
    >>> data = AnswerData([Question("q1", "Who?", "Ada did.", ("Ada",))], rules="1.1")
    >>> answer_scores(data, {"q1": "Ada did"}).exact_match
    0.0
    """
    missing = [question.id for question in data.questions if question.id not in predictions]
    if len(missing) == len(data.questions):
        example = f", for example {missing[0]!r}" if missing else ""
        raise ValueError(f"none of the {len(predictions)} predictions has the id of a question in the data{example}")
    if missing:
        log.warning("%d questions have no prediction, for example %s; each counts as 0", len(missing), missing[0])
    num_unknown = len(predictions) + len(missing) - len(data.questions)
    if num_unknown:
        log.warning("ignored %d predictions that belong to no question in the data", num_unknown)
    scores = {question.id: _score(question, predictions, data.rules) for question in data.questions}
    overall = _mean(list(scores.values()))
    by_answer = {
        has_answer: [scores[question.id] for question in data.questions if bool(question.answers) == has_answer]
        for has_answer in (True, False)
    }
    return AnswerScores(
        **vars(overall),
        missing=len(missing),
        has_answer=_mean(by_answer[True]) if data.rules == "2.0" and by_answer[True] else None,
        no_answer=_mean(by_answer[False]) if by_answer[False] else None,
    )


_PUNCTUATION = frozenset(string.punctuation)


def _references(answers: Sequence[str], rules: Rules) -> Sequence[str]:
    if isinstance(answers, str):
        raise ValueError("expected a list of answers, got a string; put it into a list")
    if rules == "2.0":
        return [answer for answer in answers if normalize(answer)] or [""]
    if rules != "1.1":
        raise ValueError(f"rules must be 1.1 or 2.0; got {rules!r}")
    if not answers:
        raise ValueError("by the rules of 1.1 each question has an answer; got none")
    return answers


def _overlap(prediction: list[str], answer: list[str], rules: Rules) -> float:
    if rules == "2.0" and not (prediction and answer):
        return float(prediction == answer)
    common = (Counter(prediction) & Counter(answer)).total()
    return 2 * common / (len(prediction) + len(answer)) if common else 0.0


def _score(question: Question, predictions: Mapping[str, str], rules: Rules) -> tuple[float, float]:
    prediction = predictions.get(question.id)
    if prediction is None:
        return 0.0, 0.0
    return exact_match(prediction, question.answers, rules=rules), f1(prediction, question.answers, rules=rules)


def _mean(scores: Sequence[tuple[float, float]]) -> PartScores:
    exact, overlap = (100 * sum(column) / len(scores) for column in zip(*scores, strict=True))
    return PartScores(exact, overlap, len(scores))
