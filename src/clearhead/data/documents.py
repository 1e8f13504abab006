"""Documents with people's summaries, from a file of JSON lines."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clearhead.data.lines import check_file, open_bytes, text_lines
from clearhead.data.sentences import sentences
from clearhead.io.json import json_error

References = Sequence[Sequence[str | None]]
"""Lists of references, each as long as what is scored; None where a list has none for a text."""


@dataclass(frozen=True)
class Documents:
    """Documents with people's summaries.

    Args:
        texts: the documents.
        leads: the first sentence of each.
        references: lists as long as the documents; None where one has fewer summaries than another.
        lines: the file and line of each, for messages.
    """

    texts: list[str]
    leads: list[str]
    references: list[list[str | None]]
    locations: list[str] = field(default_factory=list, repr=False, compare=False)

    def location(self, index: int) -> str:
        """Return the file and line of a document."""
        return self.locations[index]


def read_documents(path: Path, *, document: str = "source", reference: str = "target") -> Documents:
    """The documents in a file of JSON lines, laid out as SciTLDR's: an object a line.

    Args:
        path: the file.
        document: the column of the documents: a text, or a list of its sentences.
        reference: the column of the summaries: a text, or a list of several.

    Raises:
        ValueError: no such file, not UTF-8, no documents, a line that is no JSON object, or a column that is missing or
            holds anything else; the message names the line.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"source": ["It rained.", "We stayed."], "target": ["Rain.", "A wet day."]}')
    >>> read_documents(path)
    Documents(texts=['It rained. We stayed.'], leads=['It rained.'], references=[['Rain.'], ['A wet day.']])
    """
    texts, leads, golds, lines = [], [], [], []
    for where, row in _rows(path):
        parts, summaries = _texts(row, document, where), _texts(row, reference, where)
        text = " ".join(part.strip() for part in parts)
        texts.append(text)
        leads.append(parts[0].strip() if len(parts) > 1 else lead_sentence(text))
        golds.append(summaries)
        lines.append(where)
    if not texts:
        raise ValueError(f"{path} is empty; a JSON object for each document is wanted")
    return Documents(texts, leads, pad_references(golds), lines)


def lead_sentence(text: str) -> str:
    """The first sentence of a text; "" of an empty one.

    >>> lead_sentence("It rained. We stayed.")
    'It rained.'
    """
    return next(iter(sentences(text)), "").strip()


def _rows(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    check_file(path)
    with open_bytes(path) as file:
        lines = list(text_lines(file, str(path), advice="convert the file to UTF-8"))
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON: {json_error(error, line)}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a JSON {type(row).__name__}; an object is wanted")
        yield where, row


def _texts(row: dict[str, object], column: str, where: str) -> list[str]:
    if column not in row:
        raise ValueError(f"{where}: no column {column!r}; it has: {', '.join(row)}")
    value = row[column]
    some = value if isinstance(value, list) else [value]
    texts = [one for one in some if isinstance(one, str)]
    if not texts or len(texts) < len(some):
        raise ValueError(f"{where}: column {column!r} holds {value!r:.60}; a text or a list of texts is wanted")
    return texts


def pad_references(golds: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """The references of each text as lists that are each as long as the texts; None where a text has fewer.

    >>> pad([["a bridge", "the bridge"], ["a boat"]])
    [['a bridge', 'a boat'], ['the bridge', None]]
    """
    most = max(map(len, golds), default=0)
    return [[some[number] if number < len(some) else None for some in golds] for number in range(most)]
