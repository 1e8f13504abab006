"""Translate the lines of a text file into German with the bundled translator.

Usage: python examples/translated_sentences.py FILE
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from clearhead import TextToText


def main(path: Path) -> None:
    sentences = path.read_text(encoding="utf-8").splitlines()
    table = Table("English", "German", title="Translated by the bundled model (18 MB)")
    for english, german in zip(sentences, TextToText.from_pretrained().generate(sentences), strict=True):
        table.add_row(english, german)
    Console().print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
