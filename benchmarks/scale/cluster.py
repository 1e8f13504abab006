"""Encode a sharded corpus on Ray while killing workers, and compare every row with a run without Ray.

Usage: python benchmarks/scale/cluster.py LINES.txt [--number 100000] [--shards 20] [--workers 2] [--kills 2]
       [--json FILE]

LINES.txt has one text per line. The default model runs in float32. Workers are killed with SIGKILL while they encode.
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
TOLERANCE = 1e-6
"""Largest allowed distance between the vectors of both runs, relative to the norm."""


def encode_plain(texts, output):
    """Encode without Ray; return the seconds."""
    start = time.perf_counter()
    subprocess.run([COMMAND, "encode", str(texts), "-q", "--precision", "float32", "-o", str(output)], check=True)
    return time.perf_counter() - start


def encode_on_ray(shards, output, workers, kills, between):
    """Encode on Ray, killing a worker about every `between` seconds; return the seconds and the number of kills."""
    command = [COMMAND, "encode", *map(str, shards), "--engine", "ray", "--workers", str(workers), "-q"]
    start, generator, num_kills = time.perf_counter(), random.Random(0), 0
    process = subprocess.Popen([*command, "--precision", "float32", "-o", str(output)])
    due = None
    while process.poll() is None:
        busy = busy_workers() if num_kills < kills else []
        if busy and due is None:
            due = time.perf_counter() + generator.uniform(0.5, 1.5) * between
        if busy and due is not None and time.perf_counter() >= due:
            os.kill(busy[0], signal.SIGKILL)
            num_kills, due = num_kills + 1, None
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"the run on Ray failed with status {process.returncode}")
    return time.perf_counter() - start, num_kills


def busy_workers():
    """Return the process ids of the local Ray workers that are encoding a shard."""
    processes = subprocess.run(["ps", "-axo", "pid,command"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in processes.splitlines() if "ray::Worker.encode" in line]


def compare(shards, output, vectors):
    """Return the number of rows, and the largest distance from the run without Ray, relative to the norm."""
    rows, largest = 0, 0.0
    for shard in shards:
        table = pq.read_table(output / f"{shard.stem}.parquet")
        texts = shard.read_text(encoding="utf-8").split("\n")[:-1]
        if table["text"].to_pylist() != texts:
            raise SystemExit(f"{shard.name}: rows differ from the texts of the shard")
        result = np.array(table["embedding"].to_pylist(), dtype=np.float32)
        expected = vectors[rows : rows + len(texts)]
        distance = np.linalg.norm(result - expected, axis=1) / np.linalg.norm(expected, axis=1)
        rows, largest = rows + len(texts), max(largest, float(distance.max()))
    if rows != len(vectors):
        raise SystemExit(f"expected {len(vectors)} rows, got {rows}")
    return rows, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path)
    parser.add_argument("--number", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with args.lines.open(encoding="utf-8", newline="\n") as file:
            lines = [line.rstrip("\r\n") for line in itertools.islice(file, args.number)]
        all_lines, shard_size = folder / "all.txt", -(-len(lines) // args.shards)
        all_lines.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        shards = [folder / f"{start // shard_size:04}.txt" for start in range(0, len(lines), shard_size)]
        for index, shard in enumerate(shards):
            shard_lines = lines[index * shard_size : (index + 1) * shard_size]
            shard.write_text("".join(f"{line}\n" for line in shard_lines), encoding="utf-8")
        baseline_seconds = encode_plain(all_lines, folder / "all.npy")
        seconds, num_kills = encode_on_ray(
            shards, folder / "out", args.workers, args.kills, baseline_seconds / (2 * args.kills + 2)
        )
        rows, largest = compare(shards, folder / "out", np.load(folder / "all.npy", mmap_mode="r"))
    print(
        f"{rows:,} rows in {len(shards)} shards: alone {baseline_seconds:.1f} s, {args.workers} workers {seconds:.1f} s"
    )
    print(f"{num_kills} of {args.kills} kills; every row once; largest relative distance {largest:.1e}")
    if args.json:
        result = {"rows": rows, "shards": len(shards), "workers": args.workers, "kills": num_kills}
        result |= {
            "baseline_seconds": round(baseline_seconds, 1),
            "seconds": round(seconds, 1),
            "largest_distance": largest,
        }
        args.json.write_text(
            json.dumps(
                {"machine": hardware_info(torch.get_num_threads(), ["clearhead", "torch", "ray"]), **result}, indent=2
            )
            + "\n"
        )
    if largest > TOLERANCE or num_kills < args.kills:
        raise SystemExit(f"expected {args.kills} kills and a distance of at most {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
