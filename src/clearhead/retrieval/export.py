"""Write an index as one table that databases load."""

from pathlib import Path

from clearhead.corpus.writers import PartFile, check_output
from clearhead.io.locks import writer_lock
from clearhead.retrieval.files import StoredRows

_WINDOW = 4096


def export_index(stored: StoredRows, path: Path) -> None:
    """Write the texts, columns and vectors of an index in float32 to one file, atomically.

    Args:
        stored: the rows.
        path: FILE.parquet with the columns "text", the index's own ones and "embedding", or FILE.jsonl or FILE.npy.

    Raises:
        OutputBusyError: another process writes the file.
        ValueError: an unknown extension, a missing folder or package, or a column named "embedding".
    """
    manifest = stored.manifest
    keep = [] if path.suffix == ".npy" else manifest.columns
    if "embedding" in keep:
        raise ValueError(f"{path}: the index has a column 'embedding', the name of the vectors; export to .npy")
    check_output(path, keep)
    with writer_lock(path):
        part = PartFile(path, manifest.width, keep)
        part.open(0)
        try:
            for start in range(0, manifest.rows, _WINDOW):
                end = min(start + _WINDOW, manifest.rows)
                documents = [stored.document(row) for row in range(start, end)]
                texts = [document.pop("text") for document in documents]
                kept = [{name: document[name] for name in keep} for document in documents]
                part.append(texts, stored.read(start, end), kept)
            part.finish(manifest.rows)
        finally:
            part.remove()
