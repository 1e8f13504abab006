"""The server under load: many connections for a minute, every answer compared with what comes out offline.

Usage: python benchmarks/serve.py TEXTS [--overload] [--seconds 60] [--precision auto] [--json FILE] [--plot FILE]

TEXTS holds a text a line, of mixed lengths. Each of 64 connections sends one to eight of them, waits for the vectors,
and sends the next. Afterwards the same texts are encoded offline, in the same order and as often. With --overload, ten
times as many requests are sent as the server can answer. Status 1 where a bound is missed: an answer lost or wrong,
less than 70% of the offline throughput; refusals that are slow, a queue or memory beyond its bound, no recovery.
Needs httpx.
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
from clearhead.benchmark.hardware import hardware_info
from clearhead.io.atomic import atomic_file
from clearhead.io.json import write_json
from clearhead.runtime.allocator import configure_allocator

MODEL = "all-MiniLM-L6-v2"
FLOOD_TEXTS = 32
"""Texts of a request in an overload: few large requests, so that this client is not what is slow."""
FLOOD_QUEUE = 32_768
COMMAND = str(Path(sys.executable).with_name("clearhead"))


class Server:
    """A server of its own process on a free port.

    Args:
        precision: of its model.
        more: further options of the command.
    """

    def __init__(self, precision, *more):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [COMMAND, "serve", "--model", MODEL, "--port", str(port), "--precision", precision, *more]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.address, self.status = f"http://127.0.0.1:{port}", None

    def __enter__(self):
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.address}/health/ready").status_code == 200:
                    return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.process.kill()
        raise SystemExit("the server did not become ready")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.status = self.process.wait(60)
        finally:
            self.process.kill()

    def memory(self):
        """MiB that it holds."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))

    def metrics(self):
        """Its metrics, by their names and labels."""
        lines = httpx.get(f"{self.address}/metrics", timeout=60).text.splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


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


def histogram(before, after):
    """How many batches between two readings of the metrics had at most so many texts."""
    names = [name for name in after if name.startswith("clearhead_batch_jobs_bucket")]
    sums = {name.split('"')[1]: after[name] - before.get(name, 0) for name in names}
    counts = zip(sums, [0.0, *sums.values()], sums.values(), strict=False)
    return {size: int(count - smaller) for size, smaller, count in counts}


def compared(found, exact):
    """What came back beside the exact vectors: lost requests, largest distance, smallest cosine, texts in order."""
    lost, distance, cosine, sent = 0, 0.0, 1.0, []
    for _, status, some, content in found:
        if status != 200:
            lost += 1
            continue
        vectors = np.array([one["embedding"] for one in json.loads(content)["data"]], np.float32)
        sent += some
        distance = max(distance, float(np.abs(vectors - exact[some]).max()))
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact[some], axis=1)
        cosine = min(cosine, float(((vectors * exact[some]).sum(1) / lengths).min()))
    return lost, distance, cosine, sent


def percentiles(times):
    times = sorted(times)
    return {f"p{share}": times[min(len(times) - 1, int(len(times) * share / 100))] for share in (50, 95, 99)}


def draw(path, times, batches):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(picture)
    left, right = picture.subplots(1, 2)
    left.hist(1000 * np.array(times), bins=60)
    left.set(xlabel="ms from request to answer", ylabel="requests")
    right.bar([size.removesuffix(".0") for size in batches], list(batches.values()))
    right.set(xlabel="texts in a batch, at most", ylabel="batches")
    with atomic_file(path) as file:
        picture.savefig(file, format="png", dpi=110)


def steady(texts, options):
    """As many requests as the connections can send: what was measured, and which bounds it missed."""
    with Server(options.precision) as server:
        asyncio.run(load(server.address, texts, options.connections, 3))  # warm
        memory, metrics = server.memory(), server.metrics()
        found, seconds = asyncio.run(load(server.address, texts, options.connections, options.seconds))
        after, batches = server.memory(), histogram(metrics, server.metrics())
    exact = TextEncoder.from_pretrained(MODEL, precision="float32").encode(texts)
    lost, distance, cosine, sent = compared(found, exact)
    encoder = TextEncoder.from_pretrained(MODEL, precision=options.precision)
    encoder.encode(texts[:200])
    served, alone = len(sent) / seconds, offline(encoder, texts, sent, options.seconds)
    times = [one for one, *_ in found]
    exactly = options.precision == "float32"
    missed = {
        f"{lost} requests were lost": lost > 0,
        f"the server ended with status {server.status}": server.status != 0,
        f"a vector differs by {distance:.1e}, more than 1e-5": exactly and distance > 1e-5,
        f"a cosine is {cosine:.5f}, less than 0.9995": cosine < 0.9995,
        f"{served / alone:.0%} of the offline throughput, less than 70%": served < 0.7 * alone,
    }
    about = {
        "connections": options.connections, "seconds": seconds, "requests": len(found), "failed": lost,
        "texts_per_second": served, "offline": alone, "ratio": served / alone, "latency": percentiles(times),
        "mean_latency": statistics.fmean(times), "largest_distance": distance, "smallest_cosine": cosine,
        "mib_before": memory, "mib_after": after, "batches": batches,
    }  # fmt: skip
    if options.plot:
        draw(options.plot, times, batches)
    return about, [said for said, wrong in missed.items() if wrong]


async def flood(server, texts, rate, seconds):
    """So many requests a second, whatever becomes of them: each with its time and status; and the fullest queue."""
    found, fullest = [], 0.0
    limits = httpx.Limits(max_connections=512, max_keepalive_connections=512)

    async def one(http, some):
        start = time.monotonic()
        response = await http.post(
            f"{server.address}/v1/embeddings", json={"model": MODEL, "input": some, "truncate": True}
        )
        found.append((time.monotonic() - start, response.status_code))

    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        tasks, start, chance = [], time.monotonic(), random.Random(0)
        while (now := time.monotonic() - start) < seconds:
            while len(tasks) < now * rate:
                tasks.append(asyncio.create_task(one(http, chance.choices(texts, k=FLOOD_TEXTS))))
            text = (await http.get(f"{server.address}/metrics")).text
            fullest = max(fullest, float(text.split("\nclearhead_queue_tokens ")[1].split("\n")[0]))
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)
    return found, fullest


def overload(texts, options):
    """Ten times what the server can do: what was measured, and which bounds it missed."""
    with Server(options.precision, "--queue-tokens", str(FLOOD_QUEUE)) as server:
        # a server that is as busy as it can be: what more memory it takes is the flood's
        warm, seconds = asyncio.run(load(server.address, texts, options.connections, 15))
        capacity = sum(len(some) for *_, some, _ in warm) / seconds / FLOOD_TEXTS
        memory = server.memory()
        found, fullest = asyncio.run(flood(server, texts, 10 * capacity, options.seconds))
        start = time.monotonic()
        again = httpx.post(f"{server.address}/v1/embeddings", json={"model": MODEL, "input": "a"}, timeout=60)
        recovery, after = time.monotonic() - start, server.memory()
    taken = [time for time, status in found if status == 200]
    refused = [time for time, status in found if status == 429]
    answered, heard, other = percentiles(taken), percentiles(refused), len(found) - len(taken) - len(refused)
    missed = {
        f"{other} answers are neither 200 nor 429": other > 0,
        f"the server ended with status {server.status}": server.status != 0,
        f"refused after {heard['p95']:.2f} s, answered after {answered['p50']:.2f} s": heard["p95"] > answered["p50"],
        f"{fullest:.0f} tokens waited, more than {FLOOD_QUEUE}": fullest > FLOOD_QUEUE,
        f"memory grew by {after - memory:.0f} MiB": after - memory > 256,
        f"after it a request took {recovery:.1f} s": again.status_code != 200 or recovery > 2,
    }
    about = {
        "requests_per_second": 10 * capacity, "seconds": options.seconds, "answered": len(taken),
        "refused": len(refused), "latency_answered": answered, "latency_refused": heard, "fullest_queue": fullest,
        "mib_before": memory, "mib_after": after, "recovery": recovery,
    }  # fmt: skip
    return about, [said for said, wrong in missed.items() if wrong]


def main():
    configure_allocator()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--overload", action="store_true", help="ten times the capacity, in place of 64 connections")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--number", type=int, default=5000, help="texts to choose from")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line for line in lines if line.strip()))[: options.number]
    about, missed = (overload if options.overload else steady)(texts, options)
    about |= {"precision": options.precision, "missed": missed}
    about["machine"] = hardware_info(2, ("clearhead", "torch", "fastapi", "uvicorn"))
    print(json.dumps(about, indent=1))
    if options.json:
        write_json(options.json, about)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
