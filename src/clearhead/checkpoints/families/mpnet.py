"""MPNet (Song et al. 2020): RoBERTa's positions with relative position biases.

All layers share one table of biases, which are added to the scaled scores. The padding id is always 1. There are no
token types.
"""

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.families.bert import BASE_SIZES, CONSTANTS, KEYS
from clearhead.checkpoints.families.roberta import LM_HEAD, POSITIONS
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias

_ATTENTION = "encoder.layer.{}.attention"

MPNET = register(
    EncoderFamily(
        model_type="mpnet",
        architecture="MPNetModel",
        parameter_names=ParameterNames(
            rows={
                "embeddings.word_embeddings.weight": "embedding.tokens.weight",
                "embeddings.position_embeddings.weight": "embedding.positions.weight",
                "encoder.relative_attention_bias.weight": "encoder.relative_bias.weight",
                **with_bias(
                    {
                        "embeddings.LayerNorm": "embedding.norm",
                        (
                            f"{_ATTENTION}.attn.q",
                            f"{_ATTENTION}.attn.k",
                            f"{_ATTENTION}.attn.v",
                        ): "encoder.layers.{}.attention.qkv",
                        f"{_ATTENTION}.attn.o": "encoder.layers.{}.attention.out",
                        f"{_ATTENTION}.LayerNorm": "encoder.layers.{}.attention_residual.norm",
                        "encoder.layer.{}.intermediate.dense": "encoder.layers.{}.feedforward.inner",
                        "encoder.layer.{}.output.dense": "encoder.layers.{}.feedforward.out",
                        "encoder.layer.{}.output.LayerNorm": "encoder.layers.{}.feedforward_residual.norm",
                        "pooler.dense": "pooler.dense",
                    }
                ),
            },
            ignored=(r"embeddings\.position_ids", r"lm_head\..+", r"classifier\..+", r"qa_outputs\..+"),
        ),
        prefix="mpnet.",
        keys={key: value for key, value in KEYS.items() if key != "type_vocab_size"}
        | {"relative_attention_num_buckets": ("relative_buckets", 32)},
        constants=CONSTANTS | {"positions_after_padding": True},
        allowed_values=ENCODER_VALUES | {"pad_token_id": 1, "relative_attention_num_buckets": 32},
        ignored_keys=frozenset({"type_vocab_size"}),
        default_sizes=BASE_SIZES | {"pad_id": 1, "eps": 1e-5},
        optional_modules={"pooler": "pooler.dense.weight"},
        custom=POSITIONS,
        masked_lm=MaskedLMSchema("MPNetForMaskedLM", LM_HEAD, decoder="lm_head.decoder", activation="gelu"),
        heads={
            "classification": HeadSchema(
                "MPNetForSequenceClassification",
                with_bias({"classifier.dense": "dense", "classifier.out_proj": "out"}),
                activation="tanh",
            ),
            "span": HeadSchema("MPNetForQuestionAnswering", with_bias({"qa_outputs": "out"})),
        },
    )
)
