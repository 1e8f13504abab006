"""The certificate of a checkpoint: what was tried, what was found, and the files that it holds for."""

import contextlib
import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NAME = "certificate.json"
PARITY, HEAD = "parity with transformers", "head"
_OPEN = {
    PARITY: f"{PARITY} was not tried, and it alone finds wrong positions or weights in the wrong places",
    HEAD: "its head, if it has one, was not tried",
}
"""What it leaves open that these were not tried."""


@dataclass(frozen=True)
class Check:
    """One thing that was tried.

    Args:
        name: what was tried, such as "padding on the right".
        measured: what the error is of, such as "largest distance of a token's vector, of its norm".
        error: what was found; None where it could not be tried, or failed before there was a number.
        bound: what it may be at most.
        holds: whether it is within the bound; True where it could not be tried.
        note: why it could not be tried, or what went wrong.
    """

    name: str
    measured: str
    error: float | None
    bound: float
    holds: bool
    note: str = ""


@dataclass(frozen=True)
class Certificate:
    """All checks of a model, with what they were made of.

    Args:
        model: the model's name, as it was given.
        checks: what was tried.
        versions: of Python and the libraries.
        files: the SHA-256 of each file of the model's folder, by its path inside.

    >>> from clearhead import verify
    >>> certificate = verify("tatoeba-en-de")  # doctest: +SKIP
    >>> certificate.holds, certificate.checks[0].error  # doctest: +SKIP
    (True, 0.0)
    """

    model: str
    checks: tuple[Check, ...]
    versions: dict[str, str]
    files: dict[str, str]

    @property
    def holds(self) -> bool:
        """Whether every check does."""
        return all(check.holds for check in self.checks)

    @property
    def summary(self) -> str:
        """One line: whether all holds, and what is left open by what was not tried."""
        untried = {check.name for check in self.checks if check.holds and check.error is None}
        left = [said for name, said in _OPEN.items() if name in untried]
        held = "not all hold" if not self.holds else "all that was tried holds" if left else "all hold"
        return "; ".join([held, *left])

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {"holds": self.holds, "summary": self.summary, **asdict(self)}


def versions() -> dict[str, str]:
    """Of Python and the libraries that counted."""
    import importlib.metadata
    import platform

    found = {"python": platform.python_version()}
    for package in ("clearhead", "torch", "transformers", "safetensors"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder and those below, but for hidden ones and the certificate itself."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and inside != Path(NAME) and not any(part.startswith(".") for part in inside.parts):
            with path.open("rb") as file:
                found[inside.as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
