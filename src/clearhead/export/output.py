"""Where an export goes, and the note that it leaves there: nothing else is ever replaced."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clearhead._version import __version__
from clearhead.io import hub
from clearhead.io.atomic import atomic_folder
from clearhead.io.json import read_json, write_json
from clearhead.io.locks import LOCK_NAME, check_unlocked, writer_lock
from clearhead.runtime.onnx import MANIFEST

_ANOTHER = "give another OUT"


@dataclass
class ExportReport:
    """What was written.

    Args:
        folder: where.
        error: for each thing that was compared the largest difference to the model's outputs, of the largest number.
        loss: what 8 bits cost, by name; {} for float32.
        missing: the parts of the model that the format has no place for; "" where it holds all.
        plan: what else the note says.
    """

    folder: Path
    error: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    missing: str = ""
    plan: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def export_folder(model: str | Path, folder: str | Path, to: str) -> Iterator[tuple[Path, ExportReport]]:
    """A folder to fill with a model in another format, and what is to be told of it; it appears when all is there.

    Args:
        model: the model, which must not lie there.
        folder: the folder's name: of none, of an empty one, or of one that an export wrote, which is replaced.
        to: the format's name.

    Raises:
        OutputBusyError: another process writes the folder.
        ValueError: the folder holds anything else, or the model would be lost.
        OSError: the place cannot be written to.
    """
    source, place = hub.resolve_model(model).resolve(), Path(folder).expanduser().resolve()
    _check(source, place, folder)  # before the lock, which needs a place that can be written
    with writer_lock(place):
        _check_files(place, folder)
        with atomic_folder(place, lambda earlier: _check_files(earlier, folder)) as part:
            told = ExportReport(place)
            yield part, told
            files = sorted(str(path.relative_to(part)) for path in part.rglob("*") if path.is_file())
            found = {"error": told.error, **({"int8": told.loss} if told.loss else {})}
            write_json(part / MANIFEST, {"format": to, "clearhead": __version__, **found, **told.plan, "files": files})


def _check(model: Path, place: Path, folder: str | Path) -> None:
    """Check that a folder is not the model and holds neither it nor the working directory.

    Args:
        model: the model's folder.
        place: the folder to write.
        folder: its name for messages.

    Raises:
        ValueError: the folder is a file, or it would be lost.
    """
    if place.exists() and not place.is_dir():
        raise ValueError(f"{folder} is a file; OUT is a folder: {_ANOTHER}")
    if place == model:
        raise ValueError(f"{folder} is the model itself, and would be lost: {_ANOTHER}")
    if place in model.parents:
        raise ValueError(f"{folder} holds the model, {model}, which would be lost: {_ANOTHER}")
    if place in (Path.cwd(), *Path.cwd().parents):
        raise ValueError(f"{folder} is the folder that the command runs in, or holds it: {_ANOTHER}")


def _check_files(place: Path, folder: str | Path) -> None:
    """Check that a folder, whose lock is held, has only the files of an earlier export.

    Raises:
        OutputBusyError: another process writes a file or folder in it.
        ValueError: the folder has other files.
    """
    check_unlocked(place)
    other = _other(place)
    if other is not None:
        raise ValueError(f"{folder} holds files that no export wrote ({other}), which would be lost: {_ANOTHER}")


def _other(place: Path) -> str | None:
    """A file of a folder that no export wrote, by its note; None where there is none."""
    if not (place / MANIFEST).is_file():
        names = (path.name for path in place.iterdir()) if place.is_dir() else ()
        return next((name for name in names if name != LOCK_NAME), None)
    files = read_json(place / MANIFEST).get("files")
    known = {LOCK_NAME, MANIFEST, *(files if isinstance(files, list) else ())}
    there = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_symlink() or not path.is_dir())
    return next((name for name in there if name not in known), None)
