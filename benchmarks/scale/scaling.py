"""Compute the memory and communication of a training step on many GPUs, for the paper's base and big models.

Usage: python benchmarks/scale/scaling.py [--json FILE]

Nothing is trained. Parameters are counted on the meta device. Activations are measured on this machine with a small
batch in bfloat16 autocast, and scaled to the batch size. The rest is arithmetic; docs/scaling.md lists the formulas and
their limits.
"""

import argparse

import torch

from clearhead import Seq2Seq, Seq2SeqConfig
from clearhead.benchmark.hardware import hardware_info
from clearhead.io.json import write_json
from clearhead.stacks.decoder import DecoderLayer
from clearhead.stacks.encoder import EncoderLayer

VOCABULARY = 37_000
"""Joint vocabulary of source and target (the paper's Section 5.1)."""
TOKENS = 25_000
"""Source tokens of a batch, and the same number of target tokens (Section 5.1)."""
LENGTH = 25
"""Tokens of a sentence, for the cost of the attention scores."""
SIZES = {
    "base": {"d_model": 512, "ffn_hidden": 2048, "num_heads": 8, "num_layers": 6},
    "big": {"d_model": 1024, "ffn_hidden": 4096, "num_heads": 16, "num_layers": 6},
}
GPUS = (8, 64)

RATE = 0.4 * 989e12
"""FLOP per second of one GPU: 40 % of an H100's dense bfloat16 peak."""
INTRA_NODE, INTER_NODE = 450e9, 50e9
"""Bytes per second that a GPU sends: NVLink within a machine of eight, InfiniBand NDR (400 Gbit/s) between machines."""


def config(size):
    return Seq2SeqConfig(vocab_size=VOCABULARY, max_len=512, **SIZES[size])


def parameters(size):
    """Return the number of parameters of the model, of all layers, and of the largest layer."""
    with torch.device("meta"):
        model = Seq2Seq(config(size))
    layers = [
        sum(p.numel() for p in module.parameters())
        for module in model.modules()
        if isinstance(module, EncoderLayer | DecoderLayer)  # training.fsdp shards each of these separately
    ]
    return sum(p.numel() for p in model.parameters()), sum(layers), max(layers)


def saved_bytes(size, sentences, length=24):
    """Return the bytes saved for the backward pass, with bfloat16 copies of the weights, and the number of tokens."""
    torch.manual_seed(0)
    model = Seq2Seq(config(size)).train()
    ids = torch.randint(3, VOCABULARY, (sentences, length))
    saved, weights = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes(), tensor  # keeping the tensor prevents reuse of its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), torch.autocast("cpu", torch.bfloat16):
        loss = model.output.loss(model.hidden(ids, ids), ids)
    del loss
    return sum(size for size, _ in saved.values()), sentences * length


def saved_bytes_per_token(size):
    """Return the saved bytes per pair of source and target token, and the bytes of autocast's weight copies."""
    (small_bytes, small_tokens), (large_bytes, large_tokens) = saved_bytes(size, 4), saved_bytes(size, 12)
    per_token = (large_bytes - small_bytes) / (large_tokens - small_tokens)
    return per_token, small_bytes - per_token * small_tokens


def step(size, gpus):
    """Return the figures of one update on a number of GPUs, each with the paper's batch."""
    total, layers, largest = parameters(size)
    outside_layers, model = total - layers, config(size)
    activations, copies = saved_bytes_per_token(size)
    # forward and backward: 6 FLOP per parameter and token; each half of the layers processes its own tokens.
    # attention adds 12 FLOP per key and column for scores and weighted sums, three times per pair of layers
    scores = 12 * LENGTH * model.d_model * 3 * model.num_layers
    operations = TOKENS * (6 * (layers + VOCABULARY * model.d_model) + scores)
    share = (gpus - 1) / gpus
    bandwidth = INTRA_NODE if gpus <= 8 else INTER_NODE
    # parameters outside the layers are gathered once and stay unsharded until their gradients are sent
    replicated, sharded = 2 * share * 4 * total, share * 4 * (3 * layers + 2 * outside_layers)
    return {
        "parameters": total,
        "compute s": operations / RATE,
        "share of attention scores %": 100 * TOKENS * scores / operations,
        "activations GB": activations * TOKENS / 1e9,
        "copies of the weights in bfloat16 GB": copies / 1e9,
        "DDP: weights, gradients, Adam GB": 16 * total / 1e9,
        "DDP: sent GB": replicated / 1e9,
        "DDP: communication s": replicated / bandwidth,
        "FSDP2: weights, gradients, Adam GB": 16 * total / gpus / 1e9,
        "FSDP2: unsharded GB": (8 * outside_layers + 12 * largest) / 1e9,
        "FSDP2: sent GB": sharded / 1e9,
        "FSDP2: communication s": sharded / bandwidth,
        "activations per token kB": activations / 1e3,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {f"{size}, {gpus} GPUs": step(size, gpus) for size in SIZES for gpus in GPUS}
    print("| per step and GPU |", " | ".join(results), "|")
    print("|---|" + "---|" * len(results))
    for name in next(iter(results.values())):
        print(
            f"| {name} |",
            " | ".join(
                f"{column[name]:,.3g}" if column[name] < 1e6 else f"{column[name]:,}" for column in results.values()
            ),
            "|",
        )
    if args.json:
        write_json(
            args.json, {"machine": hardware_info(torch.get_num_threads(), ["clearhead", "torch"]), "steps": results}
        )


if __name__ == "__main__":
    main()
