"""The memory of an encoding does not grow with the corpus."""

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command import COMMAND
from support.models.tiny import make_bert

WORDS = [
    "a",
    "man",
    "in",
    "a",
    "red",
    "shirt",
    "rides",
    "an",
    "old",
    "bicycle",
    "past",
    "the",
    "market",
    "while",
    "two",
    "dogs",
    "sleep",
    "in",
    "the",
    "shade",
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, name):
    make_bert(tmp_path / "bert")
    peaks = []
    for lines in (50_000, 250_000):  # as texts and vectors in memory, 200,000 lines would take 50 MB
        generator = random.Random(1)
        corpus = tmp_path / f"{lines}.txt"
        texts = (f"{number} {' '.join(generator.choices(WORDS, k=8))}\n" for number in range(lines))
        corpus.write_text("".join(texts))
        peaks.append(peak_memory("encode", corpus, "-m", tmp_path / "bert", "-o", tmp_path / f"{lines}-{name}"))
    assert peaks[1] <= 1.05 * peaks[0], peaks


def peak_memory(*words):
    """Return the largest resident memory of a command in kB, read until it ends.

    `wait4` would return that of this process if it is larger, because a fork starts with it.
    """
    process = subprocess.Popen([COMMAND, *map(str, words)], stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        peak = max(peak, int(found[1]) if found else 0)  # a process that has ended has no memory
        time.sleep(0.01)
    assert process.returncode == 0
    return peak
