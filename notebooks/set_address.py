"""Writes the repository's address, which stands in pyproject.toml, into the notebooks' links.

Usage: python notebooks/set_address.py
"""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
LINK = re.compile(r"https://colab\.research\.google\.com/github/[^)\"]*?/notebooks/")


def link() -> str:
    """Where Colab opens a notebook of the repository."""
    urls = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    return urls["Repository"].replace("https://github.com", "https://colab.research.google.com/github") + (
        "/blob/main/notebooks/"
    )


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.ipynb")):
        path.write_text(LINK.sub(link(), path.read_text(encoding="utf-8")), encoding="utf-8")
