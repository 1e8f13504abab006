"""Measure two alternatives for encoding on a CPU that are off by default: 8-bit weights and torch.compile.

Usage: python benchmarks/alternatives.py TEXTS [--rounds 9]

8 bits: the weights of the matmuls (one scale per row) and their inputs (one scale per token, or one per batch) are
rounded to 8 bits. The matmuls run in float32, so only the rounding is measured, as cosine with float32.
Compiler: `compile=True` compared with the default. The first run may use the compiler's cache.
"""

import argparse
import copy
import json
import random
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead import TextEncoder
from clearhead.benchmark.hardware import hardware_info
from clearhead.models.encoder import EncoderModel
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.precision import Precision
from clearhead.runtime.process import tune_process

PRECISIONS = ("float32", "bfloat16")
MATMULS = {
    "all": ("qkv", "out", "inner"),
    "Q, K, V": ("attention.qkv",),
    "attention's output": ("attention.out",),
    "feed-forward, inner": ("feedforward.inner",),
    "feed-forward, outer": ("feedforward.out",),
}


class QuantizedLinear(nn.Module):
    """Linear layer with weights and inputs rounded to 8 bits."""

    def __init__(self, linear: nn.Linear, *, per_token: bool) -> None:
        super().__init__()
        self.in_features, self.bias, self.per_token = linear.in_features, linear.bias, per_token
        self.weight = quantize(linear.weight.detach(), linear.weight.abs().amax(1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True) if self.per_token else x.abs().max()
        return functional.linear(quantize(x, largest), self.weight, self.bias)


def quantize(x: Tensor, largest: Tensor) -> Tensor:
    return (x * (127 / largest)).round() * (largest / 127)


def eager_model(encoder: TextEncoder) -> EncoderModel:
    """Copy the model in the encoder's dtype, with torch.nn's linear layers."""
    unconverted = Precision("unconverted", encoder.precision.dtype)
    return copy.deepcopy(inference_copy(encoder.model, unconverted, encoder.device))


def measure_8_bits(texts: list[str]) -> None:
    encoder = TextEncoder.from_pretrained(precision="float32")
    exact = encoder.encode(texts)
    for per_token in (True, False):
        print(f"8 bits, a scale for each {'token' if per_token else 'batch'}: cosine with float32, minimum and mean")
        for name, parts in MATMULS.items():
            encoder.inference_model = model = eager_model(encoder)
            for path, linear in list(model.encoder.named_modules()):
                if isinstance(linear, nn.Linear) and any(path.endswith(part) for part in parts):
                    model.encoder.set_submodule(path, QuantizedLinear(linear, per_token=per_token))
            cosines = (encoder.encode(texts) * exact).sum(1)
            print(f"  {name:20} {cosines.min():.4f}  {cosines.mean():.4f}")


def measure_compile(texts: list[str], rounds: int) -> None:
    for dtype in PRECISIONS:
        eager = TextEncoder.from_pretrained(precision=dtype)
        compiled = TextEncoder.from_pretrained(precision=dtype, compile=True)
        first = [seconds(encoder, texts) for encoder in (eager, compiled)]
        print(f"{dtype}: first run {first[0]:.1f} s, compiled {first[1]:.1f} s")
        ratios = []
        for _ in range(rounds):
            random.shuffle(texts)
            times = {encoder: seconds(encoder, texts) for encoder in random.sample((eager, compiled), 2)}
            ratios.append(times[eager] / times[compiled])
        median, minimum, maximum = statistics.median(ratios), min(ratios), max(ratios)
        print(f"  then compiled {median:.3f} times the speed ({minimum:.3f} to {maximum:.3f})", flush=True)


def seconds(encoder: TextEncoder, texts: list[str]) -> float:
    start = time.perf_counter()
    encoder.encode(texts)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, help="one text a line")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    tune_process()
    torch.set_num_threads(2)
    texts = list(dict.fromkeys(args.texts.read_text(encoding="utf-8").splitlines()))[:1000]
    print(json.dumps(hardware_info(2, ("clearhead", "torch"))))
    measure_compile(texts, args.rounds)
    measure_8_bits(texts)


if __name__ == "__main__":
    main()
