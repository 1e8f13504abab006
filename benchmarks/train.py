"""Tokens per second and peak memory of training a small translation model, here, in torch.nn and in transformers.

Usage: python benchmarks/train.py SOURCE TARGET [--updates 8] [--threads 2] [--rounds 5] [--json FILE] [--plot FILE]

SOURCE and TARGET hold a sentence a line, split into words. 4 + 4 layers, d_model 128, feed-forward 256, 4 heads, 10,000
joint BPE tokens, all embeddings shared, dropout 0.3, label smoothing 0.1, Adam. Each contestant has a process of its
own; source and target tokens are counted without padding. transformers' Marian is left out where it is not installed.
"""

import argparse
import importlib.util
import json
from pathlib import Path

import torch

from clearhead.benchmark import report, train
from clearhead.benchmark.hardware import hardware_info
from clearhead.benchmark.runner import Candidate, run_benchmark


def marian(low, threads):
    """transformers' MarianMTModel, with its own loss, smoothed."""
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=train.VOCABULARY, d_model=train.D_MODEL, max_position_embeddings=train.LONGEST,
        encoder_layers=train.LAYERS, decoder_layers=train.LAYERS, encoder_ffn_dim=train.FFN, decoder_ffn_dim=train.FFN,
        encoder_attention_heads=train.HEADS, decoder_attention_heads=train.HEADS, dropout=train.DROP,
        attention_dropout=train.DROP, activation_dropout=train.DROP, activation_function="relu", scale_embedding=True,
        pad_token_id=train.PAD, eos_token_id=train.END, decoder_start_token_id=train.START, forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).train()
    criterion = torch.nn.CrossEntropyLoss(ignore_index=train.PAD, label_smoothing=train.SMOOTHING)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)

    def step(source, target):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            keep = (source != train.PAD).long()
            logits = model(source, attention_mask=keep, decoder_input_ids=target[:, :-1], use_cache=False).logits
            loss = criterion(logits.reshape(-1, train.VOCABULARY), target[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return float(loss)

    return train.updates(step)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--updates", type=int, default=8, help="updates of each contestant in a round")
    parser.add_argument("--tokens", type=int, default=4096, help="padded tokens of a side in a batch, at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    sides = [path.read_text(encoding="utf-8").splitlines() for path in (options.source, options.target)]
    some = train.batches(*sides, options.tokens)[: options.updates]
    contestants = train.candidates(options.threads)
    if importlib.util.find_spec("transformers"):
        for numbers in ("float32", "bfloat16"):
            contestants[f"transformers Marian {numbers}"] = Candidate(marian, (numbers == "bfloat16", options.threads))
    found = run_benchmark(contestants, some, train.count_tokens, rounds=options.rounds, check=some, on_round=print)
    losses = {name: losses[-1] for name, losses in found.outputs.items()}
    notes = {
        figure.name: f"{figure.peak_mib - figure.loaded_mib:,.0f} MiB by training, loss {losses[figure.name]:.2f}"
        for figure in found.measurements
    }
    for line in report.table(found.measurements, "tokens/s", notes):
        print(line)
    here = hardware_info(options.threads, ("clearhead", "torch", "transformers"))
    about = {"updates": len(some), "tokens": train.count_tokens(some), "losses": losses, "machine": here}
    print(json.dumps(about))
    if options.json:
        report.write_report(options.json, found.measurements, about)
    if options.plot:
        report.plot(options.plot, found.measurements, "tokens/s", "Training Transformer-Tiny")


if __name__ == "__main__":
    main()
