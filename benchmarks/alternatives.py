"""Two other ways to encode on a CPU, and why they are not the usual one: 8 bits, and PyTorch's compiler.

Usage: python benchmarks/alternatives.py TEXTS [--rounds 9]

8 bits: the products' weights (a scale for each row of the matrix) and inputs (one for each token, or for a whole batch)
are rounded to 8 bits and computed in float32, so that nothing but the rounding is measured; cosine with float32.
The compiler: `compile=True`, beside what clearhead runs by itself; the first run is with what the compiler has kept.
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
from clearhead.runtime.allocator import configure_allocator
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.precision import Precision

PRECISIONS = ("float32", "bfloat16")
PRODUCTS = {
    "all": ("qkv", "out", "inner"),
    "Q, K, V": ("attention.qkv",),
    "attention's output": ("attention.out",),
    "feed-forward, inner": ("feedforward.inner",),
    "feed-forward, outer": ("feedforward.out",),
}


class Rounded(nn.Module):
    """A linear map with weights and inputs rounded to 8 bits."""

    def __init__(self, linear: nn.Linear, *, each_token: bool) -> None:
        super().__init__()
        self.in_features, self.bias, self.each_token = linear.in_features, linear.bias, each_token
        self.weight = rounded(linear.weight.detach(), linear.weight.abs().amax(1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True) if self.each_token else x.abs().max()
        return functional.linear(rounded(x, largest), self.weight, self.bias)


def rounded(x: Tensor, largest: Tensor) -> Tensor:
    return (x * (127 / largest)).round() * (largest / 127)


def eager(encoder: TextEncoder) -> EncoderModel:
    """The model in its numbers, with torch.nn's linear maps."""
    unconverted = Precision("unconverted", encoder.precision.dtype)
    return copy.deepcopy(inference_copy(encoder.model, unconverted, encoder.device))


def eight_bits(texts: list[str]) -> None:
    encoder = TextEncoder.from_pretrained(precision="float32")
    exact = encoder.encode(texts)
    for each_token in (True, False):
        print(f"8 bits, a scale for each {'token' if each_token else 'batch'}: cosine with float32, least and mean")
        for name, parts in PRODUCTS.items():
            encoder.inference_model = model = eager(encoder)
            for path, linear in list(model.encoder.named_modules()):
                if isinstance(linear, nn.Linear) and any(path.endswith(part) for part in parts):
                    model.encoder.set_submodule(path, Rounded(linear, each_token=each_token))
            cosines = (encoder.encode(texts) * exact).sum(1)
            print(f"  {name:20} {cosines.min():.4f}  {cosines.mean():.4f}")


def compiled(texts: list[str], rounds: int) -> None:
    for numbers in PRECISIONS:
        plain = TextEncoder.from_pretrained(precision=numbers)
        made = TextEncoder.from_pretrained(precision=numbers, compile=True)
        first = [seconds(encoder, texts) for encoder in (plain, made)]
        print(f"{numbers}: first run {first[0]:.1f} s, compiled {first[1]:.1f} s")
        ratios = []
        for _ in range(rounds):
            random.shuffle(texts)
            took = {encoder: seconds(encoder, texts) for encoder in random.sample((plain, made), 2)}
            ratios.append(took[plain] / took[made])
        median, least, most = statistics.median(ratios), min(ratios), max(ratios)
        print(f"  then compiled {median:.3f} times the speed ({least:.3f} to {most:.3f})", flush=True)


def seconds(encoder: TextEncoder, texts: list[str]) -> float:
    start = time.perf_counter()
    encoder.encode(texts)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, help="one text a line")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    configure_allocator()
    torch.set_num_threads(2)
    texts = list(dict.fromkeys(options.texts.read_text(encoding="utf-8").splitlines()))[:1000]
    print(json.dumps(hardware_info(2, ("clearhead", "torch"))))
    compiled(texts, options.rounds)
    eight_bits(texts)


if __name__ == "__main__":
    main()
