"""Read documents with reference summaries from JSON lines."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clearhead.data.lines import check_file, open_bytes, text_lines
from clearhead.data.sentences import sentences
from clearhead.io.json import json_error, unique_keys

References = Sequence[Sequence[str | None]]
"""Lists of references, each as long as the scored texts; None where a text has no reference in a list."""


@dataclass(frozen=True)
class Documents:
    """Documents with reference summaries.

    Args:
        texts: the documents.
        leads: the first sentence of each document.
        references: lists of summaries, each as long as the documents; None where a document has fewer summaries.
        locations: the file and line of each document, for messages.
    """

    texts: list[str]
    leads: list[str]
    references: list[list[str | None]]
    locations: list[str] = field(default_factory=list, repr=False, compare=False)

    def location(self, index: int) -> str:
        """Return the file and line of a document."""
        return self.locations[index]


def read_documents(path: Path, *, document: str = "source", reference: str = "target") -> Documents:
    """Return the documents in a file of JSON lines, in the format of SciTLDR: one object a line.

    Args:
        path: the file.
        document: the key of the document: a text, or a list of its sentences.
        reference: the key of the summaries: a text, or a list of several.

    Raises:
        ValueError: the file does not exist, is not UTF-8 or has no documents; a line is not a JSON object, or a key is
            missing or has another type; the message names the line.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"source": ["It rained.", "We stayed."], "target": ["Rain.", "A wet day."]}')
    >>> read_documents(path)
    Documents(texts=['It rained. We stayed.'], leads=['It rained.'], references=[['Rain.'], ['A wet day.']])
    """
    texts, leads, references, lines = [], [], [], []
    for where, row in _rows(path):
        parts, summaries = _texts(row, document, where), _texts(row, reference, where)
        text = " ".join(part.strip() for part in parts)
        texts.append(text)
        leads.append(parts[0].strip() if len(parts) > 1 else lead_sentence(text))
        references.append(summaries)
        lines.append(where)
    if not texts:
        raise ValueError(f"{path} is empty; expected a JSON object for each document")
    return Documents(texts, leads, pad_references(references), lines)


def lead_sentence(text: str) -> str:
    """Return the first sentence of a text; "" for an empty text.

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
            row = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON: {json_error(error, line)}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a JSON {type(row).__name__}; expected an object")
        yield where, row


def _texts(row: dict[str, object], column: str, where: str) -> list[str]:
    if column not in row:
        raise ValueError(f"{where}: no column {column!r}; it has: {', '.join(row)}")
    value = row[column]
    items = value if isinstance(value, list) else [value]
    texts = [item for item in items if isinstance(item, str)]
    if not texts or len(texts) < len(items):
        raise ValueError(f"{where}: column {column!r} is {value!r:.60}; expected a text or a list of texts")
    return texts


def pad_references(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Return lists of references, each as long as the texts; None where a text has fewer references.

    >>> pad_references([["a bridge", "the bridge"], ["a boat"]])
    [['a bridge', 'a boat'], ['the bridge', None]]
    """
    most = max(map(len, references), default=0)
    return [[texts[number] if number < len(texts) else None for texts in references] for number in range(most)]
