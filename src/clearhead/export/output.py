"""Resolve and protect the export folder; only earlier exports are overwritten."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clearhead._version import __version__
from clearhead.io import hub
from clearhead.io.folders import atomic_folder, check_utf8, follow_link
from clearhead.io.json import read_json, write_json
from clearhead.io.locks import LOCK_NAME, check_unlocked, writer_lock
from clearhead.runtime.onnx import MANIFEST

_ANOTHER = "give another OUT"


@dataclass
class ExportReport:
    """Result of an export.

    Args:
        folder: the output folder.
        error: largest relative error of each comparison with the model.
        loss: quality loss of 8-bit weights by name; {} for float32.
        missing: parts of the model that the format cannot hold; "" if it holds everything.
        metadata: additional entries of the manifest.
    """

    folder: Path
    error: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    missing: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def export_folder(model: str | Path, folder: str | Path, to: str) -> Iterator[tuple[Path, ExportReport]]:
    """Yield a temporary folder to fill and its report; the output folder is written atomically at the end.

    Args:
        model: the model; it must not be inside the output folder.
        folder: the output: a new or empty folder, or an earlier export, which is replaced.
        to: name of the format.

    Raises:
        OutputBusyError: another process writes the folder.
        ValueError: the folder holds other files, or the model would be overwritten.
        OSError: the folder cannot be written.
    """
    source, output = hub.resolve_model(model).resolve(), follow_link(Path(folder).expanduser()).resolve()
    _check_folder(source, output, folder)  # before the lock, which needs a writable folder
    with writer_lock(output):
        _check_files(output, folder)
        with atomic_folder(output, lambda earlier: _check_files(earlier, folder)) as temporary:
            report = ExportReport(output)
            yield temporary, report
            files = sorted(str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file())
            results = {"error": report.error, **({"int8": report.loss} if report.loss else {})}
            write_json(
                temporary / MANIFEST,
                {"format": to, "clearhead": __version__, **results, **report.metadata, "files": files},
            )


def _check_folder(model: Path, output: Path, folder: str | Path) -> None:
    """Check that a folder is not the model and holds neither it nor the working directory.

    Args:
        model: the model's folder.
        output: the folder to write.
        folder: its name for messages.

    Raises:
        ValueError: the folder is a file, would be lost, or has a path that is not UTF-8.
    """
    check_utf8(output, "an export", _ANOTHER)
    if output.exists() and not output.is_dir():
        raise ValueError(f"{folder} is a file, but OUT must be a folder: {_ANOTHER}")
    if output == model:
        raise ValueError(f"{folder} is the model itself and would be overwritten: {_ANOTHER}")
    if output in model.parents:
        raise ValueError(f"{folder} contains the model {model}, which would be overwritten: {_ANOTHER}")
    if output in (Path.cwd(), *Path.cwd().parents):
        raise ValueError(f"{folder} is or contains the working directory: {_ANOTHER}")


def _check_files(output: Path, folder: str | Path) -> None:
    """Check that a folder, whose lock is held, has only the files of an earlier export.

    Raises:
        OutputBusyError: another process writes a file or folder in it.
        ValueError: the folder has other files.
    """
    check_unlocked(output)
    unknown = _unknown_file(output)
    if unknown is not None:
        raise ValueError(
            f"{folder} contains files that no export wrote ({unknown}) and that would be deleted: {_ANOTHER}"
        )


def _unknown_file(output: Path) -> str | None:
    """Return a file that the folder's manifest does not list, or None."""
    if not (output / MANIFEST).is_file():
        names = (path.name for path in output.iterdir()) if output.is_dir() else ()
        return next((name for name in names if name != LOCK_NAME), None)
    files = read_json(output / MANIFEST).get("files")
    listed = files if isinstance(files, list) else []
    known = {LOCK_NAME, MANIFEST, *(name for name in listed if isinstance(name, str))}
    present = sorted(
        str(path.relative_to(output)) for path in output.rglob("*") if path.is_symlink() or not path.is_dir()
    )
    return next((name for name in present if name not in known), None)
