"""BERT (Devlin et al. 2018) and models with the same architecture: MiniLM, BGE, E5, GTE ...

Some files contain ``embeddings.position_ids``, which follow from the config. The pooler is optional; it is the first
layer of the classification head.
"""

from typing import Any

from clearhead.checkpoints.encoder_family import EncoderFamily, register
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias

_ATTENTION = "encoder.layer.{}.attention"

ROWS: Rows = {
    "embeddings.word_embeddings.weight": "embedding.tokens.weight",
    "embeddings.position_embeddings.weight": "embedding.positions.weight",
    "embeddings.token_type_embeddings.weight": "embedding.types.weight",
    **with_bias(
        {
            "embeddings.LayerNorm": "embedding.norm",
            (
                f"{_ATTENTION}.self.query",
                f"{_ATTENTION}.self.key",
                f"{_ATTENTION}.self.value",
            ): "encoder.layers.{}.attention.qkv",
            f"{_ATTENTION}.output.dense": "encoder.layers.{}.attention.out",
            f"{_ATTENTION}.output.LayerNorm": "encoder.layers.{}.attention_residual.norm",
            "encoder.layer.{}.intermediate.dense": "encoder.layers.{}.feedforward.inner",
            "encoder.layer.{}.output.dense": "encoder.layers.{}.feedforward.out",
            "encoder.layer.{}.output.LayerNorm": "encoder.layers.{}.feedforward_residual.norm",
            "pooler.dense": "pooler.dense",
        }
    ),
}
KEYS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", None),
    "hidden_size": ("d_model", None),
    "intermediate_size": ("ffn_hidden", None),
    "num_attention_heads": ("num_heads", None),
    "num_hidden_layers": ("num_layers", None),
    "type_vocab_size": ("num_token_types", 2),
    "hidden_act": ("activation", "gelu"),
    "layer_norm_eps": ("eps", 1e-12),
    "hidden_dropout_prob": ("drop_prob", 0.1),
    "attention_probs_dropout_prob": ("attention_drop_prob", 0.1),
    "initializer_range": ("initializer_range", 0.02),
}
CONSTANTS = {"positions": "learned", "embedding_norm": True, "norm_order": "post"}
BASE_SIZES = {"d_model": 768, "ffn_hidden": 3072, "num_heads": 12, "num_layers": 12, "max_len": 512}
"""Sizes of BERT-base."""

BERT = register(
    EncoderFamily(
        model_type="bert",
        architecture="BertModel",
        parameter_names=ParameterNames(
            rows=ROWS,
            ignored=(
                r"embeddings\.position_ids",
                r"cls\.(predictions|seq_relationship)\..+",
                r"(classifier|qa_outputs)\.(weight|bias)",
            ),
        ),
        prefix="bert.",
        keys=KEYS | {"max_position_embeddings": ("max_len", None), "pad_token_id": ("pad_id", 0)},
        constants=CONSTANTS,
        default_sizes=BASE_SIZES,
        optional_modules={"pooler": "pooler.dense.weight"},
        masked_lm=MaskedLMSchema(
            "BertForMaskedLM",
            with_bias(
                {"cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.LayerNorm": "head.norm"}
            )
            | {"cls.predictions.bias": "output.bias"},
            decoder="cls.predictions.decoder",
        ),
        heads={
            "classification": HeadSchema(
                "BertForSequenceClassification",
                with_bias({"bert.pooler.dense": "dense", "classifier": "out"}),
                activation="tanh",
            ),
            "span": HeadSchema("BertForQuestionAnswering", with_bias({"qa_outputs": "out"})),
        },
    )
)
