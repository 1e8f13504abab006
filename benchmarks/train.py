"""Measure throughput and peak memory of training a small translation model in Clearhead, torch.nn and transformers.

Usage: python benchmarks/train.py SOURCE TARGET [--updates 8] [--threads 2] [--rounds 5] [--json FILE] [--plot FILE]

SOURCE and TARGET have one sentence per line, split into words. The model has 4 + 4 layers, d_model 128, feed-forward
256, 4 heads, 10,000 joint BPE tokens, shared embeddings, dropout 0.3, label smoothing 0.1 and Adam. Each library runs
in its own process. Source and target tokens are counted without padding. transformers is optional.
"""

import argparse
import importlib.util
import json
from pathlib import Path

import torch

from clearhead.benchmark import report, train
from clearhead.benchmark.hardware import hardware_info, matmul_rate, without_slow_bfloat16
from clearhead.benchmark.runner import Candidate, run_benchmark


def marian(use_bfloat16, threads):
    """Train transformers' MarianMTModel with a label-smoothed loss."""
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
        with torch.autocast("cpu", torch.bfloat16, enabled=use_bfloat16):
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
    parser.add_argument("--updates", type=int, default=8, help="updates of each library per round")
    parser.add_argument("--tokens", type=int, default=4096, help="maximum number of padded tokens per side and batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    sides = [path.read_text(encoding="utf-8").splitlines() for path in (args.source, args.target)]
    batches = train.batches(*sides, args.tokens)[: args.updates]
    candidates = train.candidates(args.threads)
    if importlib.util.find_spec("transformers"):
        for dtype in ("float32", "bfloat16"):
            candidates[f"transformers Marian {dtype}"] = Candidate(marian, (dtype == "bfloat16", args.threads))
    candidates = without_slow_bfloat16(candidates)
    results = run_benchmark(candidates, batches, train.count_tokens, rounds=args.rounds, check=batches, on_round=print)
    losses = {name: losses[-1] for name, losses in results.outputs.items()}
    notes = {
        m.name: f"{m.peak_mib - m.loaded_mib:,.0f} MiB for training, loss {losses[m.name]:.2f}"
        for m in results.measurements
    }
    for line in report.table(results.measurements, "tokens/s", notes):
        print(line)
    about = {
        "updates": len(batches),
        "tokens": train.count_tokens(batches),
        "losses": losses,
        "matmul_rates": {dtype: matmul_rate(dtype) for dtype in ("float32", "bfloat16")},
        "machine": hardware_info(args.threads, ("clearhead", "torch", "transformers")),
    }
    print(json.dumps(about))
    if args.json:
        report.write_report(args.json, results.measurements, about)
    if args.plot:
        report.plot(args.plot, results.measurements, "tokens/s", "Training Transformer-Tiny")


if __name__ == "__main__":
    main()
