"""Soak the server: a mixed load for many minutes, with memory, latency and every result watched.

Usage: python benchmarks/serving/soak [--minutes 30] [--json FILE] [--plot FILE]

It starts `clearhead serve` with a model for each endpoint. Four polite clients send ordinary requests to all endpoints.
Other clients read slowly, abort streams, send half requests, oversized and malformed bodies and wrong keys. In every
second period, a greedy client sends on 96 connections without a pause. Every result is compared with the offline one.
In the end, SIGTERM stops the server in the middle of the load. The exit status is 1 if a promise is broken. Linux only.
The server computes in one thread; the other cores are for the clients.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for this process and those that it starts, before torch is imported

import argparse
import math
import multiprocessing
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import verdict
from hostile import hostile
from load import POLITE, Load, Record, greedy, polite, run_clients
from offline import OfflineModels
from server import Server

from clearhead.benchmark.hardware import hardware_info
from clearhead.io.json import write_json

CLIENTS = (polite, greedy, hostile)
SAMPLE_SECONDS = 2
SAMPLES = 180
"""Number of samples in the report, and of intervals of latency at most."""
PERIOD_SECONDS = 90
"""Length of a period with or without the greedy client; shorter if the soak has no four of them."""


def start_clients(load):
    """Start a process for each kind of clients; return the processes and the ends of their pipes."""
    context = multiprocessing.get_context("spawn")
    load.signaled_at = context.Value("d", math.inf)
    started = []
    for clients in CLIENTS:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=run_clients, args=(clients, load, sender), daemon=True)
        process.start()
        sender.close()
        started.append((process, receiver))
    return started


def merged(records):
    """Return one record of all clients."""
    return Record(
        counts=sum((record.counts for record in records), Counter()),
        latencies=sorted(one for record in records for one in record.latencies),
        wrong=[line for record in records for line in record.wrong],
        unexpected=[line for record in records for line in record.unexpected],
        lost=[line for record in records for line in record.lost],
        finished_after_signal=sum(record.finished_after_signal for record in records),
    )


def soak(server, load):
    """Sample the server until the end of the load, and stop it; return the samples, records, exit status and time."""
    started, samples = start_clients(load), []
    while (now := time.monotonic()) < load.end:
        if server.process.poll() is not None:
            raise SystemExit(f"the server ended with status {server.process.poll()}: {server.log[-2000:]}")
        if not all(process.is_alive() for process, _ in started):
            raise SystemExit("a client process ended")
        samples.append({"seconds": round(now - load.start, 1)} | server.sample())
        if len(samples) % 15 == 1:
            print("  ".join(f"{name} {value:.0f}" for name, value in samples[-1].items()), file=sys.stderr)
        time.sleep(SAMPLE_SECONDS)
    load.signaled_at.value = time.monotonic()
    status, seconds = server.stop()
    records = []
    for process, receiver in started:
        if not receiver.poll(300):
            raise SystemExit(f"the clients of process {process.pid} do not end")
        records.append(receiver.recv())
        process.join()
    return samples, merged(records), status, seconds


def latency_intervals(load, latencies):
    """Return the median and 99th percentile of the polite clients' latencies in each of some intervals."""
    width = max(10.0, (load.end - load.start) / SAMPLES)
    for number in range(math.ceil((load.end - load.start) / width)):
        first = load.start + number * width
        seconds = [one for at, one, _ in latencies if first <= at < first + width]
        if seconds:
            p50, p99 = verdict.percentiles(seconds)
            middle = first + width / 2 - load.start
            yield {"seconds": middle, "p50": round(p50, 4), "p99": round(p99, 4), "requests": len(seconds)}


def report_of(load, samples, record, status, stopping, log):
    """Return the report: promises, figures, samples and machine."""
    seconds = load.end - load.start
    after = load.start + verdict.warm_up(seconds)
    by_greedy = {True: [], False: []}
    for at, one, _ in record.latencies:
        if after <= at < load.end and load.is_settled(at):
            by_greedy[load.has_greedy(at)].append(one)

    def is_quiet(seconds):
        return load.is_settled(load.start + seconds) and not load.has_greedy(load.start + seconds)

    promises = [
        *verdict.judge_samples(samples, seconds, is_quiet),
        *verdict.judge_answers(record),
        verdict.judge_fairness(by_greedy[True], by_greedy[False], seconds),
        *verdict.judge_shutdown(record, status, stopping, log),
    ]
    kinds = sorted({kind for *_, kind in record.latencies})
    starts = [load.period * number for number in range(1, math.ceil(seconds / load.period), 2)]
    return {
        "minutes": seconds / 60, "warm_up": verdict.warm_up(seconds),
        "promises": [vars(promise) for promise in promises],
        "counts": dict(sorted(record.counts.items())),
        "latency_by_kind": {
            kind: verdict.percentiles([one for _, one, other in record.latencies if other == kind]) for kind in kinds
        },
        "wrong": record.wrong[:20], "unexpected": record.unexpected[:20], "lost": record.lost[:20],
        "greedy_periods": [(start, start + load.period) for start in starts],
        "latency": list(latency_intervals(load, record.latencies)),
        "samples": samples[:: math.ceil(len(samples) / SAMPLES)],
        "machine": hardware_info(1, ("clearhead", "torch", "fastapi", "uvicorn")),
    }, promises  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    names = [*(f"polite {number}" for number in range(POLITE)), "greedy", "hostile"]
    keys = {name: secrets.token_hex(16) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        models = OfflineModels(Path(folder))
        generator = random.Random(3)
        large = [models.embeddings(generator, 32, "float", sentences=4) for _ in range(4)]
        large += [models.stream(generator) for _ in range(2)]
        requests = models.requests()
        with Server(Path(folder), models.models, models.options, keys.values()) as server:
            address = server.wait_until_loaded(len(models.models))
            start, seconds = time.monotonic() + 5, 60 * args.minutes
            period = min(PERIOD_SECONDS, seconds / 4)
            load = Load(address, keys, requests, large, start, start + seconds, period, None)
            samples, record, status, stopping = soak(server, load)
            report, promises = report_of(load, samples, record, status, stopping, server.log)
    for name, count in report["counts"].items():
        print(f"{count:9,}  {name}")
    for line in (*record.wrong[:20], *record.unexpected[:20], *record.lost[:20]):
        print(line)
    for promise in promises:
        print(promise)
    if args.json:
        write_json(args.json, report)
    if args.plot:
        from chart import draw

        draw(args.plot, report)
    return 1 if any(promise.kept is False for promise in promises) else 0


if __name__ == "__main__":
    sys.exit(main())
