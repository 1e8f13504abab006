"""Load-test the server with many connections, and compare every response with offline results.

Usage: python benchmarks/serving/throughput.py TEXTS [--overload] [--seconds 60] [--precision auto] [--json FILE]
       [--plot FILE]

TEXTS has one text per line, of mixed lengths. Each of 64 connections sends one to eight texts, waits for the vectors,
and repeats. Afterwards the same texts are encoded offline, in the same order. With --overload, the client sends ten
times the requests that the server can handle. The exit status is 1 if a limit is missed: lost or wrong responses, less
than 70 % of the offline throughput, slow rejections, an oversized queue, growing memory, or no recovery. Requires
httpx.
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
from clearhead.runtime.process import tune_process

MODEL = "all-MiniLM-L6-v2"
OVERLOAD_TEXTS = 32
"""Texts per request under overload: large requests keep this client from being the bottleneck."""
OVERLOAD_QUEUE = 32_768
COMMAND = str(Path(sys.executable).with_name("clearhead"))


class Server:
    """Server in a separate process on a free port.

    Args:
        precision: precision of the model.
        more: additional options of the command.
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
        """Return the resident memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))

    def metrics(self):
        """Return the metrics by name and labels."""
        lines = httpx.get(f"{self.address}/metrics", timeout=60).text.splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


async def client(address, texts, generator, stop, results):
    """Send requests sequentially over one connection until the time is over."""
    async with httpx.AsyncClient(timeout=60) as http:
        while time.monotonic() < stop:
            indices = [generator.randrange(len(texts)) for _ in range(generator.randint(1, 8))]
            start = time.monotonic()
            body = {"model": MODEL, "input": [texts[n] for n in indices], "encoding_format": "float", "truncate": True}
            response = await http.post(f"{address}/v1/embeddings", json=body)
            results.append((time.monotonic() - start, response.status_code, indices, response.content))


async def load(address, texts, connections, seconds):
    results, stop = [], time.monotonic() + seconds
    start = time.monotonic()
    await asyncio.gather(
        *(client(address, texts, random.Random(number), stop, results) for number in range(connections))
    )
    return results, time.monotonic() - start


def offline(encoder, texts, order, seconds):
    """Encode the requested texts offline, in the same order; return texts per second."""
    start, done = time.monotonic(), 0
    while done < len(order) and time.monotonic() - start < seconds:
        encoder.encode([texts[n] for n in order[done : done + 1000]])
        done += 1000
    return min(done, len(order)) / (time.monotonic() - start)


def histogram(before, after):
    """Return the number of batches by size between two readings of the metrics."""
    names = [name for name in after if name.startswith("clearhead_batch_jobs_bucket")]
    sums = {name.split('"')[1]: after[name] - before.get(name, 0) for name in names}
    counts = zip(sums, [0.0, *sums.values()], sums.values(), strict=False)
    return {size: int(count - smaller) for size, smaller, count in counts}


def compare(results, expected):
    """Compare responses with offline vectors: failed requests, largest error, smallest cosine, and texts in order."""
    num_failed, distance, cosine, sent = 0, 0.0, 1.0, []
    for _, status, indices, content in results:
        if status != 200:
            num_failed += 1
            continue
        vectors = np.array([item["embedding"] for item in json.loads(content)["data"]], np.float32)
        sent += indices
        distance = max(distance, float(np.abs(vectors - expected[indices]).max()))
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected[indices], axis=1)
        cosine = min(cosine, float(((vectors * expected[indices]).sum(1) / lengths).min()))
    return num_failed, distance, cosine, sent


def percentiles(times):
    times = sorted(times)
    return {f"p{share}": times[min(len(times) - 1, int(len(times) * share / 100))] for share in (50, 95, 99)}


def plot(path, times, batches):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.hist(1000 * np.array(times), bins=60)
    left.set(xlabel="latency in ms", ylabel="requests")
    right.bar([size.removesuffix(".0") for size in batches], list(batches.values()))
    right.set(xlabel="texts in a batch, at most", ylabel="batches")
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)


def steady(texts, args):
    """Measure the server with all connections busy; return the measurements and the missed limits."""
    with Server(args.precision) as server:
        asyncio.run(load(server.address, texts, args.connections, 3))  # warm up
        memory, metrics = server.memory(), server.metrics()
        results, seconds = asyncio.run(load(server.address, texts, args.connections, args.seconds))
        after, batches = server.memory(), histogram(metrics, server.metrics())
    expected = TextEncoder.from_pretrained(MODEL, precision="float32").encode(texts)
    num_failed, distance, cosine, sent = compare(results, expected)
    encoder = TextEncoder.from_pretrained(MODEL, precision=args.precision)
    encoder.encode(texts[:200])
    served, offline_rate = len(sent) / seconds, offline(encoder, texts, sent, args.seconds)
    times = [latency for latency, *_ in results]
    is_float32 = args.precision == "float32"
    missed = {
        f"{num_failed} requests failed": num_failed > 0,
        f"the server exited with status {server.status}": server.status != 0,
        f"a vector differs by {distance:.1e}, more than 1e-5": is_float32 and distance > 1e-5,
        f"a cosine is {cosine:.5f}, less than 0.9995": cosine < 0.9995,
        f"{served / offline_rate:.0%} of the offline throughput, less than 70 %": served < 0.7 * offline_rate,
    }
    measurements = {
        "connections": args.connections, "seconds": seconds, "requests": len(results), "failed": num_failed,
        "texts_per_second": served, "offline": offline_rate, "ratio": served / offline_rate,
        "latency": percentiles(times), "mean_latency": statistics.fmean(times), "largest_distance": distance,
        "smallest_cosine": cosine, "mib_before": memory, "mib_after": after, "batches": batches,
    }  # fmt: skip
    if args.plot:
        plot(args.plot, times, batches)
    return measurements, [message for message, failed in missed.items() if failed]


async def send_at_rate(server, texts, rate, seconds):
    """Send requests at a fixed rate; return the time and status of each, and the largest queue."""
    results, max_queue = [], 0.0
    limits = httpx.Limits(max_connections=512, max_keepalive_connections=512)

    async def send_request(http, batch):
        start = time.monotonic()
        response = await http.post(
            f"{server.address}/v1/embeddings", json={"model": MODEL, "input": batch, "truncate": True}
        )
        results.append((time.monotonic() - start, response.status_code))

    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        tasks, start, generator = [], time.monotonic(), random.Random(0)
        while (now := time.monotonic() - start) < seconds:
            while len(tasks) < now * rate:
                tasks.append(asyncio.create_task(send_request(http, generator.choices(texts, k=OVERLOAD_TEXTS))))
            text = (await http.get(f"{server.address}/metrics")).text
            max_queue = max(max_queue, float(text.split("\nclearhead_queue_tokens ")[1].split("\n")[0]))
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)
    return results, max_queue


def overload(texts, args):
    """Measure the server at ten times its capacity; return the measurements and the missed limits."""
    with Server(args.precision, "--queue-tokens", str(OVERLOAD_QUEUE)) as server:
        # measure memory at full load first: further growth is due to the overload
        warm_up, seconds = asyncio.run(load(server.address, texts, args.connections, 15))
        capacity = sum(len(indices) for *_, indices, _ in warm_up) / seconds / OVERLOAD_TEXTS
        memory = server.memory()
        results, max_queue = asyncio.run(send_at_rate(server, texts, 10 * capacity, args.seconds))
        start = time.monotonic()
        response = httpx.post(f"{server.address}/v1/embeddings", json={"model": MODEL, "input": "a"}, timeout=60)
        recovery, after = time.monotonic() - start, server.memory()
    completed = [time for time, status in results if status == 200]
    rejected = [time for time, status in results if status == 429]
    other = len(results) - len(completed) - len(rejected)
    latency_completed, latency_rejected = percentiles(completed), percentiles(rejected)
    rejected_p95, completed_p50 = latency_rejected["p95"], latency_completed["p50"]
    missed = {
        f"{other} responses are neither 200 nor 429": other > 0,
        f"the server exited with status {server.status}": server.status != 0,
        f"rejected after {rejected_p95:.2f} s, completed after {completed_p50:.2f} s": rejected_p95 > completed_p50,
        f"{max_queue:.0f} tokens queued, more than {OVERLOAD_QUEUE}": max_queue > OVERLOAD_QUEUE,
        f"memory grew by {after - memory:.0f} MiB": after - memory > 256,
        f"a request after the overload took {recovery:.1f} s": response.status_code != 200 or recovery > 2,
    }
    measurements = {
        "requests_per_second": 10 * capacity, "seconds": args.seconds, "completed": len(completed),
        "rejected": len(rejected), "latency_completed": latency_completed,
        "latency_rejected": latency_rejected, "max_queue_tokens": max_queue,
        "mib_before": memory, "mib_after": after, "recovery": recovery,
    }  # fmt: skip
    return measurements, [message for message, failed in missed.items() if failed]


def main():
    tune_process()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument(
        "--overload", action="store_true", help="send ten times the capacity instead of using 64 connections"
    )
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16", "int8"])
    parser.add_argument("--number", type=int, default=5000, help="texts to choose from")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    lines = args.texts.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line for line in lines if line.strip()))[: args.number]
    measurements, missed = (overload if args.overload else steady)(texts, args)
    measurements |= {"precision": args.precision, "missed": missed}
    measurements["machine"] = hardware_info(2, ("clearhead", "torch", "fastapi", "uvicorn"))
    print(json.dumps(measurements, indent=1))
    if args.json:
        write_json(args.json, measurements)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
