"""Read and write the settings of sentence-transformers folders: of text encoders and of cross-encoders."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast, get_args

from clearhead.checkpoints.schema.adapters import plain_name
from clearhead.choices import check_choice
from clearhead.io.json import path_inside, read_json, read_json_objects, write_json
from clearhead.models.config import POOLINGS, Pooling

_MODE_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}

_SETTINGS_FILE = "config_sentence_transformers.json"
_TRANSFORMER_FILE = "sentence_bert_config.json"
_CROSS_ENCODER = "CrossEncoder"
"""Value of model_type in the settings of a cross-encoder."""
_OLD_ACTIVATION_KEY = "sbert_ce_default_activation_function"

Activation = Literal["identity", "sigmoid", "tanh"]
_ACTIVATION_PATHS: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "tanh": "torch.nn.modules.activation.Tanh",
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


@dataclass(frozen=True)
class CrossEncoderSettings:
    """Settings that turn the logits of a pair of texts into scores.

    Args:
        activation: "identity", "sigmoid" or "tanh" of the logits.
        max_length: the maximum number of tokens of a pair, including special tokens; None for the maximum of the model.
        prompts: prompts by name, to prepend to the first text of a pair.
        default_prompt: the name of the prompt that is prepended; None for none.

    Raises:
        ValueError: an unknown activation.
    """

    activation: Activation = "sigmoid"
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, get_args(Activation))

    @property
    def prompt(self) -> str:
        """The text that is prepended to the first text of a pair."""
        return self.prompts.get(self.default_prompt or "", "")

    @property
    def config_keys(self) -> dict[str, Any]:
        """The keys of config.json in which sentence-transformers before version 5 finds the activation."""
        return {"sentence_transformers": {"activation_fn": _ACTIVATION_PATHS[self.activation]}}


def read_settings(folder: Path, adapter: str | None = None) -> SentenceSettings:
    """Return the settings of a folder; without a modules.json, mean pooling without normalization.

    Args:
        folder: the model folder.
        adapter: the merged adapter: its prompt is the default one, also where config.json has it (task_instructions).

    Raises:
        ValueError: a module, a pooling or an option is not supported.
    """
    settings = _read_settings(folder)
    if adapter is None:
        return settings
    prompts = _read_prompts(folder / "config.json", "task_instructions")[0] | dict(settings.prompts)
    own = [name for name in prompts if plain_name(name) == plain_name(adapter)]
    return replace(settings, prompts=prompts, default_prompt=own[0]) if own else settings


def _read_settings(folder: Path) -> SentenceSettings:
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return SentenceSettings()
    if _optional_json(folder / _SETTINGS_FILE).get("model_type") == _CROSS_ENCODER:
        return SentenceSettings()  # its encoder without the head
    pooling, pool_prompt, normalize = _read_modules(modules_file)
    max_length = _read_max_length(folder / _TRANSFORMER_FILE)
    prompts, default_prompt = _read_prompts(folder / _SETTINGS_FILE)
    return SentenceSettings(pooling, normalize, max_length, prompts, default_prompt, pool_prompt)


def read_cross_encoder_settings(folder: Path, num_labels: int) -> CrossEncoderSettings:
    """Return the settings of a cross-encoder; without any, sigmoid for one label and the logits for several.

    Args:
        folder: a folder of sentence-transformers, of any version, or of transformers.
        num_labels: number of outputs of the head.

    Raises:
        ValueError: a module, an activation or an option is not supported.
    """
    own = _optional_json(folder / _SETTINGS_FILE) if (folder / "modules.json").is_file() else {}
    if own.get("model_type") == _CROSS_ENCODER:
        for module in read_json_objects(folder / "modules.json"):
            if str(module.get("type", "")).rpartition(".")[2] != "Transformer":
                raise ValueError(
                    f"{folder / 'modules.json'} has a module of type {module.get('type')!r:.80}, which is not supported"
                )
        prompts, default_prompt = _read_prompts(folder / _SETTINGS_FILE)
        max_length = _read_max_length(folder / _TRANSFORMER_FILE)
    else:
        own, prompts, default_prompt, max_length = {}, {}, None, None
    config = read_json(folder / "config.json")
    nested = config.get("sentence_transformers")
    places = (  # versions 5, 4 and 3 of sentence-transformers
        (own.get("activation_fn"), f"{folder / _SETTINGS_FILE} has activation_fn"),
        (
            nested.get("activation_fn") if isinstance(nested, dict) else None,
            f"{folder / 'config.json'} has activation_fn",
        ),
        (config.get(_OLD_ACTIVATION_KEY), f"{folder / 'config.json'} has {_OLD_ACTIVATION_KEY}"),
    )
    activation: Activation = "sigmoid" if num_labels == 1 else "identity"
    for path, source in places:
        if path is not None:
            activation = _activation_of(path, source)
            break
    return CrossEncoderSettings(activation, max_length, prompts, default_prompt)


def write_cross_encoder_settings(folder: Path, settings: CrossEncoderSettings) -> None:
    """Write the settings; sentence-transformers opens the folder as a CrossEncoder.

    Versions before 5 read `CrossEncoderSettings.config_keys` in config.json instead, and have no prompts.
    """
    module = "sentence_transformers.base.modules.transformer.Transformer"
    write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": module}])
    write_json(
        folder / _TRANSFORMER_FILE,
        {
            "transformer_task": "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "scores",
        },
    )
    write_json(
        folder / _SETTINGS_FILE,
        {
            "model_type": _CROSS_ENCODER,
            "activation_fn": _ACTIVATION_PATHS[settings.activation],
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.default_prompt,
        },
    )


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
    write_json(folder / _TRANSFORMER_FILE, {"max_seq_length": settings.max_length, "do_lower_case": False})
    write_json(
        folder / _SETTINGS_FILE,
        {
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.default_prompt,
            "similarity_fn_name": "cosine",
        },
    )


def read_prompts_and_length(folder: Path) -> tuple[int | None, dict[str, str], str | None]:
    """Return the maximum length, the prompts and the name of the default prompt of a folder.

    Raises:
        ValueError: one of them is not supported.
    """
    return _read_max_length(folder / _TRANSFORMER_FILE), *_read_prompts(folder / _SETTINGS_FILE)


def _read_modules(path: Path) -> tuple[Pooling, bool, bool]:
    pooling: tuple[Pooling, bool] | None = None
    normalize, kinds = False, list[str]()
    for module in read_json_objects(path):
        kind = str(module.get("type", "")).rpartition(".")[2]
        kinds.append(kind)
        if kind == "Pooling":
            config = PurePosixPath(str(module.get("path", ""))) / "config.json"
            pooling = _read_pooling(path_inside(path, str(config)))
        elif kind == "Normalize":  # its empty folder is often missing from copies of a model
            normalize = True
        elif kind != "Transformer":
            raise ValueError(f"{path} has a module of type {module.get('type')!r:.80}, which is not supported")
    if pooling is None:
        raise ValueError(f"{path} has no pooling module, which reduces a text to a single vector")
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{path} has the modules {', '.join(kinds):.200}; expected Transformer, Pooling and perhaps Normalize, in "
            "this order"
        )
    return *pooling, normalize


def _read_max_length(path: Path) -> int | None:
    data = _optional_json(path)
    if data.get("do_lower_case"):
        raise ValueError(f"{path} has do_lower_case=true, which is not supported")
    max_length = data.get("max_seq_length")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise ValueError(f"{path} has max_seq_length={max_length!r:.80}; expected a number of tokens")
    return max_length


def _activation_of(path: object, source: str) -> Activation:
    """Return the activation of a class, such as "torch.nn.Sigmoid"."""
    name = str(path).rpartition(".")[2].lower()
    if not str(path).startswith("torch.") or name not in get_args(Activation):
        raise ValueError(f"{source}={path!r:.80}. Use one of: {', '.join(_ACTIVATION_PATHS.values())}")
    return cast(Activation, name)


def _read_prompts(path: Path, key: str = "prompts") -> tuple[dict[str, str], str | None]:
    data = _optional_json(path)
    prompts, default = data.get(key) or {}, data.get("default_prompt_name")
    if isinstance(prompts, dict):  # null stands for no prompt
        prompts = {name: prompt for name, prompt in prompts.items() if prompt is not None}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ValueError(f"{path} has {key}={prompts!r:.80}; expected an object of texts")
    if data.get("truncate_dim") is not None:
        raise ValueError(
            f"{path} has truncate_dim={data['truncate_dim']!r:.80}, which is not supported. Remove it, and pass "
            "truncate_dim to encode"
        )
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ValueError(f"{path} has default_prompt_name={default!r:.80}, but its prompts are: {', '.join(prompts)}")
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
