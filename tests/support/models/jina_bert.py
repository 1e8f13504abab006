"""Jina BERT (jina-embeddings-v2) written out step by step, with the tensor names of the publisher's checkpoints."""

import json
import math

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import BertTokenizerFast

from support.models.tiny import VOCABULARY

CONFIG = {
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "torch",
    "classifier_dropout": None,
    "emb_pooler": "mean",
    "feed_forward_type": "geglu",
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 20,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 40,
    "model_max_length": 40,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": len(VOCABULARY),
}


def make(folder, *, head=False, seed=0, std=0.35, **changes):
    """Write a random checkpoint and its tokenizer; return config and tensors."""
    config = CONFIG | changes
    if head:
        config["architectures"] = ["JinaBertForSequenceClassification"]
    generator = torch.Generator().manual_seed(seed)
    width, hidden = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        "embeddings.LayerNorm": width,
        "pooler.dense": (width, width),
    }
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        shapes |= {f"{layer}.attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        shapes |= {f"{layer}.attention.output.dense": (width, width), f"{layer}.attention.output.LayerNorm": width}
        shapes |= {f"{layer}.mlp.gated_layers.weight": (2 * hidden, width), f"{layer}.mlp.wo": (width, hidden)}
        shapes |= {f"{layer}.mlp.layernorm": width}
    if head:
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()} | {"classifier": (3, width)}
        config |= {"id2label": {"0": "a", "1": "b", "2": "c"}}
    tensors = {}
    for name, shape in shapes.items():
        if isinstance(shape, int):
            tensors[f"{name}.weight"] = 1 + 0.2 * torch.randn(shape, generator=generator)
            tensors[f"{name}.bias"] = 0.2 * torch.randn(shape, generator=generator)
        elif name.endswith(".weight"):
            tensors[name] = std * torch.randn(shape, generator=generator)
        else:
            tensors[f"{name}.weight"] = std * torch.randn(shape, generator=generator)
            tensors[f"{name}.bias"] = 0.2 * torch.randn(shape[0], generator=generator)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    BertTokenizerFast(str(vocab), model_max_length=config["model_max_length"]).save_pretrained(folder)
    return config, tensors


def slopes(heads):
    """Return the slopes as the authors of ALiBi compute them."""

    def of_power(count):
        start = 2 ** (-(2 ** -(math.log2(count) - 3)))
        return [start**number for number in range(1, count + 1)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    power = 2 ** math.floor(math.log2(heads))
    return of_power(power) + slopes(2 * power)[0::2][: heads - power]


def hidden_states(config, tensors, ids, keep, types=None):
    """Return the hidden states after the embedding and after each layer."""
    tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    heads, width = config["num_attention_heads"], config["hidden_size"]

    def linear(x, name):
        return functional.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def norm(x, name):
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return functional.layer_norm(x, (width,), weight, bias, config["layer_norm_eps"])

    def split(x):
        return x.view(*x.shape[:2], heads, width // heads).transpose(1, 2)

    types = torch.zeros_like(ids) if types is None else types
    x = tensors["embeddings.word_embeddings.weight"][ids] + tensors["embeddings.token_type_embeddings.weight"][types]
    x = norm(x, "embeddings.LayerNorm")
    states, position = [x], torch.arange(ids.shape[1])
    bias = -torch.tensor(slopes(heads))[:, None, None] * (position[:, None] - position[None, :]).abs()
    bias = bias + torch.where(keep, 0.0, float("-inf"))[:, None, None, :]
    activation = {"geglu": functional.gelu, "reglu": torch.relu}[config["feed_forward_type"]]
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        q, k, v = (split(linear(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        weights = (q @ k.transpose(2, 3) / math.sqrt(width // heads) + bias).softmax(dim=-1)
        attended = (weights @ v).transpose(1, 2).flatten(2)
        x = norm(linear(attended, f"{layer}.attention.output.dense") + x, f"{layer}.attention.output.LayerNorm")
        gated, plain = linear(x, f"{layer}.mlp.gated_layers").chunk(2, dim=-1)
        x = norm(linear(activation(gated) * plain, f"{layer}.mlp.wo") + x, f"{layer}.mlp.layernorm")
        states.append(x)
    return states


def pooled(tensors, hidden):
    """Return the pooler's output."""
    weights = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    return torch.tanh(functional.linear(hidden[:, 0], weights["pooler.dense.weight"], weights["pooler.dense.bias"]))
