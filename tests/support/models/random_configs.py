"""Random configurations of encoder families with odd sizes, for transformers and for `make_config`."""

import random

import torch
import transformers

from support.models.families import NAMES

VOCABULARY = 37


def sizes(draw):
    """Return (width, heads): a width of any heads times any head width."""
    heads = draw.randint(1, 4)
    return heads * draw.randint(1, 7), heads


def bert_keys(draw):
    width, heads = sizes(draw)
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(1, 4),
        "intermediate_size": draw.randint(1, 30),
        "max_position_embeddings": draw.randint(22, 40),
        "type_vocab_size": draw.randint(1, 3),
        "hidden_act": draw.choice(["gelu", "relu", "silu", "gelu_new"]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5, 1e-3]),
        "pad_token_id": draw.randint(0, 3),
        "initializer_range": 0.3,
    }


def electra(draw):
    keys = bert_keys(draw)
    return keys | {"embedding_size": draw.choice([keys["hidden_size"], draw.randint(1, 30)])}


def albert(draw):
    keys = electra(draw)
    groups = draw.randint(1, keys["num_hidden_layers"])
    return keys | {"num_hidden_groups": groups, "inner_group_num": draw.randint(1, 3)}


KEYS = {"camembert": bert_keys, "electra": electra, "albert": albert}
"""Family -> random keys of its config in transformers."""


def bert_fields(draw):
    width, heads = sizes(draw)
    return {
        "vocab_size": VOCABULARY,
        "d_model": width,
        "num_heads": heads,
        "num_layers": draw.randint(1, 4),
        "ffn_hidden": draw.randint(1, 30),
        "max_len": draw.randint(17, 40),
        "num_token_types": draw.randint(1, 3),
        "activation": draw.choice(["gelu", "relu", "silu", "gelu_tanh"]),
        "eps": draw.choice([1e-12, 1e-5, 1e-3]),
        "pad_id": draw.randint(0, 3),
        "drop_prob": draw.choice([0.0, 0.3]),
    }


def electra_fields(draw):
    return bert_fields(draw) | {"embedding_dim": draw.choice([None, draw.randint(1, 30)])}


def albert_fields(draw):
    size, fields = draw.randint(1, 3), electra_fields(draw)
    groups = draw.randint(1, fields["num_layers"])
    return fields | {"num_layers": size * fields["num_layers"], "layer_groups": groups, "group_layers": size}


FIELDS = {"camembert": bert_fields, "electra": electra_fields, "albert": albert_fields}
"""Family -> random fields of its `EncoderConfig`."""


def theirs(family, kind, seed, folder, **changes):
    """Save and return a random model of transformers, with its random configuration."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    config = getattr(transformers, f"{NAMES[family]}Config")(**KEYS[family](draw), **changes)
    model = enlivened(getattr(transformers, f"{NAMES[family]}{kind}")(config))
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def enlivened(model):
    """Randomize norms and biases, which start at 1 and 0; this would hide a swap of them."""
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    return model.eval()


def batch(pad_id):
    """Return ids (3, 17) padded on the right, and the mask of real tokens."""
    keep = torch.arange(17) < torch.tensor([[17], [5], [1]])
    return torch.randint(4, VOCABULARY, (3, 17)).masked_fill(~keep, pad_id), keep
