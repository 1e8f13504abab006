"""One call for a GPU: are the results right there, and how fast do models encode, generate and train?

Usage: python benchmarks/gpu.py [--device cuda] [--quick] [--json FILE]

Random weights of real sizes and made-up texts: nothing is downloaded. Every check compares the device with the CPU, or
with the written-out equation; the exit status is 1 where one fails. Beside each rate stands the share of the rate of a
large matrix product in the same numbers on the same device. Needs torch 2.11 or later; is made to take less than eight
minutes. `--device cpu --quick` tries the file itself, with small models.
"""

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch

from clearhead.benchmark import encode
from clearhead.benchmark.hardware import hardware_info, matmul_rate, synchronize
from clearhead.checkpoints.families.bert import BERT
from clearhead.checkpoints.sentence_transformers import SentenceSettings
from clearhead.equations import masks
from clearhead.equations.attention import scaled_dot_product
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import generate
from clearhead.generation.strategy import EncodedSource
from clearhead.io.json import write_json
from clearhead.kernels.attention import scaled_dot_product_attention
from clearhead.models.config import EncoderConfig, Seq2SeqConfig
from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.inference_copy import inference_copy
from clearhead.tokenizers.bpe import train_bpe

NUMBERS = ("float32", "bfloat16")


class Checks:
    """What was compared, how far apart it was, and how far apart it may be."""

    def __init__(self):
        self.found = {}

    def near(self, name, distance, bound):
        self.found[name] = {"distance": float(distance), "bound": bound, "holds": bool(distance <= bound)}
        print(f"{'ok  ' if distance <= bound else 'FAIL'}  {name}: {float(distance):.2e} (at most {bound:.0e})")

    def hold(self):
        return all(one["holds"] for one in self.found.values())


def apart(found, wanted):
    """The distance of two tensors, as a share of the second one's norm."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))


# right?


def patterns(device):
    """Masks of every kind over 48 keys, in a batch of 3, or of one row for packed texts."""
    keep = torch.arange(48, device=device) < torch.tensor([[48], [31], [0]], device=device)
    return {
        "no": (3, None),
        "padding": (3, masks.padding(keep)),
        "causal": (3, masks.causal(48)),
        "causal and padding": (3, masks.causal(48) & masks.padding(keep)),
        "window": (3, masks.window(48, 5)),
        "packed": (1, masks.packed([17, 1, 30])),
        "packed, window": (1, masks.packed([17, 1, 30]) & masks.window(48, 4)),
    }


def check_attention(checks, device):
    here, there = patterns("cpu"), patterns(device)
    for name, (rows, mask) in here.items():
        torch.manual_seed(0)
        q, k, v = (torch.randn(rows, 4, 48, 32, requires_grad=True) for _ in range(3))
        wanted, _ = scaled_dot_product(q, k, v, mask)
        wanted.square().sum().backward()
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            given = [x.detach().to(device, dtype).requires_grad_() for x in (q, k, v)]
            values = scaled_dot_product_attention(*given, there[name][1])
            values.float().square().sum().backward()
            gaps = [apart(values, wanted), *(apart(a.grad, b.grad) for a, b in zip(given, (q, k, v), strict=True))]
            checks.near(f"attention, {name} mask, {str(dtype)[6:]}, values and gradients", max(gaps), bound)
            with torch.inference_mode():
                gap = apart(scaled_dot_product_attention(*given, there[name][1]), wanted)
            checks.near(f"attention, {name} mask, {str(dtype)[6:]}, without gradients", gap, bound)


def check_encoder(checks, texts, encoders, device):
    exact = encoders("float32", "cpu").encode(texts, normalize=True)
    found = {numbers: encoders(numbers, device).encode(texts, normalize=True) for numbers in NUMBERS}
    checks.near("encoding, float32: largest distance to the CPU's", abs(found["float32"] - exact).max(), 1e-5)
    checks.near("encoding, bfloat16: 1 − cosine", 1 - (found["bfloat16"] * exact).sum(1).min(), 5e-4)
    alone = encoders("float32", device).encode(texts[:1], normalize=True)
    checks.near("encoding, float32: a text alone or among others", abs(alone - found["float32"][:1]).max(), 1e-6)


def check_generation(checks, model, sources, device):
    for beams in (1, 4):
        settings = GenerationConfig(beam_size=beams, min_new_tokens=12, max_new_tokens=12)
        here, there = (
            [best for best, *_ in generate(inference_copy(model, "float32", torch.device(kind)), sources, settings)]
            for kind in ("cpu", device)
        )
        other = sum(a.ids != b.ids for a, b in zip(here, there, strict=True))
        checks.near(f"generating, {beams} beams, float32: targets that differ from the CPU's", other, 0)
        gap = max(abs(a.score - b.score) for a, b in zip(here, there, strict=True))
        checks.near(f"generating, {beams} beams, float32: scores", gap, 1e-4)


def check_training(checks, config, batch, device):
    exact = Learner(config, "cpu", False)(batch)
    for numbers, bound in zip(NUMBERS, (1e-5, 1e-2), strict=True):
        loss = Learner(config, device, numbers == "bfloat16")(batch)
        checks.near(f"training, {numbers}: first loss beside the CPU's", abs(loss - exact) / exact, bound)
    learner = Learner(config, device, True)
    first, *_, last = [learner(batch) for _ in range(20)]
    checks.near("training, bfloat16: loss after 20 updates as a share of the first", last / first, 0.95)


# fast?


class Learner:
    """Updates of a translation model on some device, as `clearhead train` makes them."""

    def __init__(self, config, device, low):
        torch.manual_seed(0)
        self.model = Seq2Seq(config)
        self.model.train().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4, betas=(0.9, 0.98), fused=True)
        self.device, self.low = device, low

    def __call__(self, batch):
        return float(self.step(*(side.to(self.device) for side in batch)))

    def step(self, source, target):
        self.optimizer.zero_grad()
        following, pad = target[:, 1:], self.model.config.pad_id
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.low):
            states = self.model.hidden(source, target[:, :-1], masks.padding(source != pad))
            loss = self.model.output.loss(states, following, smoothing=0.1, ignore_index=pad) / following.numel()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()


def rate(work, units, device, rounds=5):
    """Units a second: the median of some rounds, after one that warms up."""
    work()
    seconds = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return units / statistics.median(seconds)


class Table:
    """Rates, each with its share of the rate of a large product."""

    def __init__(self, products):
        self.products, self.rows = products, []

    def add(self, work, numbers, tokens, weights):
        share = 2 * weights * tokens / self.products[numbers]
        self.rows.append({"work": work, "numbers": numbers, "tokens_per_second": tokens, "share_of_product": share})
        print(f"{work}, {numbers}: {tokens:,.0f} tokens/s, {share:.1%} of a large product")


def matrices(*stacks):
    """How many weights stand in the matrices of some stacks' layers."""
    return sum(weight.numel() for stack in stacks for weight in stack.parameters() if weight.ndim == 2)


def measure_encoding(table, encoders, sizes, device):
    for count, length in sizes:
        texts = encode.synthetic(encoders("float32", "cpu"), count, length)
        total = sum(encode.token_counts(encoders("float32", "cpu"), texts).values())
        for numbers in NUMBERS:
            encoder = encoders(numbers, device)
            speed = rate(lambda encoder=encoder, texts=texts: encoder.encode(texts), total, device)
            table.add(f"encode, texts of {length} tokens", numbers, speed, matrices(encoder.model.encoder))


def measure_generation(table, model, groups, steps, device):
    for sources in groups:
        for beams in (1, 4):
            settings = GenerationConfig(beam_size=beams, min_new_tokens=steps, max_new_tokens=steps)
            for numbers in NUMBERS:
                runner = inference_copy(model, numbers, torch.device(device))
                work = lambda runner=runner, sources=sources, how=settings: generate(runner, sources, how)  # noqa: E731
                speed = rate(work, len(sources) * steps, device, rounds=3)
                weights = matrices(model.decoder) + model.config.vocab_size * model.config.d_model
                table.add(f"generate, {len(sources)} sentences, {beams} beams", numbers, speed, beams * weights)


def measure_training(table, config, batch, device):
    for numbers in NUMBERS:
        learner = Learner(config, device, numbers == "bfloat16")
        there = [side.to(device) for side in batch]
        tokens = batch[0].numel() + batch[1][:, 1:].numel()
        speed = rate(lambda learner=learner, there=there: learner.step(*there), tokens, device)
        # forward, and twice as much backward; a token passes through one of the halves
        halves = matrices(learner.model.encoder, learner.model.decoder)
        weights = (halves + config.vocab_size * config.d_model) / 2
        table.add("train, source and target tokens", numbers, speed, 3 * weights)


def text_encoders(quick):
    """A maker of encoders of MiniLM's size, for some numbers on some device, with the same weights."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(2000)]
    tokenizer = train_bpe(
        (" ".join(chance.choices(words, k=12)) for _ in range(4000)), vocab_size=4000, architecture="encoder"
    )
    torch.manual_seed(0)
    width, layers = (64, 2) if quick else (384, 6)
    model = EncoderModel(
        EncoderConfig(
            vocab_size=tokenizer.backend.get_vocab_size(), d_model=width, ffn_hidden=4 * width, num_heads=width // 32,
            num_layers=layers, max_len=512, positions="learned", num_token_types=2, embedding_norm=True,
            activation="gelu", eps=1e-12, initializer_range=0.02,
        )
    ).eval()  # fmt: skip
    made = {}

    def encoder(numbers, device):
        if (numbers, device) not in made:
            settings = SentenceSettings(max_length=512)
            made[numbers, device] = TextEncoder(model, tokenizer, settings, BERT, precision=numbers, device=device)
        return made[numbers, device]

    return encoder


def translation_config(quick, drop_prob=0.1):
    """A translation model's plan, of the base size."""
    width, layers, vocabulary = (64, 2, 1000) if quick else (512, 6, 58101)
    return Seq2SeqConfig(
        vocab_size=vocabulary, d_model=width, ffn_hidden=4 * width, num_heads=width // 32 if quick else 8,
        num_layers=layers, positions="concatenated", drop_prob=drop_prob, max_len=512, pad_id=0,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small models: to try this file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device, quick, start = options.device, options.quick, time.perf_counter()
    encoders, config = text_encoders(quick), translation_config(quick)
    torch.manual_seed(0)
    translator = Seq2Seq(config).eval()
    chance = random.Random(0)

    def sentences(number, length=20):
        return [
            EncodedSource(
                [*chance.choices(range(3, config.vocab_size), k=length), config.eos_ids[0]], (config.start_id,)
            )
            for _ in range(number)
        ]

    ids = torch.randint(3, config.vocab_size, (4 if quick else 256, 32))
    checks, table = Checks(), Table({numbers: matmul_rate(numbers, device=device) for numbers in NUMBERS})
    for numbers, found in table.products.items():
        print(f"large products, {numbers}: {found / 1e12:.2f} TFLOP/s")
    check_attention(checks, device)
    check_encoder(checks, encode.synthetic(encoders("float32", "cpu"), 60, 40, seed=1), encoders, device)
    check_generation(checks, translator, sentences(8), device)
    check_training(checks, translation_config(quick, 0.0), (ids[:8], ids[:8]), device)
    print(f"checked after {time.perf_counter() - start:.0f} s")
    measure_encoding(table, encoders, [(200, 16), (40, 128)] if quick else [(50_000, 16), (8_000, 256)], device)
    groups = [sentences(4)] if quick else [sentences(32), sentences(256)]
    measure_generation(table, translator, groups, 4 if quick else 32, device)
    measure_training(table, config, (ids, ids), device)
    seconds = time.perf_counter() - start
    print(f"measured after {seconds:.0f} s")
    about = {
        "device": device,
        "seconds": seconds,
        "machine": hardware_info(torch.get_num_threads(), ("clearhead", "torch")),
    }
    if torch.device(device).type == "cuda":
        about |= {
            "card": torch.cuda.get_device_name(device),
            "peak_mib": torch.cuda.max_memory_allocated(device) / 2**20,
        }
    print(json.dumps(about))
    if options.json:
        about |= {"checks": checks.found, "products": table.products, "rates": table.rows}
        write_json(options.json, about)
    sys.exit(0 if checks.hold() else 1)


if __name__ == "__main__":
    main()
