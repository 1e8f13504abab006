"""Indexes with given vectors, and documents to index."""

from unittest import mock

import numpy as np

from clearhead.retrieval.files import IndexWriter, StoredRows
from clearhead.retrieval.manifest import MANIFEST, Manifest, read_manifest
from support.data.corpora import sentences

DOCUMENTS = [text for text in sentences(140) if text.strip()][:100]


def write_vectors(folder, vectors, dtype="float32", parts=1):
    """Write vectors as the rows of an index in a folder, and open them."""
    folder.mkdir(exist_ok=True)
    texts = dict.fromkeys(("model", "precision", "weights", "tokenizer", "prompt", "query_prompt"), "none")
    numbers = {"max_length": 512, "truncate_dim": vectors.shape[1], "normalize": True, "config": {}}
    manifest = Manifest(vectors.shape[1], dtype, [], {**texts, **numbers, "pooling": "mean"})
    with mock.patch("os.fsync"):  # which is slow
        for part in np.array_split(vectors, parts):
            writer = IndexWriter(folder, manifest)
            manifest = writer.append([f"text {row}" for row in range(len(part))], [{}] * len(part), part)
            writer.close()
        manifest.write(folder / MANIFEST)
    return StoredRows(folder, read_manifest(folder))


def exact_top(vectors, query, count):
    """Return the rows with the largest dot products in float64; equal ones in order."""
    scores = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    rows = np.argsort(-scores, kind="stable")[:count]
    return rows, scores[rows]
