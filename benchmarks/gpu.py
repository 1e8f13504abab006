"""Check the results of a GPU against the CPU, and measure encoding, generation and training on it.

Usage: python benchmarks/gpu.py [--device cuda] [--quick] [--json FILE]

The models have real sizes and random weights, and the texts are synthetic: nothing is downloaded. Every check compares
the device with the CPU or with the equation; the exit status is 1 if one fails. Every throughput is also given as a
share of the throughput of a large matmul in the same dtype on the same device. Requires torch 2.11 or later and takes
less than eight minutes. `--device cpu --quick` tests this script with small models.
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

DTYPES = ("float32", "bfloat16")


class Checks:
    """Distances that were checked, with their tolerances."""

    def __init__(self):
        self.results = {}

    def add(self, name, distance, bound):
        self.results[name] = {"distance": float(distance), "bound": bound, "passed": bool(distance <= bound)}
        print(f"{'ok  ' if distance <= bound else 'FAIL'}  {name}: {float(distance):.2e} (at most {bound:.0e})")

    def passed(self):
        return all(check["passed"] for check in self.results.values())


def relative_distance(result, expected):
    """Return the distance of two tensors, relative to the second one's norm."""
    result, expected = result.detach().double().cpu(), expected.detach().double().cpu()
    return float((result - expected).norm() / expected.norm().clamp(min=1e-30))


def masks_of_every_kind(device):
    """Return masks of every kind over 48 keys, with their batch size: 3, or 1 for packed texts."""
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
    cpu_masks, device_masks = masks_of_every_kind("cpu"), masks_of_every_kind(device)
    for name, (rows, mask) in cpu_masks.items():
        torch.manual_seed(0)
        q, k, v = (torch.randn(rows, 4, 48, 32, requires_grad=True) for _ in range(3))
        expected, _ = scaled_dot_product(q, k, v, mask)
        expected.square().sum().backward()
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            inputs = [x.detach().to(device, dtype).requires_grad_() for x in (q, k, v)]
            values = scaled_dot_product_attention(*inputs, device_masks[name][1])
            values.float().square().sum().backward()
            distances = [
                relative_distance(values, expected),
                *(relative_distance(a.grad, b.grad) for a, b in zip(inputs, (q, k, v), strict=True)),
            ]
            checks.add(f"attention, {name} mask, {str(dtype)[6:]}, values and gradients", max(distances), bound)
            with torch.inference_mode():
                error = relative_distance(scaled_dot_product_attention(*inputs, device_masks[name][1]), expected)
            checks.add(f"attention, {name} mask, {str(dtype)[6:]}, without gradients", error, bound)


def check_encoder(checks, texts, encoders, device):
    expected = encoders("float32", "cpu").encode(texts, normalize=True)
    results = {dtype: encoders(dtype, device).encode(texts, normalize=True) for dtype in DTYPES}
    checks.add("encoding, float32: largest distance to the CPU's", abs(results["float32"] - expected).max(), 1e-5)
    checks.add("encoding, bfloat16: 1 − cosine", 1 - (results["bfloat16"] * expected).sum(1).min(), 5e-4)
    unbatched = encoders("float32", device).encode(texts[:1], normalize=True)
    checks.add("encoding, float32: a text alone or in a batch", abs(unbatched - results["float32"][:1]).max(), 1e-6)


def check_generation(checks, model, sources, device):
    for beams in (1, 4):
        settings = GenerationConfig(beam_size=beams, min_new_tokens=12, max_new_tokens=12)
        on_cpu, on_device = (
            [best for best, *_ in generate(inference_copy(model, "float32", torch.device(kind)), sources, settings)]
            for kind in ("cpu", device)
        )
        num_different = sum(a.ids != b.ids for a, b in zip(on_cpu, on_device, strict=True))
        checks.add(f"generating, {beams} beams, float32: targets that differ from the CPU's", num_different, 0)
        error = max(abs(a.score - b.score) for a, b in zip(on_cpu, on_device, strict=True))
        checks.add(f"generating, {beams} beams, float32: scores", error, 1e-4)


def check_training(checks, config, batch, device):
    expected = Trainer(config, "cpu", False)(batch)
    for dtype, bound in zip(DTYPES, (1e-5, 1e-2), strict=True):
        loss = Trainer(config, device, dtype == "bfloat16")(batch)
        checks.add(f"training, {dtype}: first loss compared with the CPU", abs(loss - expected) / expected, bound)
    trainer = Trainer(config, device, True)
    first, *_, last = [trainer(batch) for _ in range(20)]
    checks.add("training, bfloat16: loss after 20 updates as a share of the first", last / first, 0.95)


class Trainer:
    """Training step of a translation model on a device, as in `clearhead train`."""

    def __init__(self, config, device, use_bfloat16):
        torch.manual_seed(0)
        self.model = Seq2Seq(config)
        self.model.train().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4, betas=(0.9, 0.98), fused=True)
        self.device, self.use_bfloat16 = device, use_bfloat16

    def __call__(self, batch):
        return float(self.step(*(side.to(self.device) for side in batch)))

    def step(self, source, target):
        self.optimizer.zero_grad()
        following, pad = target[:, 1:], self.model.config.pad_id
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.use_bfloat16):
            states = self.model.hidden(source, target[:, :-1], masks.padding(source != pad))
            loss = self.model.output.loss(states, following, smoothing=0.1, ignore_index=pad) / following.numel()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()


def throughput(work, units, device, rounds=5):
    """Return the median number of units per second, after one warm-up round."""
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
    """Throughputs, each with its share of a large matmul's throughput."""

    def __init__(self, matmul_rates):
        self.matmul_rates, self.rows = matmul_rates, []

    def add(self, work, dtype, tokens, weights):
        share = 2 * weights * tokens / self.matmul_rates[dtype]
        self.rows.append({"work": work, "dtype": dtype, "tokens_per_second": tokens, "share_of_matmul": share})
        print(f"{work}, {dtype}: {tokens:,.0f} tokens/s, {share:.1%} of a large matmul")


def matrices(*stacks):
    """Return the number of weights in the matrices of stacks."""
    return sum(weight.numel() for stack in stacks for weight in stack.parameters() if weight.ndim == 2)


def measure_encoding(table, encoders, sizes, device):
    for count, length in sizes:
        texts = encode.synthetic(encoders("float32", "cpu"), count, length)
        total = sum(encode.token_counts(encoders("float32", "cpu"), texts).values())
        for dtype in DTYPES:
            encoder = encoders(dtype, device)
            tokens_per_second = throughput(lambda encoder=encoder, texts=texts: encoder.encode(texts), total, device)
            table.add(f"encode, texts of {length} tokens", dtype, tokens_per_second, matrices(encoder.model.encoder))


def measure_generation(table, model, groups, steps, device):
    for sources in groups:
        for beams in (1, 4):
            settings = GenerationConfig(beam_size=beams, min_new_tokens=steps, max_new_tokens=steps)
            for dtype in DTYPES:
                runner = inference_copy(model, dtype, torch.device(device))
                work = lambda runner=runner, sources=sources, settings=settings: generate(runner, sources, settings)  # noqa: E731
                tokens_per_second = throughput(work, len(sources) * steps, device, rounds=3)
                weights = matrices(model.decoder) + model.config.vocab_size * model.config.d_model
                table.add(
                    f"generate, {len(sources)} sentences, {beams} beams", dtype, tokens_per_second, beams * weights
                )


def measure_training(table, config, batch, device):
    for dtype in DTYPES:
        trainer = Trainer(config, device, dtype == "bfloat16")
        inputs = [side.to(device) for side in batch]
        tokens = batch[0].numel() + batch[1][:, 1:].numel()
        tokens_per_second = throughput(lambda trainer=trainer, inputs=inputs: trainer.step(*inputs), tokens, device)
        # backward costs twice the forward pass; a token passes through one of the halves
        halves = matrices(trainer.model.encoder, trainer.model.decoder)
        weights = (halves + config.vocab_size * config.d_model) / 2
        table.add("train, source and target tokens", dtype, tokens_per_second, 3 * weights)


def text_encoders(quick):
    """Return a function that builds text encoders of MiniLM's size with the same weights, for a dtype and device."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(2000)]
    tokenizer = train_bpe(
        (" ".join(generator.choices(words, k=12)) for _ in range(4000)), vocab_size=4000, architecture="encoder"
    )
    torch.manual_seed(0)
    d_model, layers = (64, 2) if quick else (384, 6)
    model = EncoderModel(
        EncoderConfig(
            vocab_size=tokenizer.backend.get_vocab_size(), d_model=d_model, ffn_hidden=4 * d_model,
            num_heads=d_model // 32, num_layers=layers, max_len=512, positions="learned", num_token_types=2,
            embedding_norm=True, activation="gelu", eps=1e-12, initializer_range=0.02,
        )
    ).eval()  # fmt: skip
    cache = {}

    def encoder(dtype, device):
        if (dtype, device) not in cache:
            settings = SentenceSettings(max_length=512)
            cache[dtype, device] = TextEncoder(model, tokenizer, settings, BERT, precision=dtype, device=device)
        return cache[dtype, device]

    return encoder


def translation_config(quick, drop_prob=0.1):
    """Return the config of a translation model of the base size."""
    d_model, layers, vocabulary = (64, 2, 1000) if quick else (512, 6, 58101)
    return Seq2SeqConfig(
        vocab_size=vocabulary, d_model=d_model, ffn_hidden=4 * d_model, num_heads=d_model // 32 if quick else 8,
        num_layers=layers, positions="concatenated", drop_prob=drop_prob, max_len=512, pad_id=0,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small models, to test this script")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device, quick, start = args.device, args.quick, time.perf_counter()
    encoders, config = text_encoders(quick), translation_config(quick)
    torch.manual_seed(0)
    translator = Seq2Seq(config).eval()
    generator = random.Random(0)

    def sentences(number, length=20):
        return [
            EncodedSource(
                [*generator.choices(range(3, config.vocab_size), k=length), config.eos_ids[0]], (config.start_id,)
            )
            for _ in range(number)
        ]

    ids = torch.randint(3, config.vocab_size, (4 if quick else 256, 32))
    checks, table = Checks(), Table({dtype: matmul_rate(dtype, device=device) for dtype in DTYPES})
    for dtype, matmul in table.matmul_rates.items():
        print(f"large matmuls, {dtype}: {matmul / 1e12:.2f} TFLOP/s")
    check_attention(checks, device)
    check_encoder(checks, encode.synthetic(encoders("float32", "cpu"), 60, 40, seed=1), encoders, device)
    check_generation(checks, translator, sentences(8), device)
    check_training(checks, translation_config(quick, 0.0), (ids[:8], ids[:8]), device)
    print(f"checks completed after {time.perf_counter() - start:.0f} s")
    measure_encoding(table, encoders, [(200, 16), (40, 128)] if quick else [(50_000, 16), (8_000, 256)], device)
    groups = [sentences(4)] if quick else [sentences(32), sentences(256)]
    measure_generation(table, translator, groups, 4 if quick else 32, device)
    measure_training(table, config, (ids, ids), device)
    seconds = time.perf_counter() - start
    print(f"measurements completed after {seconds:.0f} s")
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
    if args.json:
        about |= {"checks": checks.results, "matmul_rates": table.matmul_rates, "rates": table.rows}
        write_json(args.json, about)
    sys.exit(0 if checks.passed() else 1)


if __name__ == "__main__":
    main()
