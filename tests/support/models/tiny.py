"""Tiny random BERT models, built by transformers."""

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", "!", "?"),
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *("hello", "world", "this", "is", "test", "the", "old", "bridge", "was", "closed", "after", "storm"),
    *("query", "passage"),
]


def bert_config(**changes):
    sizes = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 24,
        "hidden_act": "gelu",
        # larger than usual, so that an error is visible in the output
        "initializer_range": 0.4,
    }
    return BertConfig(**(sizes | changes))


def make_bert(folder, *, pooler=True, seed=0, model_class=BertModel, **changes):
    """Write a tiny random BERT with its tokenizer into a folder; return the folder."""
    torch.manual_seed(seed)
    model = model_class(bert_config(**changes), **({} if pooler else {"add_pooling_layer": False}))
    with torch.no_grad():  # transformers starts norms and biases at 1 and 0, which would hide a swap of them
        for name, parameter in model.named_parameters():
            if "LayerNorm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    BertTokenizerFast(str(vocab), model_max_length=model.config.max_position_embeddings).save_pretrained(folder)
    return folder
