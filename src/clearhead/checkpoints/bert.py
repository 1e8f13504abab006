"""BERT (Devlin et al. 2018), and all that share its layout: MiniLM, BGE, E5, GTE ...

Peculiar: some files hold ``embeddings.position_ids``, which follow from the config; a file with a head puts "bert."
before the body's names; the pooler may be there or not.
"""

from clearhead.checkpoints.family import Family
from clearhead.checkpoints.names import NameTable

_ATTENTION = "encoder.layer.{}.attention"

BERT = Family(
    model_type="bert",
    architecture="BertModel",
    table=NameTable(
        rows={
            "embeddings.word_embeddings.weight": "embedding.tokens.weight",
            "embeddings.position_embeddings.weight": "embedding.positions.weight",
            "embeddings.token_type_embeddings.weight": "embedding.types.weight",
            "embeddings.LayerNorm.weight": "embedding.norm.weight",
            "embeddings.LayerNorm.bias": "embedding.norm.bias",
            (
                f"{_ATTENTION}.self.query.weight",
                f"{_ATTENTION}.self.key.weight",
                f"{_ATTENTION}.self.value.weight",
            ): "encoder.layers.{}.attention.qkv.weight",
            (
                f"{_ATTENTION}.self.query.bias",
                f"{_ATTENTION}.self.key.bias",
                f"{_ATTENTION}.self.value.bias",
            ): "encoder.layers.{}.attention.qkv.bias",
            f"{_ATTENTION}.output.dense.weight": "encoder.layers.{}.attention.out.weight",
            f"{_ATTENTION}.output.dense.bias": "encoder.layers.{}.attention.out.bias",
            f"{_ATTENTION}.output.LayerNorm.weight": "encoder.layers.{}.attention_residual.norm.weight",
            f"{_ATTENTION}.output.LayerNorm.bias": "encoder.layers.{}.attention_residual.norm.bias",
            "encoder.layer.{}.intermediate.dense.weight": "encoder.layers.{}.feedforward.inner.weight",
            "encoder.layer.{}.intermediate.dense.bias": "encoder.layers.{}.feedforward.inner.bias",
            "encoder.layer.{}.output.dense.weight": "encoder.layers.{}.feedforward.out.weight",
            "encoder.layer.{}.output.dense.bias": "encoder.layers.{}.feedforward.out.bias",
            "encoder.layer.{}.output.LayerNorm.weight": "encoder.layers.{}.feedforward_residual.norm.weight",
            "encoder.layer.{}.output.LayerNorm.bias": "encoder.layers.{}.feedforward_residual.norm.bias",
            "pooler.dense.weight": "pooler.dense.weight",
            "pooler.dense.bias": "pooler.dense.bias",
        },
        prefix="bert.",
        left_aside=(
            r"embeddings\.position_ids",
            r"cls\.(predictions|seq_relationship)\..+",
            r"(classifier|qa_outputs)\.(weight|bias)",
        ),
    ),
    keys={
        "vocab_size": ("vocab_size", None),
        "hidden_size": ("d_model", None),
        "intermediate_size": ("ffn_hidden", None),
        "num_attention_heads": ("num_heads", None),
        "num_hidden_layers": ("num_layers", None),
        "max_position_embeddings": ("max_len", None),
        "type_vocab_size": ("num_token_types", 2),
        "hidden_act": ("activation", "gelu"),
        "layer_norm_eps": ("eps", 1e-12),
        "hidden_dropout_prob": ("drop_prob", 0.1),
        "attention_probs_dropout_prob": ("attention_drop_prob", 0.1),
        "initializer_range": ("initializer_range", 0.02),
        "pad_token_id": ("pad_id", 0),
    },
    fixed={"positions": "learned", "embedding_norm": True, "norm_order": "post"},
    only={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "chunk_size_feed_forward": 0,
    },
    optional={"pooler": "pooler.dense.weight"},
)
