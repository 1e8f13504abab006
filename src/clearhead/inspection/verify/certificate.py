"""Certificate of a checkpoint: the results of all checks, and the hashes of its files."""

import contextlib
import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clearhead.io.reading import open_file

NAME = "certificate.json"
PARITY, HEAD = "parity with transformers", "head"
_CONSEQUENCES = {
    PARITY: f"{PARITY} was skipped, and only this check finds wrong positions or misplaced weights",
    HEAD: "the head of this model was skipped",
}
"""Consequence of each important check that was skipped."""


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Args:
        name: name of the check, such as "padding on the right".
        measured: definition of the error, such as "largest relative error of a token vector".
        error: the measured error; None if the check was skipped or raised an error.
        bound: largest allowed error.
        holds: whether the error is within the bound; True for a skipped check.
        note: reason why the check was skipped or failed.
    """

    name: str
    measured: str
    error: float | None
    bound: float
    holds: bool
    note: str = ""

    @property
    def skipped(self) -> bool:
        """Whether the check did not run."""
        return self.holds and self.error is None


@dataclass(frozen=True)
class Certificate:
    """Results of all checks of a model, with the versions and files that they are valid for.

    Args:
        model: name of the model, as given.
        checks: results of the checks.
        versions: versions of Python and the libraries.
        files: SHA-256 of each file in the model's folder, by relative path.

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
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    @property
    def summary(self) -> str:
        """One line with the overall result and the consequences of skipped checks."""
        skipped = {check.name for check in self.checks if check.skipped}
        consequences = [text for name, text in _CONSEQUENCES.items() if name in skipped]
        if not self.holds:
            result = "some checks failed"
        elif consequences:
            result = "all checks that ran hold"
        else:
            result = "all checks hold"
        return "; ".join([result, *consequences])

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON values."""
        return {"holds": self.holds, "summary": self.summary, **asdict(self)}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect the results."""
    import importlib.metadata
    import platform

    result = {"python": platform.python_version()}
    for package in ("clearhead", "torch", "transformers", "safetensors"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            result[package] = importlib.metadata.version(package)
    return result


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, except hidden files and the certificate."""
    result: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and relative != Path(NAME) and not any(part.startswith(".") for part in relative.parts):
            with open_file(path) as file:
                result[relative.as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return result
