"""Read SQuAD data sets and files of predictions."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clearhead.data.squad import iter_questions, read_squad_json

Rules = Literal["1.1", "2.0"]


@dataclass(frozen=True)
class Question:
    """A question of a data set.

    Args:
        id: its identifier in a file of predictions.
        question: the text of the question.
        context: the text with the answer, if there is one.
        answers: the reference answers; () if the context has no answer.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class AnswerData:
    """Questions and the scoring rules of their data set: "1.1" if each has an answer, else "2.0"."""

    questions: list[Question]
    rules: Rules


def read_questions(path: Path) -> AnswerData:
    """Return the questions in a file of SQuAD's format, .json or .json.gz.

    The rules are those of version 2.0 if the file has that version or a question without an answer, else those of 1.1.

    Args:
        path: the file.

    Raises:
        ValueError: the file does not exist, is not JSON or has another format (the message names the path in it); an id
            is repeated, or there are no questions.
    """
    data = read_squad_json(path)
    questions = [
        Question(item.id, item.question, item.context, tuple(answer.text for answer in item.answers))
        for item in iter_questions(data, path)
    ]
    if not questions:
        raise ValueError(f"{path} has no questions")
    ((most_common, count),) = Counter(question.id for question in questions).most_common(1)
    if count > 1:
        raise ValueError(f"{path} has the question id {most_common!r} {count} times; ids must be unique")
    version = str(data.get("version", "")).lower().removeprefix("v") if isinstance(data, dict) else ""
    is_version_2 = version.startswith("2") or not all(question.answers for question in questions)
    return AnswerData(questions, "2.0" if is_version_2 else "1.1")


def read_predictions(path: Path) -> dict[str, str]:
    """Return the answers in a JSON object from question ids to texts, the format of the official scripts.

    Args:
        path: the file, .json or .json.gz.

    Raises:
        ValueError: the file does not exist, is not JSON, or does not contain an object of texts.
    """
    data = read_squad_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path} contains a JSON {type(data).__name__}; expected an object of answers by question id")
    for name, text in data.items():
        if not isinstance(text, str):
            raise ValueError(f'{path} answers {name} with {text!r:.40}; expected a text, or "" for no answer')
    return data
