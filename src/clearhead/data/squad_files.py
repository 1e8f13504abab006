"""SQuAD's files: questions with their contexts and answers, and predictions."""

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
        id: its name in a file of predictions.
        question: what is asked.
        context: the text that holds the answer, if any does.
        answers: what people answered; () where the context has no answer.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class AnswerData:
    """Questions, and the rules that their data set is scored by: "1.1" where each has an answer, "2.0" where not."""

    questions: list[Question]
    rules: Rules


def read_questions(path: Path) -> AnswerData:
    """The questions in a file of SQuAD's layout, .json or .json.gz.

    Its rules are those of 2.0 where it says so ("version") or where a question has no answer, else those of 1.1.

    Raises:
        ValueError: no such file, not JSON, another layout (with the place in it), a question id that comes twice, or no
            questions.
    """
    data = read_squad_json(path)
    questions = [
        Question(asked.id, asked.question, asked.context, tuple(answer.text for answer in asked.answers))
        for asked in iter_questions(data, path)
    ]
    if not questions:
        raise ValueError(f"{path} holds no questions")
    ((most_common, times),) = Counter(question.id for question in questions).most_common(1)
    if times > 1:
        raise ValueError(f"{path} holds the question id {most_common!r} {times} times; an id is for one question")
    version = str(data.get("version", "")).lower().removeprefix("v") if isinstance(data, dict) else ""
    second = version.startswith("2") or not all(question.answers for question in questions)
    return AnswerData(questions, "2.0" if second else "1.1")


def read_predictions(path: Path) -> dict[str, str]:
    """The answers in a JSON object from question ids to texts, .json or .json.gz, as the official scripts read it.

    Raises:
        ValueError: no such file, not JSON, or anything but an object of texts.
    """
    data = read_squad_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}; an object from question ids to answers is wanted")
    for name, text in data.items():
        if not isinstance(text, str):
            raise ValueError(f'{path} answers {name} with {text!r:.40}; a text is wanted, "" for no answer')
    return data
