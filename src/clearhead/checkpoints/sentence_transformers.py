"""The sentence-transformers folder: what becomes of the hidden states (modules.json, pooling, normalise, prompts)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from clearhead.io.json import path_inside, read_json, read_json_objects, write_json
from clearhead.models.config import POOLINGS, Pooling

_MODE_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}


@dataclass(frozen=True)
class SentenceSettings:
    """How a model turns hidden states into one vector a text.

    Args:
        pooling: "mean", "cls" or "max".
        normalize: whether vectors are brought to length 1.
        max_length: tokens after which a text is cut, special tokens included; None for as many as the model takes.
        prompts: texts by name that may be put before a text.
        default_prompt: name of the prompt that is used where none is asked for.
        pool_prompt: whether the prompt's own tokens count in the pooling.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pool_prompt: bool = True


def read_settings(folder: Path) -> SentenceSettings:
    """A folder's settings; mean pooling without normalisation where it has no modules.json.

    Raises:
        ValueError: a module, a pooling or an option that is not understood.
    """
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return SentenceSettings()
    pooling, pool_prompt, normalize = _read_modules(modules_file)
    transformer = _optional_json(folder / "sentence_bert_config.json")
    if transformer.get("do_lower_case"):
        raise ValueError(f"{folder / 'sentence_bert_config.json'} says do_lower_case=true, which is not supported")
    max_length = transformer.get("max_seq_length")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise ValueError(
            f"{folder / 'sentence_bert_config.json'} says max_seq_length={max_length!r}; a number of tokens is wanted"
        )
    prompts, default_prompt = _read_prompts(folder / "config_sentence_transformers.json")
    return SentenceSettings(pooling, normalize, max_length, prompts, default_prompt, pool_prompt)


def write_settings(folder: Path, settings: SentenceSettings, d_model: int) -> None:
    """Writes the settings so that sentence-transformers opens the folder, from its version 2 on."""
    names = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(names[1:], start=1))]
    for path in paths[1:]:
        (folder / path).mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "modules.json",
        [
            {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{name}"}
            for idx, (name, path) in enumerate(zip(names, paths, strict=True))
        ],
    )
    modes = {key: settings.pooling == mode for mode, key in _MODE_KEYS.items()}
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": d_model, **modes, "include_prompt": settings.pool_prompt},
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": settings.max_length, "do_lower_case": False})
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.default_prompt,
            "similarity_fn_name": "cosine",
        },
    )


def _read_modules(path: Path) -> tuple[Pooling, bool, bool]:
    pooling: tuple[Pooling, bool] | None = None
    normalize = False
    for module in read_json_objects(path):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            config = PurePosixPath(str(module.get("path", ""))) / "config.json"
            pooling = _read_pooling(path_inside(path, str(config)))
        elif kind == "Normalize":  # its folder is often left out when a model is copied, and holds nothing
            normalize = True
        elif kind != "Transformer":
            raise ValueError(f"{path} names a module of type {module.get('type')!r}, which is not supported")
    if pooling is None:
        raise ValueError(f"{path} names no pooling module: there would be no single vector for a text")
    return *pooling, normalize


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    data = _optional_json(path)
    prompts, default = data.get("prompts") or {}, data.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ValueError(f"{path} says prompts={prompts!r}; an object of texts is wanted")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ValueError(f"{path} says default_prompt_name={default!r}, but its prompts are: {', '.join(prompts)}")
    return prompts, default


def _read_pooling(path: Path) -> tuple[Pooling, bool]:
    data = read_json(path)
    if "pooling_mode" in data:
        modes = data["pooling_mode"] if isinstance(data["pooling_mode"], list) else [data["pooling_mode"]]
    else:
        ours = {key: mode for mode, key in _MODE_KEYS.items()}
        modes = [ours.get(key, key) for key, on in data.items() if key.startswith("pooling_mode_") and on]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(f"{path} asks for pooling by {modes}; one of {', '.join(POOLINGS)} is supported")
    return cast(Pooling, modes[0]), bool(data.get("include_prompt", True))


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
