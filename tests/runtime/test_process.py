"""The library leaves the settings of the process as they were; `tune_process` changes them on request."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

STATE = """
import csv, ctypes, gc, json, locale, logging, multiprocessing, os, random, signal, sys, warnings

calls = []

class Recorder(ctypes.CDLL):
    def __getattribute__(self, name):
        if name == "mallopt":
            return lambda *arguments: calls.append(("mallopt", *arguments))
        return super().__getattribute__(name)

ctypes.CDLL = Recorder

import numpy as np
import rich.style  # draws a random number when it is imported
import sympy.utilities.exceptions  # torch imports it when it needs it, and it filters its own warnings
import torch

def state():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "signals": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "random": hash(random.getstate()),
        "numpy random": np.random.get_state()[1].tolist(),
        "numpy errors": np.geterr(),
        "torch random": torch.random.get_rng_state().tolist(),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "determinism": [torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()],
        "oneDNN": [str(getattr(torch.backends.mkldnn, name)) for name in ("enabled", "deterministic", "allow_tf32")],
        "start method": multiprocessing.get_start_method(allow_none=True),
        "warnings": [str(entry) for entry in warnings.filters],
        "csv": csv.field_size_limit(),
        "logging": [logging.root.level, len(logging.root.handlers), logging.root.manager.disable],
        "hooks": [str(sys.excepthook), str(sys.unraisablehook)],
        "recursion": sys.getrecursionlimit(),
        "collector": [gc.isenabled(), gc.get_threshold()],
        "mallopt": list(calls),
    }
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", STATE + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_and_running_models_changes_no_setting(tiny_bert):
    before, after = run(f"""
before = state()
import clearhead
for name in clearhead.__all__:
    getattr(clearhead, name)
encoder = clearhead.TextEncoder.from_pretrained({str(tiny_bert)!r})
encoder.encode(["hello", "world"])
list(encoder.stream(["hello"]))
clearhead.TextToText.from_pretrained().generate("Good morning!", beam_size=2)
model = clearhead.EncoderModel(clearhead.EncoderConfig(vocab_size=10, d_model=8, num_heads=2, num_layers=1))
clearhead.trace(model, torch.ones(1, 3, dtype=torch.long))
after = state()
for settings in (before, after):  # new models are initialized from torch's random numbers, as in torch.nn
    del settings["torch random"]
print(json.dumps([before, after]))
""")
    assert after == before


def test_tune_process_sets_allocator_and_kernel_caches_once():
    before, after = run("""
for name in ("THP_MEM_ALLOC_ENABLE", "LRU_CACHE_CAPACITY"):
    os.environ.pop(name, None)
os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "7"
before = state()
import clearhead
clearhead.tune_process()
clearhead.tune_process()
print(json.dumps([before, state()]))
""")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == ({"environment", "mallopt"} if sys.platform == "linux" else {"environment"})
    assert set(after["environment"]) - set(before["environment"]) == {"THP_MEM_ALLOC_ENABLE", "LRU_CACHE_CAPACITY"}
    assert after["environment"]["LRU_CACHE_CAPACITY"] == "24"
    assert after["environment"]["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    assert len(after["mallopt"]) == (2 if sys.platform == "linux" else 0)
