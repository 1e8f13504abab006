"""Tiny random encoders of each family, built by transformers."""

import torch
import transformers
from transformers import BertTokenizerFast

from support.models.tiny import VOCABULARY

SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
# larger initial weights of DeBERTa and of the models with gates amplify rounding beyond the bounds of the tests
# RoBERTa's padding id is 1, which is [UNK] in this vocabulary
CHANGES = {
    "bert": {},
    "roberta": {"max_position_embeddings": 42, "layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1},
    "xlm-roberta": {"max_position_embeddings": 43, "layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 2},
    "distilbert": {"hidden_dim": 48},
    "mpnet": {"max_position_embeddings": 42, "pad_token_id": 1},
    "eurobert": {"initializer_range": 0.15, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "mask_token_id": 4},
    "nomic_bert": {"initializer_range": 0.15, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
    "jina_embeddings_v3": {"pad_token_id": 1},
    "gte": {"initializer_range": 0.15, "pad_token_id": 1},
    "camembert": {"max_position_embeddings": 42, "layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1},
    "electra": {"embedding_size": 24},
    "albert": {"embedding_size": 24, "num_hidden_groups": 2, "hidden_act": "gelu"},
    "deberta-v2": {"initializer_range": 0.15, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "share_att_key": True, "position_biased_input": False},
    "modernbert": {"local_attention": 8, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
}  # fmt: skip
NAMES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "mpnet": "MPNet",
    "camembert": "Camembert",
    "electra": "Electra",
    "albert": "Albert",
    "deberta-v2": "DebertaV2",
    "modernbert": "ModernBert",
    "eurobert": "EuroBert",
    "nomic_bert": "NomicBert",
    "gte": "Gte",
    "jina_embeddings_v3": "JinaEmbeddingsV3",
}
FAMILIES = list(NAMES)
SPAN_FAMILIES = [name for name in FAMILIES if hasattr(transformers, f"{NAMES[name]}ForQuestionAnswering")]


def make(family, folder, kind="Model", **changes):
    """Write a tiny random model of a family and its tokenizer into a folder; return transformers' model."""
    torch.manual_seed(0)
    sizes = dict(SIZES)
    if family == "distilbert":
        for ours, theirs in (
            ("hidden_size", "dim"),
            ("num_hidden_layers", "n_layers"),
            ("num_attention_heads", "n_heads"),
        ):
            sizes[theirs] = sizes.pop(ours)
        sizes.pop("intermediate_size")
    config = getattr(transformers, f"{NAMES[family]}Config")(**(sizes | CHANGES[family] | changes))
    model = getattr(transformers, f"{NAMES[family]}{kind}")(config).eval()
    with torch.no_grad():  # transformers starts norms and biases at 1 and 0, which would hide a swap of them
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.endswith("embed_tokens.weight"):  # without a norm, the zeros of the padding token stay zeros
                parameter[config.pad_token_id] = torch.randn(config.hidden_size) * 0.2
    model.save_pretrained(folder)
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    BertTokenizerFast(str(vocab), model_max_length=36).save_pretrained(folder)
    return model
