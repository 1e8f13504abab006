"""ELECTRA (Clark et al. 2020), the generator and the discriminator: BERT with embeddings of their own width.

A linear layer projects the embeddings to the width of the layers if the two differ. The classification head has GELU
and no pooler. The generator's head predicts masked tokens; the discriminator's head for replaced tokens is ignored.
"""

from clearhead.checkpoints.encoder_family import EncoderFamily, register
from clearhead.checkpoints.families.bert import CONSTANTS, KEYS, ROWS
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias

ELECTRA = register(
    EncoderFamily(
        model_type="electra",
        architecture="ElectraModel",
        parameter_names=ParameterNames(
            rows={**ROWS, **with_bias({"embeddings_project": "embedding.projection"})},
            ignored=(
                r"embeddings\.position_ids",
                r"(generator|discriminator)_predictions\..+",
                r"generator_lm_head\..+",
                r"(classifier|qa_outputs)\..+",
            ),
        ),
        prefix="electra.",
        keys=KEYS
        | {
            "embedding_size": ("embedding_dim", 128),
            "max_position_embeddings": ("max_len", 512),
            "pad_token_id": ("pad_id", 0),
        },
        constants=CONSTANTS,
        default_sizes={"d_model": 256, "ffn_hidden": 1024, "num_heads": 4, "num_layers": 12, "max_len": 512},
        # settings of the multiple-choice head
        ignored_keys=frozenset({"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"}),
        masked_lm=MaskedLMSchema(
            "ElectraForMaskedLM",
            with_bias({"generator_predictions.dense": "head.dense", "generator_predictions.LayerNorm": "head.norm"})
            | {"generator_lm_head.bias": "output.bias"},
            decoder="generator_lm_head",
            activation="gelu",
        ),
        heads={
            "classification": HeadSchema(
                "ElectraForSequenceClassification",
                with_bias({"classifier.dense": "dense", "classifier.out_proj": "out"}),
                activation="gelu",
            ),
            "span": HeadSchema("ElectraForQuestionAnswering", with_bias({"qa_outputs": "out"})),
        },
    )
)
