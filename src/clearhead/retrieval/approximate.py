"""Approximate search with a graph of neighbors, by the package usearch."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.io.atomic import atomic_file
from clearhead.io.locks import writer_lock
from clearhead.retrieval.exact import TopRows, best, score_rows
from clearhead.retrieval.files import StoredRows
from clearhead.runtime.vectors import Vectors

GRAPH = "graph.usearch"
"""File of the graph. It is made when it is first used."""
_WINDOW = 50_000


def open_graph(folder: Path, stored: StoredRows) -> Any:
    """Return the graph of an index. A missing graph is made, and one of fewer rows is extended.

    Args:
        folder: the index.
        stored: its rows.

    Raises:
        ValueError: usearch is not installed; another process writes the index.
    """
    if importlib.util.find_spec("usearch") is None:
        raise ValueError('approximate search needs usearch: pip install "clearhead[search]"')
    from usearch.index import Index as Graph

    def new() -> Any:
        return Graph(ndim=stored.manifest.width, metric="ip", dtype="bf16")

    path, rows = folder / GRAPH, stored.manifest.rows
    if path.is_file():
        graph = new()
        graph.view(str(path))
        if len(graph) == rows:
            return graph
    with writer_lock(folder):
        graph = new()
        if path.is_file():
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
        rows[index], scores[index] = best(found, score_rows(stored, query, found), count)
    return TopRows(rows, scores)
