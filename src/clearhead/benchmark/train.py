"""Benchmark of training: updates of a small translation model on the same batches."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

from clearhead.benchmark.runner import Candidate, Worker
from clearhead.equations import masks
from clearhead.equations.positions import concatenated_sinusoids
from clearhead.layers.dropout import use_fast_dropout
from clearhead.models.config import Seq2SeqConfig
from clearhead.models.seq2seq import Seq2Seq

PAD, START, END = 0, 1, 2
D_MODEL, HEADS, LAYERS, FFN, DROP, SMOOTHING = 128, 4, 4, 256, 0.3, 0.1
VOCABULARY, LONGEST = 10_000, 512

Ids = list[int]
Pairs = list[tuple[Ids, Ids]]
"""A batch of (source, target) pairs; targets include the start and end tokens."""
Step = Callable[[Tensor, Tensor], float]
"""Performs one update on padded sources and targets, and returns the loss."""


def batches(sources: Iterable[str], targets: Iterable[str], batch_tokens: int) -> list[Pairs]:
    """Tokenize sentence pairs and group them into batches of similar length, in random order.

    Args:
        sources, targets: parallel sentences, pre-tokenized into words; a joint BPE vocabulary is learned from both.
        batch_tokens: maximum number of padded tokens per side of a batch.
    """
    texts = [list(sources), list(targets)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(itertools.chain(*texts), trainer)
    sides = [[encoded.ids[: LONGEST - 2] for encoded in tokenizer.encode_batch(side)] for side in texts]
    pairs = [([*s, END], [START, *t, END]) for s, t in zip(*sides, strict=True) if s and t]
    pairs.sort(key=lambda pair: (len(pair[0]), len(pair[1])))
    groups: list[Pairs] = [[]]
    for pair in pairs:
        longest = max(len(side) for other in [*groups[-1], pair] for side in other)
        if groups[-1] and longest * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(pair)
    random.Random(0).shuffle(groups)
    return groups


def count_tokens(some: Sequence[Pairs]) -> int:
    """Count source and target tokens without padding and start tokens."""
    return sum(len(source) + len(target) - 1 for batch in some for source, target in batch)


class PlainTransformer(nn.Module):
    """An encoder–decoder around `nn.Transformer`, as tutorials write it."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, D_MODEL, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=D_MODEL**-0.5)
        self.register_buffer("positions", concatenated_sinusoids(LONGEST, D_MODEL), persistent=False)
        self.dropout = nn.Dropout(DROP)
        self.transformer = nn.Transformer(D_MODEL, HEADS, LAYERS, LAYERS, FFN, DROP, batch_first=True)
        self.generator = nn.Linear(D_MODEL, VOCABULARY, bias=False)
        self.generator.weight = self.embedding.weight

    def _embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.embedding(ids) * math.sqrt(D_MODEL) + self.positions[: ids.shape[1]])
        return x

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padding, no_targets = source == PAD, torch.zeros_like(target, dtype=torch.float)
        states = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            tgt_key_padding_mask=no_targets.masked_fill(target == PAD, -math.inf),
            memory_key_padding_mask=padding,
        )
        logits: Tensor = self.generator(states)
        return logits


def baseline_worker(autocast: bool, threads: int) -> Worker:
    """Build a worker that trains `nn.Transformer` with `nn.CrossEntropyLoss`."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = PlainTransformer().train()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=SMOOTHING)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)

    def step(source: Tensor, target: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(source, target[:, :-1])
            loss = criterion(logits.reshape(-1, VOCABULARY), target[:, 1:].reshape(-1))
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss)

    return updates(step)


def clearhead_worker(autocast: bool, threads: int) -> Worker:
    """Build a worker that trains Clearhead's `Seq2Seq`."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        vocab_size=VOCABULARY,
        d_model=D_MODEL,
        ffn_hidden=FFN,
        num_heads=HEADS,
        num_layers=LAYERS,
        positions="concatenated",
        drop_prob=DROP,
        attention_drop_prob=DROP,
        max_len=LONGEST,
        pad_id=PAD,
    )
    model = Seq2Seq(config).train()
    use_fast_dropout(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(source: Tensor, target: Tensor) -> float:
        optimizer.zero_grad()
        following = target[:, 1:]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            states = model.hidden(source, target[:, :-1], masks.padding(source != PAD))
            total = model.output.loss(states, following, smoothing=SMOOTHING, ignore_index=PAD)
            loss = total / int((following != PAD).sum())
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss)

    return updates(step)


def updates(step: Step) -> Worker:
    """Build a worker that performs one update per batch and returns the losses."""
    return lambda some: [step(*(_padded([pair[side] for pair in batch]) for side in (0, 1))) for batch in some]


def candidates(threads: int) -> dict[str, Candidate]:
    """Return `nn.Transformer` and Clearhead, each in float32 and under bfloat16 autocast."""
    return {
        f"{name} {precision}": Candidate(make, (precision == "bfloat16", threads))
        for name, make in (("nn.Transformer", baseline_worker), ("clearhead", clearhead_worker))
        for precision in ("float32", "bfloat16")
    }


def _padded(rows: list[Ids]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
