"""Approximate search with a graph of neighbors, by the package usearch."""

import contextlib
import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.io.atomic import atomic_file, remove_leftovers
from clearhead.io.hashed import has_content
from clearhead.io.json import read_json, write_json
from clearhead.io.locks import writer_lock
from clearhead.retrieval.exact import TopRows, best, check_scores, score_rows, search_exact
from clearhead.retrieval.files import StoredRows
from clearhead.retrieval.manifest import GRAPH, GRAPH_STATE, IndexFolderError, read_manifest
from clearhead.runtime.vectors import Vectors

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
    if stored.graph is not None and path.is_file() and stored.graph[0] == _identity(path):
        return stored.graph[1]
    if _is_intact(folder):
        identity, graph = _identity(path), new()
        with contextlib.suppress(RuntimeError):  # of another version
            graph.view(str(path))
            if len(graph) == rows:
                stored.graph = identity, graph
                return graph
    with writer_lock(folder):
        for name in (GRAPH, GRAPH_STATE):
            remove_leftovers(folder / name)
        graph = new()
        if _is_intact(folder):
            with contextlib.suppress(RuntimeError):
                graph.load(str(path))
        if len(graph) > rows:
            graph = new()
        for start in range(len(graph), rows, _WINDOW):
            end = min(start + _WINDOW, rows)
            graph.add(np.arange(start, end), np.array(stored.read(start, end)))
        content = graph.save()
        with atomic_file(path) as file:
            file.write(content)
        write_json(folder / GRAPH_STATE, {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        stored.graph = _identity(path), graph
    return graph


def _is_intact(folder: Path) -> bool:
    """Return whether the graph is the file that was written."""
    try:
        state = read_json(folder / GRAPH_STATE)
    except (ValueError, OSError):
        return False
    size = state.get("size")
    path = folder / GRAPH
    return (
        isinstance(size, int)
        and path.is_file()
        and path.stat().st_size == size
        and has_content(path, size, str(state.get("sha256")))
    )


def _identity(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced: a graph is hashed once, and not for each search."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


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
    return check_scores(stored, queries, TopRows(rows, scores))
