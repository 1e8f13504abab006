"""Read and write generation_config.json, in the format of transformers."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from clearhead.checkpoints.seq2seq_family import GENERATION_KEYS
from clearhead.generation.config import GenerationConfig
from clearhead.io.json import read_json, write_json

_NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "num_beam_groups": (1,),
    "diversity_penalty": (0, 0.0),
    "typical_p": (1, 1.0),
    "min_p": (0, 0.0),
    "top_h": (),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "penalty_alpha": (0, 0.0),
    "encoder_repetition_penalty": (1, 1.0),
    "guidance_scale": (1, 1.0),
    "remove_invalid_values": (False,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "exponential_decay_length_penalty": (),
    "sequence_bias": (),
    "constraints": (),
    "force_words_ids": (),
    "dola_layers": (),
    "watermarking_config": (),
    "stop_strings": (),
    "max_time": (),
    "token_healing": (False,),
}
"""Keys of unsupported options, with the values that leave the output unchanged, in addition to null."""

_IGNORED_KEYS = frozenset(
    {
        *("transformers_version", "_from_model_config", "bos_token_id", "pad_token_id", "use_cache", "low_memory"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        *("cache_implementation", "cache_config", "compile_config", "disable_compile", "num_assistant_tokens"),
        *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_early_exit"),
        *("assistant_lookbehind", "target_lookbehind", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("generation_kwargs", "_commit_hash", "is_assistant", "prefill_chunk_size", "return_legacy_cache"),
    }
)
"""Keys that never change the output."""

_NOT_IN_TRANSFORMERS = ("seed",)
"""Fields that the file does not have."""

_RENAMED = ("beam_size", "start_id", "eos_ids")
"""Fields with another name in the file."""


def load_generation_config(folder: Path, beam_size: int = 5) -> GenerationConfig:
    """Read the generation config of a checkpoint, from generation_config.json or the older keys of config.json.

    Args:
        folder: the checkpoint's folder.
        beam_size: the default, if the checkpoint has no num_beams.

    Raises:
        ValueError: a wrong value, or a key that changes the output and is not supported.
    """
    path = folder / "generation_config.json"
    if path.is_file():
        return config_from_dict(read_json(path), beam_size, str(path))
    data = read_json(folder / "config.json")
    values = {key: value for key, value in data.items() if key in GENERATION_KEYS}
    if values.pop("force_bos_token_to_be_generated", False):
        values.setdefault("forced_bos_token_id", data.get("bos_token_id", 0))
    return config_from_dict(values, beam_size, str(folder / "config.json"))


def load_checked_config(folder: Path, vocab_size: int, model_max_length: int | None) -> GenerationConfig:
    """Read a generation config as `load_generation_config`, and check that the model can generate with it.

    Args:
        folder: the checkpoint's folder.
        vocab_size: number of tokens in the target's vocabulary.
        model_max_length: longest target of the model; None for no limit.

    Raises:
        ValueError: a wrong value, a token id outside the vocabulary, more beams than tokens, or a minimum length above
            the maximum; the message names the file.
    """
    path = folder / "generation_config.json"
    path = path if path.is_file() else folder / "config.json"
    try:
        config = load_generation_config(folder)
        config.check_ids(vocab_size)
        if config.beam_size > vocab_size:
            raise ValueError(f"num_beams is {config.beam_size}; expected at most the {vocab_size} tokens")
        config.max_target_length(1, model_max_length)
    except IndexError:
        raise ValueError(f"{path}: decoder_start_token_id is an empty list; give one token id") from None
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    return config


def save_generation_config(
    config: GenerationConfig, folder: Path, *, pad_id: int, start_id: int, eos_ids: tuple[int, ...]
) -> None:
    """Write generation_config.json as transformers reads it.

    Args:
        config: the config.
        folder: the checkpoint's folder.
        pad_id, start_id, eos_ids: the model's token ids; those of the config take precedence.
    """
    data: dict[str, Any] = {"num_beams": config.beam_size}
    for field in fields(GenerationConfig):
        value = getattr(config, field.name)
        if field.name not in (*_NOT_IN_TRANSFORMERS, *_RENAMED) and value not in (field.default, None):
            data[field.name] = [list(words) for words in value] if field.name == "bad_words_ids" else value
    if config.forced_eos_token_id:
        data["forced_eos_token_id"] = _one_or_list(config.forced_eos_token_id)
    data["decoder_start_token_id"] = start_id if config.start_id is None else config.start_id
    data |= {"eos_token_id": _one_or_list(config.eos_ids or eos_ids), "pad_token_id": pad_id}
    write_json(folder / "generation_config.json", data)


def config_from_dict(data: Mapping[str, Any], beam_size: int, origin: str) -> GenerationConfig:
    """Return the config that the keys of a generation_config.json, or of a task in config.json, describe.

    Args:
        data: the keys and values.
        beam_size: the default without num_beams.
        origin: the file, for error messages.

    Raises:
        ValueError: a wrong value, or a key that changes the output and is not supported.
    """
    values: dict[str, Any] = {"beam_size": beam_size}
    for key, value in data.items():
        if not _changes_output(key, value, data, origin):
            continue
        values |= _parsed(key, value, origin)
    if values.get("do_sample") and "num_beams" not in data:
        values["beam_size"] = 1
    if values["beam_size"] == 1 and values.get("num_return_sequences", 1) > 1 and not values.get("do_sample"):
        values["num_return_sequences"] = 1
    try:
        return GenerationConfig(**values)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None


def _changes_output(key: str, value: object, data: Mapping[str, Any], origin: str) -> bool:
    """Return whether a key must be read.

    Raises:
        ValueError: it changes the output in a way that is not supported.
    """
    if value is None or key in _IGNORED_KEYS:
        return False
    if key in _NEUTRAL_VALUES:
        if value not in _NEUTRAL_VALUES[key]:
            raise ValueError(f"{origin} says {key}={value!r:.80}, which changes the output and is not supported")
        return False
    # some files set these to 0 for a search, which does not use them
    return not (key in ("temperature", "top_p") and value == 0 and not data.get("do_sample"))


def _parsed(key: str, value: Any, origin: str) -> dict[str, Any]:
    """Return the field of `GenerationConfig` that a key sets, with its value."""
    match key:
        case "num_beams":
            return {"beam_size": value}
        case "decoder_start_token_id":
            return {"start_id": _ids(value)[0]}
        case "eos_token_id":
            return {"eos_ids": _ids(value)}
        case "forced_eos_token_id":
            return {key: _ids(value)}
        case "bad_words_ids":
            return {key: tuple(_ids(words) for words in (value if isinstance(value, list) else [[value]]))}
        case "forced_bos_token_id":
            (token_id,) = _ids(value)[:1] or (None,)
            return {key: token_id}
    if key in {field.name for field in fields(GenerationConfig)} - {*_NOT_IN_TRANSFORMERS, *_RENAMED}:
        return {key: value}
    raise ValueError(
        f"{origin} says {key}={value!r:.80}, which is unknown and may change the output; "
        "if it does not, remove it from the file"
    )


def _ids(value: object) -> tuple[int, ...]:
    ids = tuple(value) if isinstance(value, list) else (value,)
    if not all(type(token_id) is int for token_id in ids):
        raise ValueError(f"token ids are whole numbers; got {value!r:.80}")
    return ids


def _one_or_list(ids: tuple[int, ...]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)
