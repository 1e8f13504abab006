"""A corpus in shards by Ray workers, of which some are killed, against the plain run: every row once, and equal.

Usage: python benchmarks/cluster.py LINES.txt [--number 100000] [--shards 20] [--workers 2] [--kills 2] [--json FILE]

LINES.txt holds a text a line. The default model, in float32; the killed worker is one that is encoding (SIGKILL).
"""

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from clearhead.benchmark.hardware import hardware_info

COMMAND = str(Path(sys.executable).with_name("clearhead"))
BOUND = 1e-6
"""How far a vector may be from the plain run's, of its norm."""


def plain(texts, output):
    """Seconds of the run without a cluster."""
    start = time.perf_counter()
    subprocess.run([COMMAND, "encode", str(texts), "-q", "--precision", "float32", "-o", str(output)], check=True)
    return time.perf_counter() - start


def killed(shards, output, workers, kills, between):
    """Seconds of the run on a cluster, and how many workers were killed in it: one every `between` seconds or so."""
    given = [COMMAND, "encode", *map(str, shards), "--engine", "ray", "--workers", str(workers), "-q"]
    start, chance, hits = time.perf_counter(), random.Random(0), 0
    process = subprocess.Popen([*given, "--precision", "float32", "-o", str(output)])
    due = None
    while process.poll() is None:
        busy = encoding() if hits < kills else []
        if busy and due is None:
            due = time.perf_counter() + chance.uniform(0.5, 1.5) * between
        if busy and due is not None and time.perf_counter() >= due:
            os.kill(busy[0], signal.SIGKILL)
            hits, due = hits + 1, None
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"the run on the cluster ended with {process.returncode}")
    return time.perf_counter() - start, hits


def encoding():
    """The workers of this machine that are encoding a shard."""
    listed = subprocess.run(["ps", "-axo", "pid,command"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "ray::Worker.encode" in line]


def compared(shards, output, vectors):
    """Rows, and the largest distance of a vector to the plain run's, of its norm."""
    rows, largest = 0, 0.0
    for shard in shards:
        table = pq.read_table(output / f"{shard.stem}.parquet")
        texts = shard.read_text(encoding="utf-8").split("\n")[:-1]
        if table["text"].to_pylist() != texts:
            raise SystemExit(f"{shard.name}: its rows are not its texts, once each and in order")
        found = np.array(table["embedding"].to_pylist(), dtype=np.float32)
        wanted = vectors[rows : rows + len(texts)]
        distance = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
        rows, largest = rows + len(texts), max(largest, float(distance.max()))
    if rows != len(vectors):
        raise SystemExit(f"{rows} rows, but {len(vectors)} texts")
    return rows, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path)
    parser.add_argument("--number", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with asked.lines.open(encoding="utf-8", newline="\n") as file:
            lines = [line.rstrip("\r\n") for line in itertools.islice(file, asked.number)]
        all_of_them, each = folder / "all.txt", -(-len(lines) // asked.shards)
        all_of_them.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        shards = [folder / f"{start // each:04}.txt" for start in range(0, len(lines), each)]
        for number, shard in enumerate(shards):
            part = lines[number * each : (number + 1) * each]
            shard.write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
        alone = plain(all_of_them, folder / "all.npy")
        seconds, hits = killed(shards, folder / "out", asked.workers, asked.kills, alone / (2 * asked.kills + 2))
        rows, largest = compared(shards, folder / "out", np.load(folder / "all.npy", mmap_mode="r"))
    print(f"{rows:,} rows in {len(shards)} shards: alone {alone:.1f} s, {asked.workers} workers {seconds:.1f} s")
    print(
        f"{hits} of {asked.kills} kills; every row once; vectors at most {largest:.1e} of their norm from the plain run"
    )
    if asked.json:
        found = {"rows": rows, "shards": len(shards), "workers": asked.workers, "kills": hits}
        found |= {"alone_seconds": round(alone, 1), "seconds": round(seconds, 1), "largest_distance": largest}
        asked.json.write_text(
            json.dumps(
                {"machine": hardware_info(torch.get_num_threads(), ["clearhead", "torch", "ray"]), **found}, indent=2
            )
            + "\n"
        )
    if largest > BOUND or hits < asked.kills:
        raise SystemExit(f"wanted: {asked.kills} kills, and at most {BOUND:.0e}")


if __name__ == "__main__":
    main()
