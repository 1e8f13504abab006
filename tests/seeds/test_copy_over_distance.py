"""T3.9: attention over long distances. A small model learns to copy, trained here with plain PyTorch."""

import pytest
import torch
from torch.nn import functional

from clearhead import Seq2Seq, Seq2SeqConfig
from clearhead.generation.greedy import greedy_search
from clearhead.generation.state import DecodingState

PAD, END, FIRST, WORDS = 0, 1, 2, 16


def model_for(length):
    """Build a small model with the paper's positions, for sequences up to a length."""
    config = Seq2SeqConfig(
        vocab_size=FIRST + WORDS,
        d_model=64,
        ffn_hidden=128,
        num_heads=4,
        num_layers=2,
        max_len=length + 2,
        positions="sinusoidal",
        norm_order="pre",
        drop_prob=0.0,
        start_id=PAD,
        eos_ids=(END,),
    )
    return Seq2Seq(config)


def sequences(batch, length, generator):
    return torch.randint(FIRST, FIRST + WORDS, (batch, length), generator=generator)


def train(model, length, steps, generator, *, batch=16, peak=3e-3, warm_up=50):
    """Train with teacher forcing: predict each token of the source and its end token in one pass."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 1 - (step - warm_up) / (steps - warm_up + 1))
    )
    for _ in range(steps):
        source = sequences(batch, length, generator)
        target = torch.cat([torch.full((batch, 1), PAD), source, torch.full((batch, 1), END)], dim=1)
        logits = model(source, target[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def copied(model, length, generator, batch=50):
    """Return the accuracy of greedy decoding per token, on unseen sequences."""
    source = sequences(batch, length, generator)
    start = torch.full((batch, 1), PAD)
    decoding = DecodingState(model.eval(), source, torch.ones_like(source, dtype=torch.bool), start)
    hypotheses = greedy_search(decoding, [], length + 2, (END,), 1.0)
    num_correct = sum(
        token == expected
        for hypothesis, row in zip(hypotheses, source.tolist(), strict=True)
        for token, expected in zip(hypothesis.ids, [*row, END], strict=False)
    )
    return num_correct / (batch * (length + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("length", "steps"), [(16, 350), (64, 800)])
def test_a_sequence_is_copied(length, steps):
    generator = torch.Generator().manual_seed(3)
    model = model_for(length)
    train(model, length, steps, generator)
    assert copied(model, length, generator) >= 0.95
