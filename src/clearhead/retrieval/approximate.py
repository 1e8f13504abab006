"""Approximate search with a graph of neighbors, by the package usearch."""

import contextlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.io.atomic import atomic_file
from clearhead.io.locks import writer_lock
from clearhead.retrieval.exact import TopRows, best, score_rows, search_exact
from clearhead.retrieval.files import StoredRows
from clearhead.retrieval.manifest import IndexFolderError, read_manifest
from clearhead.runtime.vectors import Vectors

GRAPH = "graph.usearch"
"""File of the graph. It is made when it is first used."""
_WINDOW = 50_000


def open_graph(folder: Path, stored: StoredRows) -> Any:
    """Return the graph of an index. A missing or damaged graph is made, and one of fewer rows is extended.

    Args:
        folder: the index.
        stored: its rows.

    Raises:
        ValueError: usearch is not installed; another process writes the index, or has changed it.
    """
    if importlib.util.find_spec("usearch") is None:
        raise ValueError('approximate search needs usearch: pip install "clearhead[search]"')
    from usearch.index import Index as Graph

    def new() -> Any:
        return Graph(ndim=stored.manifest.width, metric="ip", dtype="bf16")

    if read_manifest(folder).files != stored.manifest.files:
        raise IndexFolderError(f"{folder} has changed since it was opened; open it again")
    path, rows = folder / GRAPH, stored.manifest.rows
    if path.is_file():
        graph = new()
        with contextlib.suppress(RuntimeError):  # damaged
            graph.view(str(path))
            if len(graph) == rows:
                return graph
    with writer_lock(folder):
        graph = new()
        if path.is_file():
            with contextlib.suppress(RuntimeError):
                graph.load(str(path))
        if len(graph) > rows:
            graph = new()
        for start in range(len(graph), rows, _WINDOW):
            end = min(start + _WINDOW, rows)
            graph.add(np.arange(start, end), np.array(stored.read(start, end)))
        with atomic_file(path) as file:
            file.write(graph.save())
    return graph


def search_graph(graph: Any, stored: StoredRows, queries: Vectors, top_k: int) -> TopRows:
    """Return rows that are probably the best ones, with exact scores; arguments as in `search_exact`."""
    count = min(top_k, stored.manifest.rows)
    rows, scores = np.empty((len(queries), count), np.int64), np.empty((len(queries), count))
    for index, query in enumerate(queries):
        found = np.sort(np.asarray(graph.search(query, min(4 * count, stored.manifest.rows)).keys).astype(np.int64))
        if len(found) < count:  # the graph does not reach all rows, such as many equal ones
            exact = search_exact(stored, query[None], count)
            rows[index], scores[index] = exact.rows[0], exact.scores[0]
            continue
        rows[index], scores[index] = best(found, score_rows(stored, query, found), count)
    return TopRows(rows, scores)
