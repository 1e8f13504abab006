"""Read and write the settings of a sentence-transformers folder: pooling, normalization, maximum length, prompts."""

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
    """Settings that turn the hidden states of a text into one vector.

    Args:
        pooling: "mean", "cls" or "max".
        normalize: whether vectors are scaled to length 1.
        max_length: the maximum number of tokens, including special tokens; None for the maximum of the model.
        prompts: prompts by name, to prepend to a text.
        default_prompt: the name of the default prompt.
        pool_prompt: whether the pooling includes the tokens of the prompt.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pool_prompt: bool = True

    def prompt_text(self, prompt: str | None) -> str:
        """Return the text that is put before each text.

        Args:
            prompt: name of a prompt, or the text itself; None for the default prompt.
        """
        if prompt is None:
            return self.prompts.get(self.default_prompt or "", "")
        return self.prompts.get(prompt, prompt)


def read_settings(folder: Path) -> SentenceSettings:
    """Return the settings of a folder; without a modules.json, mean pooling without normalization.

    Raises:
        ValueError: a module, a pooling or an option is not supported.
    """
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return SentenceSettings()
    pooling, pool_prompt, normalize = _read_modules(modules_file)
    transformer = _optional_json(folder / "sentence_bert_config.json")
    if transformer.get("do_lower_case"):
        raise ValueError(f"{folder / 'sentence_bert_config.json'} has do_lower_case=true, which is not supported")
    max_length = transformer.get("max_seq_length")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise ValueError(
            f"{folder / 'sentence_bert_config.json'} has max_seq_length={max_length!r}; expected a number of tokens"
        )
    prompts, default_prompt = _read_prompts(folder / "config_sentence_transformers.json")
    return SentenceSettings(pooling, normalize, max_length, prompts, default_prompt, pool_prompt)


def write_settings(folder: Path, settings: SentenceSettings, d_model: int) -> None:
    """Write the settings; sentence-transformers opens the folder, from version 2 on."""
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
        elif kind == "Normalize":  # its empty folder is often missing from copies of a model
            normalize = True
        elif kind != "Transformer":
            raise ValueError(f"{path} has a module of type {module.get('type')!r}, which is not supported")
    if pooling is None:
        raise ValueError(f"{path} has no pooling module, which reduces a text to a single vector")
    return *pooling, normalize


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    data = _optional_json(path)
    prompts, default = data.get("prompts") or {}, data.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ValueError(f"{path} has prompts={prompts!r}; expected an object of texts")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ValueError(f"{path} has default_prompt_name={default!r}, but its prompts are: {', '.join(prompts)}")
    return prompts, default


def _read_pooling(path: Path) -> tuple[Pooling, bool]:
    data = read_json(path)
    if "pooling_mode" in data:
        modes = data["pooling_mode"] if isinstance(data["pooling_mode"], list) else [data["pooling_mode"]]
    else:
        ours = {key: mode for mode, key in _MODE_KEYS.items()}
        modes = [ours.get(key, key) for key, on in data.items() if key.startswith("pooling_mode_") and on]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(f"{path} has the pooling modes {modes}. Use one of: {', '.join(POOLINGS)}")
    return cast(Pooling, modes[0]), bool(data.get("include_prompt", True))


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
