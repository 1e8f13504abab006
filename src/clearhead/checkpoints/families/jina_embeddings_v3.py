"""Jina Embeddings v3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions, and low-rank adapters for tasks.

The adapters are next to each weight in files of the first code, whose model type is "xlm-roberta" with
position_embedding_type="rotary". Folders for transformers have an adapter of PEFT in a folder for each task.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from clearhead.checkpoints.encoder_family import ENCODER_VALUES, EncoderFamily, register
from clearhead.checkpoints.families.bert import BASE_SIZES, KEYS
from clearhead.checkpoints.families.roberta import LM_HEAD
from clearhead.checkpoints.schema.adapters import (
    adapter_folders,
    find_adapter,
    has_stacked,
    merge_peft,
    merge_stacked,
)
from clearhead.checkpoints.schema.config_schema import CustomConfig
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames, Rows, with_bias
from clearhead.checkpoints.schema.rotary_keys import ROTARY_FIELDS, ROTARY_KEYS, read_rotary, write_rotary

_FIRST_CODE_IGNORED = frozenset(
    {
        *("emb_pooler", "load_trained_adapters", "lora_adaptations", "lora_alpha", "lora_dropout_p"),
        *("lora_main_params_trainable", "lora_rank", "matryoshka_dimensions", "position_embedding_type"),
        *("task_instructions", "use_flash_attn", "use_reentrant"),
    }
)
_IN_FIRST_CODE = {
    "self_attn.q_proj": ("mixer.Wqkv", 0, 3),
    "self_attn.k_proj": ("mixer.Wqkv", 1, 3),
    "self_attn.v_proj": ("mixer.Wqkv", 2, 3),
    "self_attn.o_proj": ("mixer.out_proj", 0, 1),
    "mlp.fc1": ("mlp.fc1", 0, 1),
    "mlp.fc2": ("mlp.fc2", 0, 1),
}


def _translate(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of transformers for a config.json of the first code."""
    if data.get("model_type") != "xlm-roberta":
        return data
    renamed = {"rope_theta" if key == "rotary_emb_base" else key: value for key, value in data.items()}
    return {key: value for key, value in renamed.items() if key not in _FIRST_CODE_IGNORED}


def _merge(tensors: dict[str, Tensor], folder: Path, data: Mapping[str, Any], adapter: str | None) -> dict[str, Tensor]:
    """Return the tensors of a folder with one of its adapters."""
    if not has_stacked(tensors):
        name = find_adapter(folder, adapter_folders(folder), adapter)
        return tensors if name is None else merge_peft(tensors, folder / name, lambda module: _locate(module, tensors))
    names = data.get("lora_adaptations") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{folder / 'config.json'} has lora_adaptations={names!r:.80}; expected a list of names")
    name = find_adapter(folder, names, adapter)
    alpha, rank = (data.get(key, default) for key, default in (("lora_alpha", 1), ("lora_rank", 4)))
    for key, value in (("lora_alpha", alpha), ("lora_rank", rank)):
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"{folder / 'config.json'} has {key}={value!r:.80}; expected a number above 0")
    return merge_stacked(tensors, None if name is None else names.index(name), alpha / rank, str(folder))


def _locate(module: str, tensors: Mapping[str, Tensor]) -> tuple[str, int, int]:
    """Return the tensor of a module of an adapter, and which of how many parts of its rows the module is."""
    for name in (module, module.removeprefix("roberta."), f"roberta.{module}"):
        if f"{name}.weight" in tensors:
            return f"{name}.weight", 0, 1
    match = re.fullmatch(r"(roberta\.)?layers\.(\d+)\.(.+)", module)
    if match is None or match[3] not in _IN_FIRST_CODE:
        return f"{module}.weight", 0, 1
    part, number, parts = _IN_FIRST_CODE[match[3]]
    name = f"encoder.layers.{match[2]}.{part}.weight"
    return name if name in tensors else f"roberta.{name}", number, parts


_LAYER, _NATIVE, _OURS = "encoder.layers.{}", "layers.{}", "encoder.layers.{}"
_EMBEDDINGS: Rows = {
    "embeddings.word_embeddings.weight": "embedding.tokens.weight",
    "embeddings.token_type_embeddings.weight": "embedding.types.weight",
    **with_bias({"pooler.dense": "pooler.dense"}),
}
_IGNORED = (r"(lm_head|classifier|qa_outputs)\..+", r"embeddings\.position_ids", r".*rotary_emb\..+")

JINA_EMBEDDINGS_V3 = register(
    EncoderFamily(
        model_type="jina_embeddings_v3",
        architecture="JinaEmbeddingsV3Model",
        also_reads={"model_type": "xlm-roberta", "position_embedding_type": "rotary"},
        adapters=_merge,
        parameter_names=ParameterNames(
            rows={
                **_EMBEDDINGS,
                **with_bias(
                    {
                        "emb_ln": "embedding.norm",
                        f"{_LAYER}.mixer.Wqkv": f"{_OURS}.attention.qkv",
                        f"{_LAYER}.mixer.out_proj": f"{_OURS}.attention.out",
                        f"{_LAYER}.norm1": f"{_OURS}.attention_residual.norm",
                        f"{_LAYER}.mlp.fc1": f"{_OURS}.feedforward.inner",
                        f"{_LAYER}.mlp.fc2": f"{_OURS}.feedforward.out",
                        f"{_LAYER}.norm2": f"{_OURS}.feedforward_residual.norm",
                    }
                ),
            },
            ignored=_IGNORED,
        ),
        other_names=(
            ParameterNames(
                rows={
                    **_EMBEDDINGS,
                    **with_bias(
                        {
                            "embeddings.LayerNorm": "embedding.norm",
                            (
                                f"{_NATIVE}.self_attn.q_proj",
                                f"{_NATIVE}.self_attn.k_proj",
                                f"{_NATIVE}.self_attn.v_proj",
                            ): f"{_OURS}.attention.qkv",
                            f"{_NATIVE}.self_attn.o_proj": f"{_OURS}.attention.out",
                            f"{_NATIVE}.post_attention_layernorm": f"{_OURS}.attention_residual.norm",
                            f"{_NATIVE}.mlp.fc1": f"{_OURS}.feedforward.inner",
                            f"{_NATIVE}.mlp.fc2": f"{_OURS}.feedforward.out",
                            f"{_NATIVE}.post_mlp_layernorm": f"{_OURS}.feedforward_residual.norm",
                        }
                    ),
                },
                ignored=_IGNORED,
            ),
        ),
        prefix="roberta.",
        translate=_translate,
        keys=KEYS
        | {
            "max_position_embeddings": ("max_len", 8194),
            "pad_token_id": ("pad_id", 1),
            "type_vocab_size": ("num_token_types", 1),
            "layer_norm_eps": ("eps", 1e-5),
        },
        constants={
            "positions": "rotary",
            "embedding_norm": True,
            "norm_order": "post",
            "activation_drop_prob": 0.0,
        },
        default_sizes=BASE_SIZES
        | {"d_model": 1024, "ffn_hidden": 4096, "num_heads": 16, "num_layers": 24, "max_len": 8194, "pad_id": 1},
        allowed_values={key: value for key, value in ENCODER_VALUES.items() if key != "position_embedding_type"},
        optional_modules={"pooler": "pooler.dense.weight"},
        custom=CustomConfig(
            keys=ROTARY_KEYS,
            fields=ROTARY_FIELDS,
            read=lambda data: read_rotary(data, 20_000.0 if data.get("model_type") != "xlm-roberta" else 10_000.0),
            write=write_rotary,
            derived_defaults=lambda values: {"rotary_theta": 20_000.0},
        ),
        masked_lm=MaskedLMSchema("JinaEmbeddingsV3ForMaskedLM", LM_HEAD, decoder="lm_head.decoder", activation="gelu"),
        heads={
            "classification": HeadSchema(
                "JinaEmbeddingsV3ForSequenceClassification",
                with_bias({"classifier.dense": "dense", "classifier.out_proj": "out"}),
                activation="tanh",
            ),
            "span": HeadSchema("JinaEmbeddingsV3ForQuestionAnswering", with_bias({"qa_outputs": "out"})),
        },
    )
)
