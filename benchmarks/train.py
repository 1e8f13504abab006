"""Tokens per second and peak memory of training a small translation model: a plain `nn.Transformer` loop and ours.

Usage: python benchmarks/train.py --source train.de --target train.en [--threads 2] [--rounds 5] [--json FILE]

SOURCE and TARGET hold a sentence a line, split into words. The model is that of `docs/results.md`: 4 + 4 layers,
d_model 128, 10,000 joint BPE tokens, all embeddings shared, dropout 0.3, label smoothing 0.1, Adam. All contestants
see the same batches in the same rounds; source and target tokens are counted without padding.
"""

import argparse
import itertools
import json
import math
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

import clearhead
from clearhead import Seq2Seq, Seq2SeqConfig, masks
from clearhead.equations.positions import concatenated_sinusoids
from clearhead.layers.dropout import cheap_dropout

PAD, START, END = 0, 1, 2
SIZE = {"d_model": 128, "heads": 4, "layers": 4, "ffn": 256, "drop": 0.3}


class Plain(nn.Module):
    """An encoder-decoder around `nn.Transformer`, as it is usually written."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        width = SIZE["d_model"]
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.register_buffer("places", concatenated_sinusoids(512, width), persistent=False)
        self.dropout = nn.Dropout(SIZE["drop"])
        layers = SIZE["layers"]
        self.transformer = nn.Transformer(
            width, SIZE["heads"], layers, layers, SIZE["ffn"], SIZE["drop"], batch_first=True
        )
        self.generator = nn.Linear(width, vocabulary, bias=False)
        self.generator.weight = self.embedding.weight

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * math.sqrt(SIZE["d_model"]) + self.places[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padding, target_padding = (
            source == PAD,
            torch.zeros_like(target, dtype=torch.float).masked_fill(target == PAD, -math.inf),
        )
        states = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=causal, tgt_is_causal=True, src_key_padding_mask=padding,
            tgt_key_padding_mask=target_padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return self.generator(states)


def plain(vocabulary: int, low: bool) -> Callable[[Tensor, Tensor], float]:
    """A step of the plain loop."""
    model = Plain(vocabulary).train()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)

    def step(source: Tensor, target: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            logits = model(source, target[:, :-1])
            loss = criterion(logits.reshape(-1, vocabulary), target[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def ours(vocabulary: int, low: bool) -> Callable[[Tensor, Tensor], float]:
    """A step of ours."""
    model = Seq2Seq(
        Seq2SeqConfig(
            vocab_size=vocabulary, d_model=SIZE["d_model"], ffn_hidden=SIZE["ffn"], num_heads=SIZE["heads"],
            num_layers=SIZE["layers"], positions="concatenated", drop_prob=SIZE["drop"],
            attention_drop_prob=SIZE["drop"], max_len=512, pad_id=PAD,
        )
    ).train()  # fmt: skip
    cheap_dropout(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(source: Tensor, target: Tensor) -> float:
        optimizer.zero_grad()
        following = target[:, 1:]
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            states = model.hidden(source, target[:, :-1], masks.padding(source != PAD))
            loss = model.output.loss(states, following, smoothing=0.1, ignore_index=PAD) / int((following != PAD).sum())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


CONTESTANTS: dict[str, Callable[[int], Callable[[Tensor, Tensor], float]]] = {
    "nn.Transformer, float32": lambda size: plain(size, False),
    "nn.Transformer, bfloat16": lambda size: plain(size, True),
    "clearhead, float32": lambda size: ours(size, False),
    "clearhead, bfloat16": lambda size: ours(size, True),
}


def batches(options: argparse.Namespace) -> tuple[list[tuple[Tensor, Tensor]], int]:
    """Batches of sentences of similar lengths, at most `options.tokens` padded tokens a side, and the vocabulary."""
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (options.source, options.target)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        itertools.chain(*texts), trainers.BpeTrainer(vocab_size=10000, special_tokens=special, show_progress=False)
    )
    sides = [[encoded.ids for encoded in tokenizer.encode_batch(side)] for side in texts]
    pairs = [([*s, END], [START, *t, END]) for s, t in zip(*sides, strict=True) if s and t]
    chance = random.Random(0)
    chance.shuffle(pairs)
    pairs.sort(key=lambda pair: (len(pair[0]), len(pair[1])))
    groups: list[list[tuple[list[int], list[int]]]] = [[]]
    for pair in pairs:
        longest = max(len(side) for other in [*groups[-1], pair] for side in other)
        if longest * (len(groups[-1]) + 1) > options.tokens and groups[-1]:
            groups.append([])
        groups[-1].append(pair)
    chance.shuffle(groups)
    return [
        tuple(padded([pair[side] for pair in group]) for side in (0, 1)) for group in groups
    ], tokenizer.get_vocab_size()


def padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def speed(step: Callable[[Tensor, Tensor], float], given: list[tuple[Tensor, Tensor]]) -> float:
    """Tokens per second, source and target, without padding (a target is counted without its start)."""
    tokens = sum(int((source != PAD).sum()) + int((target[:, 1:] != PAD).sum()) for source, target in given)
    start = time.perf_counter()
    for source, target in given:
        step(source, target)
    return tokens / (time.perf_counter() - start)


def compare(
    names: list[str], given: list[tuple[Tensor, Tensor]], vocabulary: int, options: argparse.Namespace
) -> dict[str, list[int]]:
    """Tokens per second of each contestant in each round, one after another on the same batches."""
    steps = {}
    for name in names:
        torch.manual_seed(0)
        steps[name] = CONTESTANTS[name](vocabulary)
        speed(steps[name], given[:2])
    endless = itertools.cycle(given)
    speeds: dict[str, list[int]] = {name: [] for name in names}
    for _ in range(options.rounds):
        some = list(itertools.islice(endless, options.steps))
        for name in names:
            speeds[name].append(round(speed(steps[name], some)))
    return speeds


def peak_memory() -> float:
    """The most memory that this program ever held, in MiB. (`ru_maxrss` would count the process that started it.)"""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096, help="padded tokens of a side in a batch, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="updates of each contestant in a round")
    parser.add_argument("--only", choices=CONTESTANTS, help="one contestant alone, for its peak memory")
    parser.add_argument("--batches", type=Path, help="with --only: batches that are made already")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    given, vocabulary = torch.load(options.batches) if options.batches else batches(options)
    names = [options.only] if options.only else list(CONTESTANTS)
    start = peak_memory()
    speeds = compare(names, given, vocabulary, options)
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    if options.only:
        print(json.dumps({"start": start, "peak": peak_memory()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save((given, vocabulary), Path(folder, "batches.pt"))
        again = [sys.executable, __file__, *sys.argv[1:], "--rounds", "1", "--batches", str(Path(folder, "batches.pt"))]
        alone = {}
        for name in names:
            done = subprocess.run([*again, "--only", name], check=True, capture_output=True, text=True)
            alone[name] = json.loads(done.stdout)
    base = medians[names[0]]
    print(f"{'':26} {'tokens/s':>9} {'of the first':>13} {'peak MiB':>9} {'of them training':>17}")
    for name in names:
        peak, start = alone[name]["peak"], alone[name]["start"]
        print(f"{name:26} {medians[name]:9,.0f} {medians[name] / base:12.2f}x {peak:9,.0f} {peak - start:17,.0f}")
    result = {
        "tokens_per_second": speeds,
        "alone": alone,
        "machine": {"processor": platform.processor(), "threads": options.threads, "system": platform.platform()},
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "clearhead": clearhead.__version__,
        },
    }
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
