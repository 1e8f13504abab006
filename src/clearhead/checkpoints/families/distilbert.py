"""DistilBERT (Sanh et al. 2019): BERT with half the layers, other parameter names, no token types and no pooler.

``sinusoidal_pos_embds`` only sets the initial values of the positions, which the file contains.
"""

from clearhead.checkpoints.encoder_family import EncoderFamily, register
from clearhead.checkpoints.families.bert import BASE_SIZES, CONSTANTS
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias

_LAYER = "transformer.layer.{}"

DISTILBERT = register(
    EncoderFamily(
        model_type="distilbert",
        architecture="DistilBertModel",
        parameter_names=ParameterNames(
            rows={
                "embeddings.word_embeddings.weight": "embedding.tokens.weight",
                "embeddings.position_embeddings.weight": "embedding.positions.weight",
                **with_bias(
                    {
                        "embeddings.LayerNorm": "embedding.norm",
                        (
                            f"{_LAYER}.attention.q_lin",
                            f"{_LAYER}.attention.k_lin",
                            f"{_LAYER}.attention.v_lin",
                        ): "encoder.layers.{}.attention.qkv",
                        f"{_LAYER}.attention.out_lin": "encoder.layers.{}.attention.out",
                        f"{_LAYER}.sa_layer_norm": "encoder.layers.{}.attention_residual.norm",
                        f"{_LAYER}.ffn.lin1": "encoder.layers.{}.feedforward.inner",
                        f"{_LAYER}.ffn.lin2": "encoder.layers.{}.feedforward.out",
                        f"{_LAYER}.output_layer_norm": "encoder.layers.{}.feedforward_residual.norm",
                    }
                ),
            },
            ignored=(r"embeddings\.position_ids", r"vocab_\w+\..+", r"(pre_)?classifier\..+", r"qa_outputs\..+"),
        ),
        prefix="distilbert.",
        keys={
            "vocab_size": ("vocab_size", None),
            "dim": ("d_model", None),
            "hidden_dim": ("ffn_hidden", None),
            "n_heads": ("num_heads", None),
            "n_layers": ("num_layers", None),
            "max_position_embeddings": ("max_len", None),
            "activation": ("activation", "gelu"),
            "dropout": ("drop_prob", 0.1),
            "attention_dropout": ("attention_drop_prob", 0.1),
            "initializer_range": ("initializer_range", 0.02),
            "pad_token_id": ("pad_id", 0),
        },
        constants=CONSTANTS | {"eps": 1e-12},
        default_sizes=BASE_SIZES | {"num_layers": 6},
        ignored_keys=frozenset({"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"}),
        masked_lm=MaskedLMSchema(
            "DistilBertForMaskedLM",
            with_bias({"vocab_transform": "head.dense", "vocab_layer_norm": "head.norm"})
            | {"vocab_projector.bias": "output.bias"},
            decoder="vocab_projector",
        ),
        heads={
            "classification": HeadSchema(
                "DistilBertForSequenceClassification",
                with_bias({"pre_classifier": "dense", "classifier": "out"}),
                activation="relu",
            ),
            "span": HeadSchema("DistilBertForQuestionAnswering", with_bias({"qa_outputs": "out"})),
        },
    )
)
