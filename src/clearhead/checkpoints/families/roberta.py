"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019): BERT with other positions.

Positions count the tokens other than padding, starting at pad_token_id + 1, so the position table has
pad_token_id + 1 more rows than the longest text has tokens. A literal padding token in a text has position
pad_token_id.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clearhead.checkpoints.encoder_family import EncoderFamily, register
from clearhead.checkpoints.families.bert import BASE_SIZES, CONSTANTS, KEYS, ROWS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias
from clearhead.models.config import EncoderConfig


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    pad_id = 1 if data.get("pad_token_id") is None else data["pad_token_id"]
    rows = data.get("max_position_embeddings", 512)
    if type(pad_id) is not int or type(rows) is not int:
        raise ValueError(f"pad_token_id={pad_id!r:.80}, max_position_embeddings={rows!r:.80}; expected integers")
    return {"max_len": rows - pad_id - 1, "pad_id": pad_id}


def _write(config: EncoderConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.max_len + config.pad_id + 1, "pad_token_id": config.pad_id}


POSITIONS = CustomConfig(
    keys=frozenset({"max_position_embeddings", "pad_token_id"}),
    fields=frozenset({"max_len", "pad_id"}),
    read=_read,
    write=_write,
)
LM_HEAD: Rows = with_bias({"lm_head.dense": "head.dense", "lm_head.layer_norm": "head.norm"}) | {
    "lm_head.bias": "output.bias"
}

ROBERTA = register(
    EncoderFamily(
        model_type="roberta",
        architecture="RobertaModel",
        parameter_names=ParameterNames(
            rows=ROWS,
            ignored=(r"embeddings\.position_ids", r"lm_head\..+", r"classifier\..+", r"qa_outputs\..+"),
        ),
        prefix="roberta.",
        keys=KEYS,
        constants=CONSTANTS | {"positions_after_padding": True},
        default_sizes=BASE_SIZES | {"pad_id": 1, "num_token_types": 1, "eps": 1e-5},
        optional_modules={"pooler": "pooler.dense.weight"},
        custom=POSITIONS,
        masked_lm=MaskedLMSchema("RobertaForMaskedLM", LM_HEAD, decoder="lm_head.decoder", activation="gelu"),
        heads={
            "classification": HeadSchema(
                "RobertaForSequenceClassification",
                with_bias({"classifier.dense": "dense", "classifier.out_proj": "out"}),
                activation="tanh",
            ),
            "span": HeadSchema("RobertaForQuestionAnswering", with_bias({"qa_outputs": "out"})),
        },
    )
)

XLM_ROBERTA = register(
    replace(
        ROBERTA,
        model_type="xlm-roberta",
        architecture="XLMRobertaModel",
        masked_lm=replace(ROBERTA.masked_lm, architecture="XLMRobertaForMaskedLM"),
        heads={task: replace(head, architecture=f"XLM{head.architecture}") for task, head in ROBERTA.heads.items()},
    )
)
