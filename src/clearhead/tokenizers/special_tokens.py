"""Read the special tokens in tokenizer_config.json and special_tokens_map.json."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clearhead.io.json import read_json

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Roles of special tokens; their keys in a config are "bos_token" and so on."""

_LISTS = ("additional_special_tokens", "extra_special_tokens")


def read_config(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json merged over special_tokens_map.json; {} if a folder has neither.

    Args:
        folder: the model folder.

    Raises:
        ValueError: a file is not a JSON object, or a special token is not a text.
    """
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            # a null does not override the other file
            config |= {
                key: value for key, value in read_json(folder / name).items() if value is not None or key not in config
            }
    _check_added_tokens(config.get("added_tokens_decoder"), folder)
    for token in _special_tokens(config):
        if content(token) is None:
            raise ValueError(
                f"tokenizer_config.json or special_tokens_map.json in {folder} has a special token {token!r:.80}; "
                'expected a text, or an object with a text in "content"'
            )
    return config


def content(token: object) -> str | None:
    """Return the text of a special token, which is a string or an object with "content"; None for other values."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def special_token(config: dict[str, Any], role: str, default: str) -> str:
    """Return the special token of a role, such as "eos", or else the default."""
    return content(config.get(f"{role}_token")) or default


def all_special_tokens(config: dict[str, Any]) -> list[str]:
    """Return all special tokens of a config without duplicates: first those with a role."""
    return list(dict.fromkeys(text for token in _special_tokens(config) if (text := content(token)) is not None))


def additional_tokens(config: dict[str, Any]) -> list[str]:
    """Return the special tokens of a config without a role."""
    return all_special_tokens({key: config.get(key) for key in _LISTS})


def added_token_ids(config: dict[str, Any]) -> dict[str, int]:
    """Return the ids of the added tokens of a config, special or not."""
    ids = {}
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        text = content(token)
        if text is not None:
            ids[text] = int(number)
    return ids


def max_length(config: dict[str, Any]) -> int | None:
    """Return the maximum number of input tokens of a config; None if it has no limit."""
    length = config.get("model_max_length")
    # transformers writes 10^30 for no limit
    return length if type(length) is int and 0 < length < 10**9 else None


def _check_added_tokens(decoder: object, folder: Path) -> None:
    if decoder is not None and not (isinstance(decoder, dict) and all(_is_id(number) for number in decoder)):
        raise ValueError(
            f"{folder / 'tokenizer_config.json'}: expected added_tokens_decoder to map ids to tokens, such as "
            f'{{"0": {{"content": "<pad>"}}}}; got {decoder!r:.60}'
        )


def _is_id(number: str) -> bool:
    return number.isascii() and number.isdecimal() and len(number) < 20


def _special_tokens(config: dict[str, Any]) -> Iterator[object]:
    yield from (token for role in ROLES if (token := config.get(f"{role}_token")) is not None)
    for key in _LISTS:
        tokens = config.get(key) or []
        yield from tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else [tokens]
    decoder = config.get("added_tokens_decoder")
    for token in decoder.values() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and token.get("special"):
            yield token
