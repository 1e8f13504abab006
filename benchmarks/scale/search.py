"""Measure exact search in an index of many vectors, next to numpy's float32 matrix multiplication with the same file.

Usage: python benchmarks/scale/search.py TEXTS [--rows 1000000] [--queries 1000] [--texts 20000] [--noise 0.5]
       [--dtype int8] [--threads 2] [--rounds 5] [--folder FOLDER] [--json FILE]

TEXTS has one text per line. Its first lines are encoded, and each vector of the index is one of theirs plus random
noise, normalized again. The last lines are the queries. One process opens the index and searches it. Another one scores
the float32 vectors, mapped into memory, with numpy, without and with selecting the ten best. Their rounds are
interleaved, and the speed is the ratio of their medians in a round. A third process finds the ten largest scores in
float64. --folder keeps the index.
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

state = {}


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
    """Return the time of each call, and the results."""
    times, results = [], []
    for item in items:
        start = time.perf_counter()
        results.append(run(item))
        times.append(1000 * (time.perf_counter() - start))
    return times, results


def open_index(folder, threads):
    """Open the index in this process and return the time."""
    torch.set_num_threads(threads)
    start = time.perf_counter()
    state["index"] = Index.open(folder)
    return time.perf_counter() - start


def search_index(queries):
    """Search the index with each query; return the times, the rows and the peak memory so far."""
    times, found = milliseconds(lambda query: state["index"].search_vectors(query[None], TOP), list(queries))
    return times, np.concatenate([one.rows for one in found]), peak_memory()


def search_numpy(queries):
    """Score all rows with numpy for each query, without and with selecting the ten best; return times and rows."""
    vectors = state["index"].stored_vectors

    def search(query):
        scores = vectors @ query
        best = np.argpartition(scores, -TOP)[-TOP:]
        return best[np.argsort(-scores[best])]

    product, _ = milliseconds(lambda query: vectors @ query, list(queries))
    whole, rows = milliseconds(search, list(queries))
    return product, whole, np.stack(rows)


def measure(folder, queries, threads, rounds):
    """Measure both interleaved, each in its own process; return the figures and the rows of the index."""
    context = multiprocessing.get_context("spawn")
    parts = np.array_split(queries, rounds)
    with context.Pool(1) as own, context.Pool(1) as other:
        opened = own.apply(open_index, (folder, threads))
        other.apply(open_index, (folder, threads))
        own.apply(search_index, (queries[:5],))
        other.apply(search_numpy, (queries[:5],))
        results = [(own.apply(search_index, (part,)), other.apply(search_numpy, (part[:20],))) for part in parts]
    speeds = [statistics.median(numpy[0]) / statistics.median(index[0]) for index, numpy in results]
    times = [milliseconds for index, _ in results for milliseconds in index[0]]
    figures = {
        "index": {"open_s": opened, "median_ms": statistics.median(times), "peak_mib": results[-1][0][2],
                  "p90_ms": statistics.quantiles(times, n=10)[-1]},
        "numpy": {"product_ms": statistics.median(t for _, numpy in results for t in numpy[0]),
                  "search_ms": statistics.median(t for _, numpy in results for t in numpy[1])},
        "speed": {"median": statistics.median(speeds), "lowest": min(speeds), "highest": max(speeds)},
    }  # fmt: skip
    rows = np.concatenate([index[1] for index, _ in results])
    starts = np.cumsum([0, *map(len, parts[:-1])])
    checked = np.concatenate([start + np.arange(len(one[1][2])) for start, one in zip(starts, results, strict=True)])
    same = np.sort(rows[checked]) == np.sort(np.concatenate([numpy[2] for _, numpy in results]))
    return figures | {"checked": len(checked), "same_rows_as_numpy": int(same.all(axis=1).sum())}, rows


def exact_rows(folder, queries, threads):
    """Return the rows with the ten largest scores in float64."""
    vectors, best = Index.open(folder).stored_vectors, []
    for start in range(0, len(vectors), WINDOW):
        scores = vectors[start : start + WINDOW].astype(np.float64) @ queries.astype(np.float64).T
        top = np.argpartition(scores, -TOP, axis=0)[-TOP:]
        best.append((top + start, np.take_along_axis(scores, top, axis=0)))
    rows, scores = (np.concatenate(parts) for parts in zip(*best, strict=True))
    return np.take_along_axis(rows, np.argsort(-scores, axis=0, kind="stable")[:TOP], axis=0).T


def in_new_process(measure, *arguments):
    """Run a measurement in a separate process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def parse_arguments():
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts_file", metavar="TEXTS")
    for name, default in (("rows", 1_000_000), ("queries", 1000), ("texts", 20_000), ("threads", 2), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main():
    """Measure and print."""
    arguments = parse_arguments()
    lines = [line for line in Path(arguments.texts_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as workspace:
        report = compare(arguments, lines, arguments.folder or Path(workspace))
    print(json.dumps(report, indent=2, default=str))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, default=str) + "\n", encoding="utf-8")


def compare(arguments, lines, folder):
    """Build the index if it is missing, and return the figures."""
    encoder = TextEncoder.from_pretrained()
    queries = encoder.encode(lines[-arguments.queries :], normalize=True)
    if not (folder / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        base = encoder.encode(lines[: arguments.texts], normalize=True)
        write_index(folder, encoder, base, arguments.rows, arguments.noise, arguments.dtype)
    figures, rows = measure(folder, queries, arguments.threads, arguments.rounds)
    expected = in_new_process(exact_rows, folder, queries, arguments.threads)
    return figures | {
        "rows": arguments.rows,
        "queries": len(queries),
        "dtype": arguments.dtype,
        "exact": int((rows == expected).all(axis=1).sum()),
        "hardware": hardware_info(arguments.threads, ["clearhead", "torch", "numpy"]),
    }


if __name__ == "__main__":
    main()
