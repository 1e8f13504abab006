"""Texts with labels, from files."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clearhead.text.corpus import Corpus


@dataclass(frozen=True)
class Labelled:
    """Texts with labels.

    Args:
        texts: the texts.
        labels: the label of each.
        places: where each stands, for messages.
    """

    texts: list[str]
    labels: list[str]
    places: list[str]


def read_labelled(path: Path, *, text_column: str | None = None, label_column: str | None = None) -> Labelled:
    """The texts and labels in a file; the ending says the format.

    .tsv: a text, a tab, a label; nothing is quoted. .csv: the same with a comma; fields may be quoted. Where a column
    is named, the first line of these holds the names. .jsonl, .parquet: the columns "text" and "label" where not named.

    Args:
        path: the file.
        text_column: the name of the column of texts.
        label_column: the name of the column of labels.

    Raises:
        ValueError: no such file, another ending, not UTF-8, no rows, another number of columns, or a column that is
            not there; the message names the line.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.tsv"; _ = path.write_text("What a film!\\tgood\\n")
    >>> read_labelled(path).labels
    ['good']
    """
    if path.suffix not in (".tsv", ".csv", ".jsonl", ".parquet"):
        raise ValueError(f"{path}: a .tsv, .csv, .jsonl or .parquet file with texts and labels is wanted")
    names = [text_column or "text", label_column or "label"]
    if path.suffix in (".jsonl", ".parquet"):
        texts, labels = (list(Corpus([path], column=name)) for name in names)
        places = [f"{path}, row {number + 1}" for number in range(len(texts))]
    else:
        rows = list(_separated(path, names if text_column or label_column else None))
        texts, labels, places = ([row[column] for row in rows] for column in range(3))
    if not texts:
        raise ValueError(f"{path} is empty; a text with a label in each line is wanted")
    return Labelled(texts, labels, places)


def _separated(path: Path, names: list[str] | None) -> Iterator[tuple[str, str, str]]:
    """Text, label and place of each row of a .tsv or .csv file; without names it has these two columns only."""
    places, width = [0, 1], 2
    for number, (where, row) in enumerate(_rows(path)):
        if number == 0 and names is not None:
            for name in names:
                if name not in row:
                    raise ValueError(f"{where}: no column {name!r}; it has: {', '.join(row)}")
            places, width = [row.index(name) for name in names], len(row)
        elif len(row) != width:
            wanted = "a text and a label" if names is None else f"{width}, as the first line has,"
            raise ValueError(f"{where}: {len(row)} columns; {wanted} are wanted")
        else:
            yield row[places[0]], row[places[1]], where


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".csv":
                reader = csv.reader(file, strict=True)
                yield from ((f"{path}, line {reader.line_num}", row) for row in reader if row)
                return
            for number, line in enumerate(file.read().split("\n"), start=1):
                if line.strip("\r"):
                    yield f"{path}, line {number}", line.removesuffix("\r").split("\t")
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None
