"""What training on many GPUs takes: memory and communication of a step, computed, for the paper's base and big models.

Usage: python benchmarks/scaling.py [--json FILE]

Nothing is trained. Parameters are counted on models without memory; what the backward pass keeps of each token is
counted on a small model of the same layers on this machine, in bfloat16 autocast, and scaled to the sizes; the rest is
arithmetic: docs/scaling.md says each formula and what it leaves out.
"""

import argparse

import torch

from clearhead import Seq2Seq, Seq2SeqConfig
from clearhead.benchmark.hardware import hardware_info
from clearhead.io.json import write_json
from clearhead.stacks.decoder import DecoderLayer
from clearhead.stacks.encoder import EncoderLayer

VOCABULARY = 37_000
"""Tokens of source and target together, as the paper's Section 5.1 has them."""
TOKENS = 25_000
"""Source tokens of a batch, and as many target tokens (Section 5.1)."""
LENGTH = 25
"""Tokens of a sentence, for the scores of attention."""
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
    """All parameters, those of the layers alone, and those of the largest layer."""
    with torch.device("meta"):
        model = Seq2Seq(plan(size))
    layers = [
        sum(p.numel() for p in module.parameters())
        for module in model.modules()
        if isinstance(module, EncoderLayer | DecoderLayer)  # what training.fsdp divides one by one
    ]
    return sum(p.numel() for p in model.parameters()), sum(layers), max(layers)


def kept(size, sentences, length=24):
    """Bytes that the backward pass needs of a batch, and copies of the weights in bfloat16."""
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
    return sum(size for size, _ in held.values()), sentences * length


def kept_a_token(size):
    """Bytes that the backward pass needs, for a source token and a target token together; and those that do not grow
    with the batch, which are autocast's copies of the weights."""
    (few, some), (more, many) = kept(size, 4), kept(size, 12)
    each = (more - few) / (many - some)
    return each, few - each * some


def step(size, gpus):
    """One update on so many GPUs, each with the paper's batch: a figure a name."""
    whole, layers, largest = parameters(size)
    around, model = whole - layers, plan(size)
    activations, copies = kept_a_token(size)
    # forward and backward: 6 FLOP a parameter a token, each half of the layers for its own tokens; the output for all;
    # and 12 a key and column for the scores and weighted sums of each attention, three in a pair of layers
    scores = 12 * LENGTH * model.d_model * 3 * model.num_layers
    operations = TOKENS * (6 * (layers + VOCABULARY * model.d_model) + scores)
    share = (gpus - 1) / gpus
    speed = INSIDE if gpus <= 8 else BETWEEN
    # what lies around the layers is gathered once and stays whole until its gradients are sent
    replicated, sharded = 2 * share * 4 * whole, share * 4 * (3 * layers + 2 * around)
    return {
        "parameters": whole,
        "compute s": operations / RATE,
        "of it attention's scores %": 100 * TOKENS * scores / operations,
        "activations GB": activations * TOKENS / 1e9,
        "copies of the weights in bfloat16 GB": copies / 1e9,
        "DDP: weights, gradients, Adam GB": 16 * whole / 1e9,
        "DDP: sent GB": replicated / 1e9,
        "DDP: sending s": replicated / speed,
        "FSDP2: weights, gradients, Adam GB": 16 * whole / gpus / 1e9,
        "FSDP2: whole meanwhile GB": (8 * around + 12 * largest) / 1e9,
        "FSDP2: sent GB": sharded / 1e9,
        "FSDP2: sending s": sharded / speed,
        "activations a token kB": activations / 1e3,
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
        write_json(
            asked.json, {"machine": hardware_info(torch.get_num_threads(), ["clearhead", "torch"]), "steps": found}
        )


if __name__ == "__main__":
    main()
