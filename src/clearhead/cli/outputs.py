"""Output files of commands."""

from pathlib import Path

import typer

from clearhead.io.atomic import check_writable
from clearhead.io.locks import writer_lock


def lock_output(context: typer.Context, output: Path) -> None:
    """Check that a file can be written, and lock it against other processes until the command ends.

    Raises:
        ValueError: the path is a folder, its folder is missing or read-only, or another process writes the file.
    """
    check_writable(output)
    context.with_resource(writer_lock(output))
