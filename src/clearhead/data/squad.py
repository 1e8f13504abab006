"""SQuAD's layout: articles of paragraphs, each with the questions that were asked of it and their answers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.data.lines import check_file, open_bytes
from clearhead.io.json import json_error


@dataclass(frozen=True)
class Answer:
    """An answer, and the character of the context where it starts; None where the file does not say."""

    text: str
    start: int | None


@dataclass(frozen=True)
class SquadQuestion:
    """A question as it stands in a file.

    Args:
        where: its place in the file, for messages.
        id: its name.
        question: what is asked.
        context: the paragraph.
        answers: what people answered; () where the paragraph has no answer.
    """

    location: str
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


def read_squad_json(path: Path) -> Any:
    """What a .json or .json.gz file holds.

    Raises:
        ValueError: no such file, a broken .gz, or not JSON.

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
    """The questions in data of SQuAD's layout, in order.

    Args:
        data: as `read_squad_json` gives it.
        path: the file, for messages.

    Raises:
        ValueError: another layout, with the place in it.

    >>> import pathlib; from clearhead.data.squad import iter_questions
    >>> list(iter_questions({"data": []}, pathlib.Path("a.json")))
    []
    """
    try:
        for place, article in _items(data, "data", "the file"):
            for where, paragraph in _items(article, "paragraphs", place):
                context = _part(paragraph, "context", str, where)
                for spot, asked in _items(paragraph, "qas", where):
                    name, question = (_part(asked, key, str, spot) for key in ("id", "question"))
                    answers = tuple(_answer(answer, there) for there, answer in _items(asked, "answers", spot))
                    yield SquadQuestion(spot, name, question, context, answers)
    except _LayoutError as error:
        raise ValueError(f"{path} is not of SQuAD's layout: {error}") from None


class _LayoutError(Exception):
    """Where a file is laid out otherwise."""


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
        raise _LayoutError(f'{where} has no "{key}" that is a {"text" if kind is str else "list"}')
    return value
