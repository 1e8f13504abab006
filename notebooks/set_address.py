"""Write the repository's URL from pyproject.toml into the notebooks: their Colab links and the package that they install.

Usage: python notebooks/set_address.py    (after a change of the URL in pyproject.toml)
"""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
COLAB_URL = re.compile(r"https://colab\.research\.google\.com/github/[^)\"]*?/notebooks/")
REQUIREMENT = re.compile(r"(?<=package = \\\")clearhead[^\"\\]*")


def repository_url() -> str:
    """Return the repository's URL."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def colab_url() -> str:
    """Return the URL at which Colab opens the notebooks folder."""
    colab = repository_url().replace("https://github.com", "https://colab.research.google.com/github")
    return f"{colab}/blob/main/notebooks/"


def requirement() -> str:
    """Return the requirement that pip installs if Clearhead is missing."""
    return f"clearhead @ git+{repository_url()}"


def with_address(text: str) -> str:
    """Return the text of a notebook file with the current URL."""
    return REQUIREMENT.sub(requirement(), COLAB_URL.sub(colab_url(), text))


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.ipynb")):
        path.write_text(with_address(path.read_text(encoding="utf-8")), encoding="utf-8")
