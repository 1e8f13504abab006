"""Run the notebooks and store their outputs in the files.

Usage: python notebooks/execute.py [NOTEBOOK ...]    (default: all notebooks of this folder)

Readers see the stored outputs on GitHub, so run this after each change of a notebook or of what it prints.
tests/seeds/test_notebooks.py compares the stored outputs with those of a fresh run.
"""

import sys
from pathlib import Path

import nbclient
import nbformat

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""Metadata of a stored notebook, without the version of Python."""
TIMEOUT = 240
"""Seconds that one cell may take."""


def run(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a fresh run.

    Args:
        path: the notebook file. Code runs in the folder that contains it.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an exception.
    """
    notebook = nbformat.read(str(path), as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    client = nbclient.NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources=resources,
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        executed = run(path)
        nbformat.write(executed, str(path))
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
