"""Translate the lines of a text file into German with the bundled translator, and print both.

Usage: python examples/translated_sentences.py FILE
"""

import sys
from pathlib import Path

from clearhead import TextToText


def main(path: Path) -> None:
    sentences = path.read_text(encoding="utf-8").splitlines()
    for english, german in zip(sentences, TextToText.from_pretrained().generate(sentences), strict=True):
        print(f"{english}\n    {german}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
