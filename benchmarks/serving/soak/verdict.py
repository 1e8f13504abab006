"""Judge the samples and records of a soak: one line for each promise."""

from dataclasses import dataclass

import numpy as np

MAX_SLOPE_MIB = 1.0
"""Growth of the memory in MiB a minute."""
MAX_SLOPE_COUNT = 0.5
"""Growth of the number of descriptors or threads a minute."""
MIN_MINUTES = 8.0
"""Slopes and latencies over a shorter time after the warm-up are mostly noise, so they are not judged."""
WARM_UP = 0.2
"""Share of the time that is the warm-up, at most `MAX_WARM_UP` seconds."""
MAX_WARM_UP = 300.0
MAX_POLITE_SECONDS, MAX_POLITE_LAST = 1.0, 5.0
"""Median and 99th percentile of the latency of polite clients while a greedy one sends."""


@dataclass(frozen=True)
class Promise:
    """A promise of the server.

    Args:
        name: the promise.
        found: the result of the soak.
        kept: whether it was kept; None if the soak was too short to tell.
    """

    name: str
    found: str
    kept: bool | None

    def __str__(self) -> str:
        word = {True: "kept", False: "BROKEN", None: "not judged"}[self.kept]
        return f"{word:10}  {self.name}: {self.found}"


def warm_up(seconds):
    """Return the length of the warm-up of a soak in seconds."""
    return min(MAX_WARM_UP, WARM_UP * seconds)


def is_long(seconds):
    """Return whether a soak of some seconds is long enough to judge slopes and latencies."""
    return (seconds - warm_up(seconds)) / 60 >= MIN_MINUTES


def slope(samples, name):
    """Return the growth of a value a minute: the slope of a straight line through all samples."""
    times = np.array([sample["seconds"] for sample in samples]) / 60
    return float(np.polyfit(times, np.array([sample[name] for sample in samples], float), 1)[0])


def percentiles(latencies):
    """Return the median and the 99th percentile; NaN without values."""
    return tuple(float(value) for value in np.percentile(latencies, (50, 99))) if len(latencies) else (np.nan, np.nan)


def judge_samples(samples, seconds, is_quiet):
    """Return the promises about memory, descriptors and threads.

    Args:
        samples: samples of the server, with seconds from the start.
        seconds: length of the soak.
        is_quiet: whether the greedy client has no connections, by the seconds from the start. Only these samples show
            whether descriptors leak.
    """
    after = [sample for sample in samples if sample["seconds"] >= warm_up(seconds)]
    quiet = [sample for sample in after if is_quiet(sample["seconds"])]
    units = {
        "rss": ("resident memory is flat", "MiB", MAX_SLOPE_MIB),
        "descriptors": ("open descriptors are flat", "", MAX_SLOPE_COUNT),
        "threads": ("threads are flat", "", MAX_SLOPE_COUNT),
    }
    for name, (text, unit, limit) in units.items():
        judged = after if name == "rss" else quiet
        growth = slope(judged, name)
        values = [sample[name] for sample in judged]
        found = f"{growth:+.2f} {unit} a minute, {min(values):.0f} to {max(values):.0f}".replace("  ", " ")
        yield Promise(text, found, growth <= limit if is_long(seconds) else None)


def judge_answers(record):
    """Return the promises about results and statuses, from the records of all clients."""
    total = sum(count for name, count in record.counts.items() if name.endswith(" 200"))
    yield Promise("every result equals the offline one", f"{len(record.wrong)} of {total:,} differ", not record.wrong)
    yield Promise("every status is the expected one", f"{len(record.unexpected)} are not", not record.unexpected)


def judge_fairness(crowded, alone, seconds):
    """Return the promise to polite clients.

    Args:
        crowded: their latencies in seconds while the greedy client sends.
        alone: the other latencies.
        seconds: length of the soak.
    """
    (median, last), (usual, usual_last) = percentiles(crowded), percentiles(alone)
    found = (
        f"median {median:.2f} s, 99th percentile {last:.2f} s ({len(crowded)} requests); "
        f"without it {usual:.2f} s and {usual_last:.2f} s ({len(alone)} requests)"
    )
    kept = median <= MAX_POLITE_SECONDS and last <= MAX_POLITE_LAST if is_long(seconds) else None
    return Promise("a greedy client does not starve polite ones", found, kept)


def judge_shutdown(record, status, seconds, log):
    """Return the promises about SIGTERM, from the records of all clients, the exit status and the log."""
    found = f"{len(record.lost)} lost, {record.finished_after_signal} answered after the signal"
    yield Promise("SIGTERM loses no accepted request", found, not record.lost)
    yield Promise("the server exits with status 0", f"status {status} after {seconds:.0f} s", status == 0)
    errors = log.count("Traceback")
    yield Promise("the log has no traceback", f"{errors} tracebacks", not errors)
