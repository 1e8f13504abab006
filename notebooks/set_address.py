"""Writes the repository's address, which stands in pyproject.toml, into the notebooks: their links, and what they install.

Usage: python notebooks/set_address.py
"""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
LINK = re.compile(r"https://colab\.research\.google\.com/github/[^)\"]*?/notebooks/")
INSTALL = re.compile(r"(?<=package = \\\")clearhead[^\"\\]*")


def repository() -> str:
    """The repository's address."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def link() -> str:
    """Where Colab opens a notebook of the repository."""
    colab = repository().replace("https://github.com", "https://colab.research.google.com/github")
    return f"{colab}/blob/main/notebooks/"


def install() -> str:
    """What pip installs where the package is missing."""
    return f"clearhead @ git+{repository()}"


def carried(text: str) -> str:
    """A notebook's text with the address."""
    return INSTALL.sub(install(), LINK.sub(link(), text))


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.ipynb")):
        path.write_text(carried(path.read_text(encoding="utf-8")), encoding="utf-8")
