"""Folders in the formats of the publishers' first code, with the weights of a model of transformers."""

import json

import torch
from safetensors.torch import load_file, save_file

from support.models.families import make

TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
INSTRUCTIONS = {"retrieval.query": "query ", "retrieval.passage": "passage ", "text-matching": ""}
NOMIC_KEYS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
}


def read(folder):
    return json.loads((folder / "config.json").read_text())


def write(folder, data):
    (folder / "config.json").write_text(json.dumps(data))


def first_code(family, folder, kind="Model", **changes):
    """Write a model in the publisher's first format; return transformers' model of the same weights."""
    theirs = make(family, folder, kind, **changes)
    data = read(folder)
    theta = data.pop("rope_parameters")["rope_theta"]
    if family == "nomic_bert":
        data = {NOMIC_KEYS.get(key, key): value for key, value in data.items() if key not in ("head_dim", "hidden_act")}
        data |= {"activation_function": "swiglu", "rotary_emb_base": theta, "rotary_emb_fraction": 1.0}
        data |= {"prenorm": False, "use_flash_attn": True, "rotary_scaling_factor": None, "n_positions": 40}
    if family == "gte":
        data |= {"model_type": "new", "rope_theta": theta, "rope_scaling": None, "pack_qkv": True}
        data |= {"layer_norm_type": "layer_norm", "position_embedding_type": "rope", "unpad_inputs": False}
        tensors = load_file(folder / "model.safetensors")
        save_file({name.replace("gte.", "new."): x for name, x in tensors.items()}, folder / "model.safetensors")
    if family == "jina_embeddings_v3":
        data |= {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": theta}
        data |= {"lora_adaptations": TASKS, "lora_rank": 2, "lora_alpha": 3, "task_instructions": INSTRUCTIONS}
        data |= {"lora_dropout_p": 0.0, "use_flash_attn": True, "load_trained_adapters": True, "truncate_dim": None}
    write(folder, data)
    return theirs


def stacked(folder):
    """Put adapters next to each weight, as the first code does; return the merged tensors of each task."""
    generator = torch.Generator().manual_seed(1)
    tensors, adapted = load_file(folder / "model.safetensors"), {}
    merged = {task: dict(tensors) for task in TASKS}
    for name, weight in tensors.items():
        if weight.ndim < 2:
            adapted[name] = weight
            continue
        module, shape = name.removesuffix(".weight"), tuple(weight.shape)
        embedding = "embeddings" in name
        a = torch.randn(3, *((shape[0], 2) if embedding else (2, shape[1])), generator=generator) * 0.2
        b = torch.randn(3, *((2, shape[1]) if embedding else (shape[0], 2)), generator=generator) * 0.2
        adapted[f"{module}.parametrizations.weight.original"] = weight
        adapted[f"{module}.parametrizations.weight.0.lora_A"] = a
        adapted[f"{module}.parametrizations.weight.0.lora_B"] = b
        for number, task in enumerate(TASKS):
            merged[task][name] = weight + 1.5 * (a[number] @ b[number] if embedding else b[number] @ a[number])
    save_file({f"roberta.{name}": tensor for name, tensor in adapted.items()}, folder / "model.safetensors")
    return merged
