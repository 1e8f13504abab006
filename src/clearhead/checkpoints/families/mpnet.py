"""MPNet (Song et al. 2020): RoBERTa's positions, and learned biases by distance.

Peculiar: one table of biases for all layers, added to the scaled scores; padding is always id 1; no token types.
"""

from clearhead.checkpoints.encoder_family import ENCODER_ONLY, EncoderFamily
from clearhead.checkpoints.families.bert import FIXED, KEYS, USUAL
from clearhead.checkpoints.families.roberta import LM_HEAD, POSITIONS
from clearhead.checkpoints.schema.head_schema import HeadFormat, MaskedFormat
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias

_ATTENTION = "encoder.layer.{}.attention"

MPNET = EncoderFamily(
    model_type="mpnet",
    architecture="MPNetModel",
    table=ParameterNames(
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
        left_aside=(r"embeddings\.position_ids", r"lm_head\..+", r"classifier\..+", r"qa_outputs\..+"),
    ),
    prefix="mpnet.",
    keys={key: value for key, value in KEYS.items() if key != "type_vocab_size"}
    | {"relative_attention_num_buckets": ("relative_buckets", 32)},
    fixed=FIXED | {"positions_after_padding": True},
    only=ENCODER_ONLY | {"pad_token_id": 1, "relative_attention_num_buckets": 32},
    inert=frozenset({"type_vocab_size"}),
    usual=USUAL | {"pad_id": 1, "eps": 1e-5},
    optional={"pooler": "pooler.dense.weight"},
    peculiar=POSITIONS,
    masked=MaskedFormat("MPNetForMaskedLM", LM_HEAD, decoder="lm_head.decoder", activation="gelu"),
    heads={
        "classification": HeadFormat(
            "MPNetForSequenceClassification",
            with_bias({"classifier.dense": "dense", "classifier.out_proj": "out"}),
            activation="tanh",
        ),
        "span": HeadFormat("MPNetForQuestionAnswering", with_bias({"qa_outputs": "out"})),
    },
)
