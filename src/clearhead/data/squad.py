"""Read the questions in a file of SQuAD's format."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.data.lines import check_file, open_bytes
from clearhead.io.json import json_error


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
        return json.loads(text)
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
    return value
