"""Read and write the settings of sentence-transformers' SparseEncoder folders (SPLADE)."""

from pathlib import Path
from typing import Any

from clearhead.checkpoints.sentence_transformers import SentenceSettings, read_prompts_and_length
from clearhead.io.json import path_inside, read_json, read_json_objects, write_json

_POOLING = {"pooling_strategy": "max", "activation_function": "relu"}


def read_sparse_settings(folder: Path) -> SentenceSettings:
    """Return the maximum length and the prompts of a folder; without a modules.json, the defaults.

    Raises:
        ValueError: a module, a pooling or an option is not supported.
    """
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return SentenceSettings()
    pooled = False
    for module in read_json_objects(modules_file):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "SpladePooling":
            _check_pooling(path_inside(modules_file, f"{module.get('path', '')}/config.json"))
            pooled = True
        elif kind not in ("Transformer", "MLMTransformer"):
            raise ValueError(f"{modules_file} has a module of type {module.get('type')!r:.80}, which is not supported")
    if not pooled:
        raise ValueError(f"{modules_file} has no SpladePooling; open the folder with TextEncoder")
    max_length, prompts, default = read_prompts_and_length(folder)
    return SentenceSettings(max_length=max_length, prompts=prompts, default_prompt=default)


def write_sparse_settings(folder: Path, settings: SentenceSettings) -> None:
    """Write the settings; sentence-transformers opens the folder as a SparseEncoder, from version 5.4 on."""
    (folder / "1_SpladePooling").mkdir(parents=True, exist_ok=True)
    modules = {
        "": "sentence_transformers.base.modules.transformer.Transformer",
        "1_SpladePooling": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
    }
    listed: list[dict[str, Any]] = [
        {"idx": idx, "name": str(idx), "path": path, "type": kind} for idx, (path, kind) in enumerate(modules.items())
    ]
    write_json(folder / "modules.json", listed)
    write_json(folder / "1_SpladePooling" / "config.json", _POOLING)
    transformer: dict[str, Any] = {
        "transformer_task": "fill-mask",
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
        "module_output_name": "token_embeddings",
    }
    write_json(folder / "sentence_bert_config.json", transformer)
    own = {"model_type": "SparseEncoder", "prompts": dict(settings.prompts), "similarity_fn_name": "dot"}
    write_json(folder / "config_sentence_transformers.json", own | {"default_prompt_name": settings.default_prompt})


def _check_pooling(path: Path) -> None:
    data = read_json(path)
    for key, value in _POOLING.items():
        if data.get(key, value) != value:
            raise ValueError(f"{path} has {key}={data[key]!r:.80}, which is not supported; only {value!r} is")
