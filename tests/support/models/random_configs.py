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


def deberta(draw):
    keys = bert_keys(draw) | {"position_biased_input": draw.random() < 0.5, "type_vocab_size": draw.randint(0, 2)}
    if draw.random() < 0.8:
        keys |= {
            "relative_attention": True,
            "pos_att_type": draw.choice([["c2p"], ["p2c"], ["p2c", "c2p"], "p2c|c2p"]),
            "max_relative_positions": draw.choice([-1, 12, 40]),
            "position_buckets": draw.choice([-1, 2, 5, 8, 14]),
            "norm_rel_ebd": draw.choice(["none", "layer_norm"]),
            "share_att_key": draw.random() < 0.5,
        }
    if draw.random() < 0.5:
        keys |= {"conv_kernel_size": draw.choice([1, 3, 5]), "conv_act": draw.choice(["tanh", "gelu", "relu"])}
        keys |= {"conv_groups": draw.choice([1, keys["num_attention_heads"]])}
    return keys | {"pooler_hidden_act": draw.choice(["gelu", "tanh", "relu"])}


def rotary_sizes(draw):
    """Return (width, heads) with an even width of the heads, because rotary positions rotate pairs of columns."""
    heads = draw.randint(1, 4)
    return heads * 2 * draw.randint(1, 5), heads


def wide_sizes(draw, width_key):
    """Return sizes whose heads have the width of the model's columns, or any other even width."""
    if draw.random() < 0.5:
        return {}
    heads = draw.randint(1, 4)
    return {width_key[0]: heads * draw.randint(1, 7), width_key[1]: heads, "head_dim": 2 * draw.randint(1, 5)}


def theta(draw):
    return draw.choice([100.0, 10_000.0, 500_000.0])


def rotary_bert(draw):
    """Return the keys of the BERT families with rotary positions."""
    keys = bert_keys(draw)
    keys["hidden_size"], keys["num_attention_heads"] = rotary_sizes(draw)
    rope = {"rope_type": "default", "rope_theta": theta(draw)}
    if draw.random() < 0.5:
        rope |= {"rope_type": "linear", "factor": draw.uniform(0.5, 8.0)}
    return keys | {"rope_parameters": rope, "bos_token_id": None, "eos_token_id": None}


def nomic_bert(draw):
    return rotary_bert(draw) | wide_sizes(draw, ("hidden_size", "num_attention_heads"))


def gte(draw):
    return rotary_bert(draw) | {"type_vocab_size": draw.randint(0, 2)}


def eurobert(draw):
    keys = nomic_bert(draw)
    del keys["type_vocab_size"]
    return keys | {
        "num_key_value_heads": draw.choice(divisors(keys["num_attention_heads"])),
        "rms_norm_eps": keys.pop("layer_norm_eps"),
        "attention_bias": draw.random() < 0.5,
        "mlp_bias": draw.random() < 0.5,
        "classifier_pooling": draw.choice(["late", "bos", "mean"]),
        "tie_word_embeddings": draw.random() < 0.5,
    }


def modernbert(draw):
    keys = rotary_bert(draw)
    for name in ("type_vocab_size", "hidden_act", "rope_parameters"):
        del keys[name]
    kinds = ("full_attention", "sliding_attention")
    return keys | {
        "norm_eps": keys.pop("layer_norm_eps"),
        "layer_types": draw.choices(kinds, k=keys["num_hidden_layers"]),
        "local_attention": draw.randint(1, 20),
        # both bases are equal in mmBERT
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta(draw)} for kind in kinds},
        **{f"{part}_bias": draw.random() < 0.5 for part in ("attention", "mlp", "norm", "decoder", "classifier")},
        "classifier_pooling": draw.choice(["cls", "mean"]),
        "classifier_activation": draw.choice(["gelu", "relu", "tanh"]),
        "cls_token_id": None,
        "sep_token_id": None,
    }


def divisors(number):
    return [part for part in range(1, number + 1) if number % part == 0]


KEYS = {
    "camembert": bert_keys,
    "electra": electra,
    "albert": albert,
    "deberta-v2": deberta,
    "nomic_bert": nomic_bert,
    "gte": gte,
    "jina_embeddings_v3": rotary_bert,
    "eurobert": eurobert,
    "modernbert": modernbert,
}
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


def deberta_fields(draw):
    fields = bert_fields(draw) | {"num_token_types": draw.randint(0, 2), "positions": draw.choice(["none", "learned"])}
    if draw.random() < 0.8:
        fields |= {
            "distance_terms": draw.choice(["c2p", "p2c", "both"]),
            "distance_buckets": draw.choice([2, 5, 14, 40]),
            "distance_max": draw.choice([None, 22, 60]),
            "distance_norm": draw.random() < 0.5,
            "distance_shared": draw.random() < 0.5,
        }
    else:
        fields |= {"distance_terms": "none", "distance_norm": False, "distance_shared": False}
    if draw.random() < 0.5:
        fields |= {"convolution_width": draw.choice([1, 3, 5]), "convolution_activation": draw.choice(["tanh", "gelu"])}
    return fields


def pooled(draw):
    return {"pooler": draw.random() < 0.5}


def rotary_fields(draw):
    fields = bert_fields(draw) | pooled(draw) | {"rotary_theta": theta(draw)}
    fields["d_model"], fields["num_heads"] = rotary_sizes(draw)
    return fields | {"rotary_factor": draw.choice([1.0, draw.uniform(0.5, 8.0)])}


def gated(draw):
    return {"activation": draw.choice(["swiglu", "geglu", "geglu_tanh", "reglu"])}


def nomic_bert_fields(draw):
    fields = rotary_fields(draw) | wide_sizes(draw, ("d_model", "num_heads")) | gated(draw)
    # the family's standard form of a width that follows from the others
    own = fields.get("head_dim", 0) * fields["num_heads"] != fields["d_model"]
    return fields if own else fields | {"head_dim": None}


def gte_fields(draw):
    return rotary_fields(draw) | gated(draw) | {"num_token_types": draw.randint(0, 2)}


def eurobert_fields(draw):
    fields = nomic_bert_fields(draw)
    for name in ("num_token_types", "pooler", "drop_prob"):
        del fields[name]
    return fields | {
        "num_kv_heads": draw.choice([None, *divisors(fields["num_heads"])[:-1]]),
        "attention_bias": draw.random() < 0.5,
        "feedforward_bias": draw.random() < 0.5,
    }


def modernbert_fields(draw):
    fields = rotary_fields(draw)
    for name in ("num_token_types", "pooler", "activation", "rotary_factor"):
        del fields[name]
    bias = draw.random() < 0.5
    return fields | {
        "windows": tuple(draw.choices([None, draw.randint(1, 10)], k=fields["num_layers"])),
        "local_rotary_theta": theta(draw),
        "bias": bias,
        "attention_bias": draw.choice([None, not bias]),
        "feedforward_bias": draw.choice([None, not bias]),
    }


FIELDS = {
    "camembert": lambda draw: bert_fields(draw) | pooled(draw),
    "electra": electra_fields,
    "albert": lambda draw: albert_fields(draw) | pooled(draw),
    "deberta-v2": deberta_fields,
    "nomic_bert": nomic_bert_fields,
    "gte": gte_fields,
    "jina_embeddings_v3": rotary_fields,
    "eurobert": eurobert_fields,
    "modernbert": modernbert_fields,
}
"""Family -> random fields of its `EncoderConfig`."""


def theirs(family, kind, seed, folder, **changes):
    """Save and return a random model of transformers, with its random configuration."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    config = getattr(transformers, f"{NAMES[family]}Config")(**KEYS[family](draw), **changes)
    # these two have a pooler only where the caller demands it
    options = {"add_pooling_layer": seed % 2 == 0} if kind == "Model" and family in ("nomic_bert", "gte") else {}
    model = enlivened(getattr(transformers, f"{NAMES[family]}{kind}")(config, **options))
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
