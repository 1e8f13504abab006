"""Tokens per second of ours and of transformers', greedily and with beams, on a random model of Marian's base size.

python benchmarks/generation.py [--sentences 32] [--steps 32] [--rounds 3]
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
import transformers

from clearhead import GenerationConfig
from clearhead.checkpoints import load_seq2seq
from clearhead.generation.search import Source, search
from clearhead.run.precision import sibling


def models(folder):
    """The same random weights twice: transformers' model and ours. They end with no token, so that steps are alike."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=58101, activation_function="swish",
        scale_embedding=True, max_position_embeddings=512, num_beams=1, forced_eos_token_id=None,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval()
    theirs.final_logits_bias[:, 0] = -1e4
    theirs.save_pretrained(folder)
    return theirs, load_seq2seq(folder)[0]


def main():
    """Times the contestants in turn and prints a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = models(Path(folder))
    low = sibling(ours, torch.bfloat16, torch.device("cpu"))
    ids = torch.randint(5, 58000, (options.sentences, 20))
    sources = [Source(row, (58100,)) for row in ids.tolist()]
    new = {"max_new_tokens": options.steps, "min_new_tokens": options.steps}

    def run(model, beams):
        search(model, sources, GenerationConfig(beam_size=beams, **new))

    def run_theirs(beams):
        theirs.generate(input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=beams, do_sample=False, **new)

    contestants = {
        f"{name}, beam {beams}": call
        for beams in (1, 4)
        for name, call in {
            "transformers float32": lambda beams=beams: run_theirs(beams),
            "clearhead float32": lambda beams=beams: run(ours, beams),
            "clearhead bfloat16": lambda beams=beams: run(low, beams),
        }.items()
    }
    seconds = {name: [] for name in contestants}
    for _ in range(options.rounds + 1):
        for name, call in contestants.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    tokens = options.sentences * options.steps
    speeds = {name: round(tokens / statistics.median(times[1:])) for name, times in seconds.items()}
    for name, speed in speeds.items():
        print(f"{name:32} {speed:6,} tokens/s")
    versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
    print(json.dumps({"tokens_per_second": speeds, "machine": platform.processor(), "versions": versions}))


if __name__ == "__main__":
    main()
