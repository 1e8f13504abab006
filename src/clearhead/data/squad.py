"""Read SQuAD data sets: questions, reference answers and files of predictions."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clearhead.data.lines import check_file, open_bytes
from clearhead.io.json import json_error, unique_keys

Rules = Literal["1.1", "2.0"]


@dataclass(frozen=True)
class Answer:
    """An answer, and the character of the context where it starts; None if the file has no start."""

    text: str
    start: int | None


@dataclass(frozen=True)
class SquadQuestion:
    """A question in a file of SQuAD's format.

    Args:
        location: its path in the file, for messages.
        id: its identifier.
        question: the text of the question.
        context: the paragraph.
        answers: the reference answers; () if the paragraph has no answer.
    """

    location: str
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Question:
    """A question with the texts of its reference answers, to score predictions.

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


def read_squad_json(path: Path) -> Any:
    """Return the contents of a .json or .json.gz file.

    Args:
        path: the file.

    Raises:
        ValueError: the file does not exist, is a damaged .gz, or is not JSON.

    >>> import tempfile, pathlib; from clearhead.data.squad import read_squad_json
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.json"; _ = path.write_text('{"data": []}')
    >>> read_squad_json(path)
    {'data': []}
    """
    check_file(path)
    with open_bytes(path) as file:
        content = file.read()
    text = ""
    try:
        text = content.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {json_error(error, text)}") from None


def iter_questions(data: object, path: Path) -> Iterator[SquadQuestion]:
    """Yield the questions in data of SQuAD's format, in order.

    Args:
        data: the contents of the file, from `read_squad_json`.
        path: the file, for messages.

    Raises:
        ValueError: the data has another format; the message names the path in it.

    >>> import pathlib; from clearhead.data.squad import iter_questions
    >>> list(iter_questions({"data": []}, pathlib.Path("a.json")))
    []
    """
    try:
        for article_path, article in _items(data, "data", "the file"):
            for paragraph_path, paragraph in _items(article, "paragraphs", article_path):
                context = _part(paragraph, "context", str, paragraph_path)
                for path_in_file, item in _items(paragraph, "qas", paragraph_path):
                    name, question = (_part(item, key, str, path_in_file) for key in ("id", "question"))
                    answers = tuple(_answer(answer, where) for where, answer in _items(item, "answers", path_in_file))
                    yield SquadQuestion(path_in_file, name, question, context, answers)
    except _FormatError as error:
        raise ValueError(f"{path} does not have the SQuAD format: {error}") from None


def read_questions(path: Path) -> AnswerData:
    """Return the questions in a file of SQuAD's format, .json or .json.gz.

    The rules are those of version 2.0 if the file has that version or a question without an answer, else those of 1.1.

    Args:
        path: the file.

    Raises:
        ValueError: the file does not exist, is not JSON or has another format (the message names the path in it); an id
            is repeated, or the file has no questions.
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


class _FormatError(Exception):
    """The data differs from SQuAD's format."""


def _answer(answer: object, where: str) -> Answer:
    text = _part(answer, "text", str, where)
    start = answer.get("answer_start") if isinstance(answer, dict) else None
    return Answer(text, start if type(start) is int else None)


def _items(data: object, key: str, where: str) -> Iterator[tuple[str, object]]:
    for number, item in enumerate(_part(data, key, list, where)):
        yield (f"{where}.{key}[{number}]" if where != "the file" else f"{key}[{number}]"), item


def _part(data: object, key: str, kind: type, where: str) -> Any:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise _FormatError(f'{where} has no "{key}" that is a {"text" if kind is str else "list"}')
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _FormatError(f"{where}.{key} has half a surrogate pair at character {error.start}") from None
    return value
