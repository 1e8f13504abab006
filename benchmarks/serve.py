"""The server under load: many connections for a minute, every answer compared with what comes out offline.

Usage: python benchmarks/serve.py TEXTS [--connections 64] [--seconds 60] [--precision auto] [--json FILE] [--plot FILE]

TEXTS holds a text a line, of mixed lengths. Each connection sends one to eight of them, waits for the vectors, and
sends the next. Afterwards the same texts are encoded offline, in the same order and as often. Needs httpx.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from clearhead import TextEncoder
from clearhead.bench.machine import machine
from clearhead.checkpoints.directory import write_json
from clearhead.files import whole_file

MODEL = "all-MiniLM-L6-v2"
COMMAND = str(Path(sys.executable).with_name("clearhead"))


@contextlib.contextmanager
def server(precision):
    """A server of its own process on a free port: its address and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [COMMAND, "serve", "--model", MODEL, "--port", str(port), "--precision", precision]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{address}/health/ready").status_code == 200:
                    break
            time.sleep(0.1)
        yield address, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        print(f"the server ended with status {process.wait(60)}")


def memory(pid):
    """MiB that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


async def client(address, texts, chance, stop, found):
    """One connection: requests, one after another, until the time is over."""
    async with httpx.AsyncClient(timeout=60) as http:
        while time.monotonic() < stop:
            some = [chance.randrange(len(texts)) for _ in range(chance.randint(1, 8))]
            start = time.monotonic()
            body = {"model": MODEL, "input": [texts[n] for n in some], "encoding_format": "float", "truncate": True}
            response = await http.post(f"{address}/v1/embeddings", json=body)
            found.append((time.monotonic() - start, response.status_code, some, response.content))


async def load(address, texts, connections, seconds):
    found, stop = [], time.monotonic() + seconds
    start = time.monotonic()
    await asyncio.gather(*(client(address, texts, random.Random(number), stop, found) for number in range(connections)))
    return found, time.monotonic() - start


def offline(encoder, texts, order, seconds):
    """Texts a second of the same texts, in the order and as often as they were asked for."""
    start, done = time.monotonic(), 0
    while done < len(order) and time.monotonic() - start < seconds:
        encoder.encode([texts[n] for n in order[done : done + 1000]])
        done += 1000
    return min(done, len(order)) / (time.monotonic() - start)


def histogram(address):
    """How many batches had at most so many texts."""
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    buckets = [line for line in lines if line.startswith("clearhead_batch_jobs_bucket")]
    sums = [(line.split('"')[1], float(line.rsplit(" ", 1)[1])) for line in buckets]
    return {
        name: int(count - before)
        for (name, count), before in zip(sums, [0.0, *(count for _, count in sums)], strict=False)
    }


def draw(path, times, batches):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(picture)
    left, right = picture.subplots(1, 2)
    left.hist(1000 * np.array(times), bins=60)
    left.set(xlabel="ms from request to answer", ylabel="requests")
    right.bar(list(batches), list(batches.values()))
    right.set(xlabel="texts in a batch, at most", ylabel="batches")
    with whole_file(path) as file:
        picture.savefig(file, format="png", dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--number", type=int, default=5000, help="texts to choose from")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line for line in lines if line.strip()))[: options.number]
    with server(options.precision) as (address, pid):
        asyncio.run(load(address, texts, options.connections, 3))  # warm
        before = memory(pid)
        found, seconds = asyncio.run(load(address, texts, options.connections, options.seconds))
        after, batches = memory(pid), histogram(address)
    exact = TextEncoder.from_pretrained(MODEL, precision="float32").encode(texts)
    wrong, distance, cosine, sent = 0, 0.0, 1.0, []
    for _, status, some, content in found:
        if status != 200:
            wrong += 1
            continue
        vectors = np.array([one["embedding"] for one in json.loads(content)["data"]], np.float32)
        sent += some
        distance = max(distance, float(np.abs(vectors - exact[some]).max()))
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact[some], axis=1)
        cosine = min(cosine, float(((vectors * exact[some]).sum(1) / lengths).min()))
    encoder = TextEncoder.from_pretrained(MODEL, precision=options.precision)
    encoder.encode(texts[:200])
    served, alone = len(sent) / seconds, offline(encoder, texts, sent, options.seconds)
    times = sorted(one for one, *_ in found)
    ranks = {f"p{share}": times[min(len(times) - 1, int(len(times) * share / 100))] for share in (50, 95, 99)}
    about = {
        "connections": options.connections, "seconds": seconds, "requests": len(found), "failed": wrong,
        "texts_per_second": served, "offline": alone, "ratio": served / alone, "latency": ranks,
        "mean_latency": statistics.fmean(times), "largest_distance": distance, "smallest_cosine": cosine,
        "mib_before": before, "mib_after": after, "batches": batches, "precision": options.precision,
        "machine": machine(2, ("clearhead", "torch", "fastapi", "uvicorn")),
    }  # fmt: skip
    print(json.dumps(about, indent=1))
    if options.json:
        write_json(options.json, about)
    if options.plot:
        draw(options.plot, times, batches)


if __name__ == "__main__":
    main()
