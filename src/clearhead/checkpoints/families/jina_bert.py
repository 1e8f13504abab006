"""Jina BERT (Günther et al. 2023, jina-embeddings-v2): BERT with symmetric ALiBi and gated feed-forwards.

Its config.json has the model type "bert", told apart by position_embedding_type="alibi". transformers does not have
the architecture; the tensor names are those of the publisher's code, which is never run.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.families.bert import BASE_SIZES, BERT, KEYS, ROWS
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.head_schema import HeadSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, with_bias
from clearhead.models.config import EncoderConfig

_CODE = "jinaai/jina-bert-implementation"
_TYPES = ("geglu", "reglu")


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    kind = data.get("feed_forward_type") or "original"
    if kind not in _TYPES:
        raise ValueError(f"feed_forward_type={kind!r:.80} is not supported. Use one of: {', '.join(_TYPES)}")
    return {"activation": kind}


def _write(config: EncoderConfig) -> dict[str, Any]:
    if config.activation not in _TYPES:
        raise ValueError(
            f"a jina_bert checkpoint cannot hold activation={config.activation!r:.80}; it needs {' or '.join(_TYPES)}"
        )
    return {
        "model_type": "bert",
        "auto_map": {
            "AutoConfig": f"{_CODE}--configuration_bert.JinaBertConfig",
            "AutoModel": f"{_CODE}--modeling_bert.JinaBertModel",
            "AutoModelForMaskedLM": f"{_CODE}--modeling_bert.JinaBertForMaskedLM",
            "AutoModelForSequenceClassification": f"{_CODE}--modeling_bert.JinaBertForSequenceClassification",
        },
        "position_embedding_type": "alibi",
        "feed_forward_type": config.activation,
        "hidden_act": "gelu",
    }


_FEED_FORWARD = ("encoder.layer.{}.intermediate.", "encoder.layer.{}.output.", "embeddings.position_embeddings.")

JINA_BERT = register(
    EncoderFamily(
        model_type="jina_bert",
        architecture="JinaBertModel",
        also_reads={"model_type": "bert", "position_embedding_type": "alibi"},
        in_transformers=False,
        parameter_names=ParameterNames(
            rows={
                **{name: ours for name, ours in ROWS.items() if not str(name).startswith(_FEED_FORWARD)},
                "encoder.layer.{}.mlp.gated_layers.weight": "encoder.layers.{}.feedforward.inner.weight",
                **with_bias(
                    {
                        "encoder.layer.{}.mlp.wo": "encoder.layers.{}.feedforward.out",
                        "encoder.layer.{}.mlp.layernorm": "encoder.layers.{}.feedforward_residual.norm",
                    }
                ),
            },
            ignored=BERT.parameter_names.ignored,
        ),
        prefix="bert.",
        keys={key: value for key, value in KEYS.items() if key != "hidden_act"}
        | {"max_position_embeddings": ("max_len", None), "pad_token_id": ("pad_id", 0)},
        constants={"positions": "alibi", "embedding_norm": True, "norm_order": "post", "inner_bias": False},
        default_sizes=BASE_SIZES | {"max_len": 8192, "activation": "geglu"},
        allowed_values={key: value for key, value in ENCODER_VALUES.items() if key != "position_embedding_type"},
        ignored_keys=frozenset({"attn_implementation", "emb_pooler"}),
        optional_modules={"pooler": "pooler.dense.weight"},
        custom=CustomConfig(
            keys=frozenset({"feed_forward_type", "hidden_act", "position_embedding_type"}),
            fields=frozenset({"activation"}),
            read=_read,
            write=_write,
        ),
        masked_lm=replace(BERT.masked_lm, architecture="JinaBertForMaskedLM", activation="gelu"),
        heads={
            "classification": HeadSchema(
                "JinaBertForSequenceClassification", BERT.heads["classification"].rows, activation="tanh"
            ),
            "span": HeadSchema("JinaBertForQuestionAnswering", BERT.heads["span"].rows),
        },
    )
)
