"""Measure exact search in an index of many vectors, next to numpy's float32 matrix multiplication with the same file.

Usage: python benchmarks/scale/search.py TEXTS [--rows 1000000] [--queries 1000] [--texts 20000] [--noise 0.5]
       [--dtype int8] [--threads 2] [--folder FOLDER] [--json FILE]

TEXTS has one text per line. Its first lines are encoded, and each vector of the index is one of theirs plus random
noise, normalized again. The last lines are the queries. A new process opens the index and measures the time to open
it, the time of each query, and its peak memory. Another process measures numpy's product of the float32 vectors, mapped
into memory, with each query, with and without the selection of the ten largest. A third one computes the ten largest
in float64. --folder keeps the index.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from clearhead import Index, TextEncoder
from clearhead.benchmark.hardware import hardware_info, peak_memory
from clearhead.retrieval.files import IndexWriter
from clearhead.retrieval.identity import describe_encoder
from clearhead.retrieval.manifest import MANIFEST, Manifest
from clearhead.runtime.vectors import EncodeOptions

TOP = 10
WINDOW = 50_000


def write_index(folder, encoder, base, rows, noise, dtype):
    """Write an index of jittered vectors."""
    chance = np.random.default_rng(0)
    made_by = describe_encoder(encoder, EncodeOptions(), None)
    manifest = Manifest(base.shape[1], dtype, [], made_by)
    writer = IndexWriter(folder, manifest)
    for start in range(0, rows, WINDOW):
        size = min(WINDOW, rows - start)
        moved = chance.standard_normal((size, base.shape[1]), np.float32) * np.float32(noise / base.shape[1] ** 0.5)
        vectors = base[chance.integers(0, len(base), size)] + moved
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        manifest = writer.append([f"row {row}" for row in range(start, start + size)], [{}] * size, vectors)
    writer.close()
    manifest.write(folder / MANIFEST)


def milliseconds(run, items):
    """Return the median time of a call, the 90th percentile, and the results."""
    run(items[0])
    times, results = [], []
    for item in items:
        start = time.perf_counter()
        results.append(run(item))
        times.append(1000 * (time.perf_counter() - start))
    return {"median": statistics.median(times), "p90": statistics.quantiles(times, n=10)[-1]}, results


def measure_index(folder, queries, threads):
    """Open the index and search it."""
    torch.set_num_threads(threads)
    start = time.perf_counter()
    index = Index.open(folder)
    opened = time.perf_counter() - start
    times, found = milliseconds(lambda query: index.search_vectors(query[None], TOP), list(queries))
    rows = np.concatenate([one.rows for one in found])
    return {"open_s": opened, "ms": times, "peak_mib": peak_memory()}, rows


def measure_numpy(folder, queries, threads):
    """Compute numpy's product with each query."""
    vectors = Index.open(folder).stored_vectors
    product, _ = milliseconds(lambda query: vectors @ query, list(queries[:100]))

    def search(query):
        scores = vectors @ query
        best = np.argpartition(scores, -TOP)[-TOP:]
        return best[np.argsort(-scores[best])]

    whole, rows = milliseconds(search, list(queries[:100]))
    return {"product_ms": product, "search_ms": whole}, np.stack(rows)


def exact_rows(folder, queries, threads):
    """Return the rows of the ten largest products in float64."""
    vectors, best = Index.open(folder).stored_vectors, []
    for start in range(0, len(vectors), WINDOW):
        scores = vectors[start : start + WINDOW].astype(np.float64) @ queries.astype(np.float64).T
        top = np.argpartition(scores, -TOP, axis=0)[-TOP:]
        best.append((top + start, np.take_along_axis(scores, top, axis=0)))
    rows, scores = (np.concatenate(parts) for parts in zip(*best, strict=True))
    return {}, np.take_along_axis(rows, np.argsort(-scores, axis=0, kind="stable")[:TOP], axis=0).T


def in_new_process(measure, *arguments):
    """Run a measurement in a separate process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def parse_arguments():
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts_file", metavar="TEXTS")
    for name, default in (("rows", 1_000_000), ("queries", 1000), ("texts", 20_000), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main():
    """Build the index if it is missing, measure and print."""
    arguments = parse_arguments()
    lines = [line for line in Path(arguments.texts_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    folder = arguments.folder or Path(tempfile.mkdtemp()) / "index"
    encoder = TextEncoder.from_pretrained()
    queries = encoder.encode(lines[-arguments.queries :], normalize=True)
    if not (folder / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        base = encoder.encode(lines[: arguments.texts], normalize=True)
        write_index(folder, encoder, base, arguments.rows, arguments.noise, arguments.dtype)
    measured, rows = in_new_process(measure_index, folder, queries, arguments.threads)
    numpy, numpy_rows = in_new_process(measure_numpy, folder, queries, arguments.threads)
    _, expected = in_new_process(exact_rows, folder, queries, arguments.threads)
    report = {
        "rows": arguments.rows,
        "queries": len(queries),
        "dtype": arguments.dtype,
        "index": measured,
        "numpy": numpy,
        "speed": numpy["product_ms"]["median"] / measured["ms"]["median"],
        "exact": int((rows == expected).all(axis=1).sum()),
        "same_rows_as_numpy": int((np.sort(rows[: len(numpy_rows)]) == np.sort(numpy_rows)).all(axis=1).sum()),
        "hardware": hardware_info(arguments.threads, ["clearhead", "torch", "numpy"]),
    }
    print(json.dumps(report, indent=2, default=str))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
