"""Read and write the settings of late-interaction folders (ColBERT): sentence-transformers' and PyLate's."""

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.checkpoints.sentence_transformers import read_prompts_and_length
from clearhead.io.json import path_inside, read_json, read_json_objects, write_json
from clearhead.io.safetensors import read_safetensors, write_weights

_FILE, _TRANSFORMER_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"
_MODEL_TYPE, _PYLATE_TYPE = "MultiVectorEncoder", "ColBERT"
_WEIGHT = "linear.weight"

_PYLATE_EXPANSION = ("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens")
_PYLATE_KEYS = (
    *("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words", "query_expansion"),
    *_PYLATE_EXPANSION,
)
_PYLATE_LENGTH = 32
"""Length of expanded queries where a folder of PyLate has none."""

_KEYS = ("__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name", *_PYLATE_KEYS)
_SIMILARITIES = (None, "maxsim", "MaxSim", "cosine", "dot")
"""sentence-transformers scores with MaxSim where PyLate or an older version named a similarity of single vectors."""

_TRANSFORMER: dict[str, Any] = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
_TRANSFORMER_KEYS = ("max_seq_length", "do_lower_case", "query_length", "document_length", "query_expansion")
_TOKEN_LEVEL = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
_PROJECTION = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity", "use_residual": False}
_MASK = {"skiplist_tasks": ["document"], "keep_only_token_ids": None}


@dataclass(frozen=True)
class QueryExpansion:
    """How short queries are extended by mask tokens, each of which becomes a vector of the query.

    Args:
        length: number of tokens to which queries are extended.
        attend: whether the other tokens attend to the mask tokens.
        truncate: whether longer queries are truncated to this length.
        token: the token; None for the mask token.
    """

    length: int
    attend: bool = False
    truncate: bool = True
    token: str | None = None


@dataclass(frozen=True)
class MultiVectorSettings:
    """Settings of a late-interaction encoder.

    Args:
        prompts: prompts by name: "query" and "document", such as "[Q] " and "[D] ".
        default_prompt: the name of the default prompt, which other libraries use.
        max_length: the maximum number of tokens of a text; None for the maximum of the tokenizer.
        query_length: the maximum number of tokens of a query; None for `max_length`.
        document_length: the maximum number of tokens of a document; None for `max_length`.
        expansion: how short queries are extended; None for queries without expansion.
        skipped: tokens of documents that get no vector, such as punctuation.
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_length: int | None = None
    query_length: int | None = None
    document_length: int | None = None
    expansion: QueryExpansion | None = None
    skipped: tuple[str, ...] = ()


def read_multi_vector_folder(folder: Path, width: int) -> tuple[MultiVectorSettings, Tensor, tuple[str, ...]]:
    """Return the settings of a folder, its projection (K, D), and the prefixes that are tokens of their own.

    Args:
        folder: the model folder.
        width: width D of the encoder's hidden states.

    Raises:
        ValueError: the folder holds no late-interaction model, or a module or an option is not supported.
    """
    if not (folder / "modules.json").is_file():
        raise ValueError(
            f"{folder} has no modules.json with the projection of a late-interaction model. Folders of ColBERT's first "
            "code are not supported: save them with sentence-transformers' MultiVectorEncoder"
        )
    own = read_json(folder / _FILE) if (folder / _FILE).is_file() else {}
    marked = own.get("model_type") == _PYLATE_TYPE or any(key in own for key in _PYLATE_KEYS)
    if own.get("model_type") not in (_MODEL_TYPE, _PYLATE_TYPE) and not marked:
        raise ValueError(f"{folder} holds no late-interaction model; open it with TextEncoder")
    _check_keys(own, folder / _FILE, _KEYS)
    if own.get("similarity_fn_name") not in _SIMILARITIES:
        raise ValueError(_unsupported(folder / _FILE, "similarity_fn_name", own["similarity_fn_name"], "maxsim"))
    projection, skipped = _read_modules(folder, own, width)
    transformer = _read_transformer(folder / _TRANSFORMER_FILE)
    knobs = (_pylate_knobs(own) if marked else {}) | transformer
    max_length, prompts, default = read_prompts_and_length(folder)
    prefixes = []
    for name in ("query", "document"):
        prefix = own.get(f"{name}_prefix") or ""
        if not isinstance(prefix, str):
            raise ValueError(_unsupported(folder / _FILE, f"{name}_prefix", prefix, "a text"))
        if prefix:  # PyLate inserts it before the prompt
            prompts[name] = prefix + prompts.get(name, "").removeprefix(prefix)
            prefixes.append(prefix)
    settings = MultiVectorSettings(
        prompts,
        default,
        max_length,
        _length(knobs, "query_length", folder),
        _length(knobs, "document_length", folder),
        _expansion(knobs.get("query_expansion"), folder),
        skipped,
    )
    return settings, projection, tuple(prefixes)


def write_multi_vector_folder(folder: Path, settings: MultiVectorSettings, projection: Tensor) -> None:
    """Write settings and projection (K, D); sentence-transformers opens the folder, from version 6.2 on."""
    base, own = "sentence_transformers.base.modules", "sentence_transformers.multi_vector_encoder.modules"
    modules = {
        "": f"{base}.transformer.Transformer",
        "1_Dense": f"{base}.dense.Dense",
        "2_MultiVectorMask": f"{own}.multi_vector_mask.MultiVectorMask",
        "3_Normalize": f"{base}.normalize.Normalize",
    }
    _write_modules(folder, modules, projection)
    write_json(folder / "2_MultiVectorMask" / "config.json", {"skiplist_words": list(settings.skipped), **_MASK})
    write_json(folder / "3_Normalize" / "config.json", _TOKEN_LEVEL)
    lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
    transformer = _TRANSFORMER | {key: value for key, value in lengths.items() if value is not None}
    if (expansion := settings.expansion) is not None:
        strategy = "fixed" if expansion.truncate else "min"
        transformer["query_expansion"] = {
            "strategy": strategy,
            "attend": expansion.attend,
            "token": expansion.token,
            "length": expansion.length,
        }
    if settings.max_length is not None:
        transformer["max_seq_length"] = settings.max_length
    write_json(folder / _TRANSFORMER_FILE, transformer)
    own_settings = {"model_type": _MODEL_TYPE, "prompts": dict(settings.prompts), "similarity_fn_name": "maxsim"}
    write_json(folder / _FILE, own_settings | {"default_prompt_name": settings.default_prompt})


def write_pylate_folder(folder: Path, settings: MultiVectorSettings, projection: Tensor) -> None:
    """Write settings and projection (K, D) in the format of PyLate, which sentence-transformers opens, too.

    Raises:
        ValueError: PyLate has no such query expansion.
    """
    expansion = settings.expansion
    if expansion is not None and (not expansion.truncate or expansion.token is not None):
        raise ValueError(
            "PyLate's query expansion truncates queries and has mask tokens. Use sentence-transformers' format"
        )
    modules = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    _write_modules(folder, modules, projection)
    write_json(folder / _TRANSFORMER_FILE, {"max_seq_length": settings.max_length, "do_lower_case": False})
    names = ("query", "document")
    prompts = {name: text for name, text in settings.prompts.items() if name not in names}
    default = settings.default_prompt if settings.default_prompt in prompts else None
    own = {
        "model_type": _PYLATE_TYPE,
        "prompts": prompts,
        "default_prompt_name": default,
        "similarity_fn_name": "MaxSim",
    }
    write_json(
        folder / _FILE,
        own
        | {f"{name}_prefix": settings.prompts.get(name, "") for name in names}
        | {
            "query_length": settings.query_length if expansion is None else expansion.length,
            "document_length": settings.document_length,
            "do_query_expansion": expansion is not None,
            "attend_to_expansion_tokens": expansion is not None and expansion.attend,
            "skiplist_words": list(settings.skipped),
        },
    )


_MAX_SHOWN = 300
"""Maximum number of characters of the tensors in a message."""


def _read_modules(folder: Path, own: Mapping[str, Any], width: int) -> tuple[Tensor, tuple[str, ...]]:
    """Return the projection, and the tokens of documents that get no vector."""
    file = folder / "modules.json"
    found: dict[str, str] = {}
    for module in read_json_objects(file):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind in found or kind not in ("Transformer", "Dense", "MultiVectorMask", "Normalize", "Pooling"):
            again = " a second time" if kind in found else ""
            raise ValueError(f"{file} has a module of type {module.get('type')!r:.80}{again}, which is not supported")
        found[kind] = str(module.get("path", ""))
    native = own.get("model_type") == _MODEL_TYPE
    expected = ["Transformer", "Dense", *(["MultiVectorMask", "Normalize"] if native else [])]
    # the mask and the norm commute. The first versions of PyLate left a pooling that nothing used
    kinds = [kind for kind in found if native or kind not in ("Pooling", "Normalize")]
    if kinds[:2] != expected[:2] or sorted(kinds) != sorted(expected):
        raise ValueError(f"{file} has the modules {', '.join(found)}; expected {', '.join(expected)}")
    projection = _read_projection(file, found["Dense"], width)
    if not native:
        words = own.get("skiplist_words")
        return projection, _words(list(string.punctuation) if words is None else words, folder / _FILE)
    norm = path_inside(file, f"{found['Normalize']}/config.json")
    _check_values(norm, read_json(norm), _TOKEN_LEVEL)
    mask = path_inside(file, f"{found['MultiVectorMask']}/config.json")
    data = read_json(mask)
    _check_values(mask, data, _MASK, ("skiplist_words",))
    return projection, _words(data.get("skiplist_words") or [], mask)


def _read_projection(file: Path, name: str, width: int) -> Tensor:
    config = path_inside(file, f"{name}/config.json")
    data = read_json(config)
    _check_values(config, data, _PROJECTION | _TOKEN_LEVEL, ("in_features", "out_features"))
    weights = path_inside(file, f"{name}/model.safetensors")
    if not weights.is_file():
        raise ValueError(f"{config.parent} has no model.safetensors with the projection")
    tensors = read_safetensors(weights)
    weight = tensors.get(_WEIGHT, torch.empty(0))
    if list(tensors) != [_WEIGHT] or weight.ndim != 2 or weight.shape[1] != width:
        shapes = ", ".join(f"{key} {tuple(tensor.shape)}" for key, tensor in tensors.items())
        raise ValueError(f"{weights} has the tensors {shapes:.{_MAX_SHOWN}}; expected {_WEIGHT} of shape (K, {width})")
    if not weight.is_floating_point() or not weight.isfinite().all():
        raise ValueError(f"{weights}: tensor {_WEIGHT} has the dtype {weight.dtype}; expected finite floats")
    return weight


def _read_transformer(path: Path) -> dict[str, Any]:
    """Return the lengths and the query expansion of sentence_bert_config.json."""
    data = read_json(path) if path.is_file() else {}
    allowed = _TRANSFORMER | {"unpad_inputs": None, "processing_kwargs": None}
    _check_values(path, {key: value for key, value in data.items() if value is not None}, allowed, _TRANSFORMER_KEYS)
    return {key: data[key] for key in _TRANSFORMER_KEYS[2:] if key in data}


def _pylate_knobs(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyLate's settings under the names of sentence-transformers."""
    knobs = {key: own[key] for key in ("query_length", "document_length", "query_expansion") if key in own}
    if "query_expansion" not in knobs:
        if own.get("do_query_expansion") is False:
            return knobs | {"query_expansion": None}
        attend = own.get("attend_to_expansion_tokens", own.get("attend_to_mask_tokens"))
        length = knobs.pop("query_length", None) or _PYLATE_LENGTH
        knobs["query_expansion"] = {"strategy": "fixed", "attend": bool(attend), "length": length}
    return knobs


def _expansion(data: object, folder: Path) -> QueryExpansion | None:
    if data is None:
        return None
    name = f"the query_expansion of {folder}"
    if not isinstance(data, dict) or data.get("strategy") not in ("fixed", "min"):
        raise ValueError(f'{name} is {data!r:.80}; expected an object with the strategy "fixed" or "min"')
    if unknown := sorted(set(data) - {"strategy", "attend", "token", "length"}):
        raise ValueError(f"{name} has {unknown[0]!r:.80}, which is not supported")
    attend, token, length = data.get("attend", False), data.get("token"), data.get("length")
    if type(length) is not int or length < 1 or type(attend) is not bool or not isinstance(token, str | None):
        raise ValueError(f"{name} is {data!r:.80}; expected a length of at least 1, a bool attend, and a text as token")
    return QueryExpansion(length, attend, data["strategy"] == "fixed", token)


def _length(knobs: Mapping[str, Any], key: str, folder: Path) -> int | None:
    length = knobs.get(key)
    if length is not None and (type(length) is not int or length < 1):
        raise ValueError(f"{folder} has {key}={length!r:.80}; expected a number of tokens")
    return length


def _words(words: object, path: Path) -> tuple[str, ...]:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{path} has skiplist_words={words!r:.60}; expected a list of tokens")
    return tuple(words)


def _check_keys(data: Mapping[str, Any], path: Path, known: Iterable[str]) -> None:
    if unknown := sorted(set(data) - set(known)):
        raise ValueError(f"{path} has {unknown[0]}={data[unknown[0]]!r:.60}, which is not supported")


def _check_values(path: Path, data: Mapping[str, Any], expected: Mapping[str, Any], free: tuple[str, ...] = ()) -> None:
    """Raise an error for a key that has another value than expected, or that is not known."""
    _check_keys(data, path, (*expected, *free))
    for key, value in expected.items():
        if data.get(key, value) != value:
            raise ValueError(_unsupported(path, key, data[key], value))


def _unsupported(path: Path, key: str, value: object, expected: object) -> str:
    return f"{path} has {key}={value!r:.60}, which is not supported; only {expected!r} is"


def _write_modules(folder: Path, modules: Mapping[str, str], projection: Tensor) -> None:
    for path in modules:
        (folder / path).mkdir(parents=True, exist_ok=True)
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules.items())]
    write_json(folder / "modules.json", listed)
    out_features, in_features = projection.shape
    config = {"in_features": in_features, "out_features": out_features, **_PROJECTION, **_TOKEN_LEVEL}
    del config["use_residual"]  # versions of sentence-transformers before 5.7 do not know it
    write_json(folder / "1_Dense" / "config.json", config)
    write_weights(folder / "1_Dense" / "model.safetensors", {_WEIGHT: projection.detach().cpu().contiguous()})
