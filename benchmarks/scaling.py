"""What training on many GPUs takes: memory and communication of a step, computed, for the paper's base and big models.

Usage: python benchmarks/scaling.py [--json FILE]

Nothing is trained. Parameters are counted on models without memory; what the backward pass keeps of each token is
counted on a small model of the same layers on this machine, in bfloat16 autocast, and scaled to the sizes; the rest is
arithmetic: docs/scaling.md says each formula and what it leaves out.
"""

import argparse

import torch

from clearhead import Seq2Seq, Seq2SeqConfig
from clearhead.bench.machine import machine
from clearhead.checkpoints.directory import write_json

VOCABULARY = 37_000
"""Tokens of source and target together, as the paper's Section 5.1 has them."""
TOKENS = 25_000
"""Source tokens of a batch, and as many target tokens (Section 5.1)."""
SIZES = {
    "base": {"d_model": 512, "ffn_hidden": 2048, "num_heads": 8, "num_layers": 6},
    "big": {"d_model": 1024, "ffn_hidden": 4096, "num_heads": 16, "num_layers": 6},
}
GPUS = (8, 64)

RATE = 0.4 * 989e12
"""FLOP a second of one GPU: two fifths of an H100's dense bfloat16 peak."""
INSIDE, BETWEEN = 450e9, 50e9
"""Bytes a second that a GPU sends: by NVLink inside a machine of eight, by InfiniBand NDR (400 Gbit/s) between them."""


def plan(size):
    return Seq2SeqConfig(vocab_size=VOCABULARY, max_len=512, **SIZES[size])


def parameters(size):
    """All parameters, and those of the layers alone."""
    with torch.device("meta"):
        model = Seq2Seq(plan(size))
    layers = [*model.encoder.parameters(), *model.decoder.parameters()]
    return sum(p.numel() for p in model.parameters()), sum(p.numel() for p in layers)


def kept_a_token(size, sentences=8, length=24):
    """Bytes that the backward pass needs, for a source token and a target token together."""
    torch.manual_seed(0)
    model = Seq2Seq(plan(size)).train()
    ids = torch.randint(3, VOCABULARY, (sentences, length))
    held, own = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        place = tensor.untyped_storage()
        if place.data_ptr() not in own:
            held[place.data_ptr()] = place.nbytes(), tensor  # the tensor too, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), torch.autocast("cpu", torch.bfloat16):
        loss = model.output.loss(model.hidden(ids, ids), ids)
    del loss
    weights = sum(p.numel() for p in model.parameters()) * 2  # autocast's copies in bfloat16, which do not grow
    return max(0, sum(size for size, _ in held.values()) - weights) / (sentences * length)


def step(size, gpus):
    """One update on so many GPUs, each with the paper's batch: a figure a name."""
    whole, layers = parameters(size)
    activations = kept_a_token(size) * TOKENS
    # forward and backward: 6 FLOP a parameter a token, each half of the layers for its own tokens; the output for all
    operations = 6 * TOKENS * (layers + VOCABULARY * plan(size).d_model)
    share = (gpus - 1) / gpus
    speed = INSIDE if gpus <= 8 else BETWEEN
    replicated, sharded = 2 * share * 4 * whole, share * 3 * 4 * whole
    return {
        "parameters": whole,
        "compute s": operations / RATE,
        "activations GB": activations / 1e9,
        "DDP: weights, gradients, Adam GB": 16 * whole / 1e9,
        "DDP: sent GB": replicated / 1e9,
        "DDP: sending s": replicated / speed,
        "FSDP2: weights, gradients, Adam GB": 16 * whole / gpus / 1e9,
        "FSDP2: sent GB": sharded / 1e9,
        "FSDP2: sending s": sharded / speed,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    asked = parser.parse_args()
    found = {f"{size}, {gpus} GPUs": step(size, gpus) for size in SIZES for gpus in GPUS}
    print("| a step, each GPU |", " | ".join(found), "|")
    print("|---|" + "---|" * len(found))
    for name in next(iter(found.values())):
        print(
            f"| {name} |",
            " | ".join(f"{one[name]:,.3g}" if one[name] < 1e6 else f"{one[name]:,}" for one in found.values()),
            "|",
        )
    if asked.json:
        write_json(asked.json, {"machine": machine(), "steps": found})


if __name__ == "__main__":
    main()
