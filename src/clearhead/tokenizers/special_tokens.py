"""What tokenizer_config.json and special_tokens_map.json say of special tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clearhead.io.json import read_json

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""What special tokens are for; a config names them as "bos_token" and so on."""

_LISTS = ("additional_special_tokens", "extra_special_tokens")


def read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json; {} where a folder has neither.

    Raises:
        ValueError: a file is no JSON object, or a special token is no text.
    """
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            # a null says nothing: it must not hide what the other file says
            config |= {
                key: value for key, value in read_json(folder / name).items() if value is not None or key not in config
            }
    _check_placed(config.get("added_tokens_decoder"), folder)
    for token in _all(config):
        if content(token) is None:
            raise ValueError(
                f"tokenizer_config.json or special_tokens_map.json in {folder} has a special token {token!r}; "
                'a text is wanted, or an object with one under "content"'
            )
    return config


def content(token: object) -> str | None:
    """A special token's text: it stands as itself, or in an object under "content"."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def special_token(config: dict[str, Any], role: str, default: str) -> str:
    """The special token of a role, such as "eos"."""
    return content(config.get(f"{role}_token")) or default


def all_special_tokens(config: dict[str, Any]) -> list[str]:
    """All special tokens that a config names: those with a role, then the others, each once."""
    return list(dict.fromkeys(text for token in _all(config) if (text := content(token)) is not None))


def additional_tokens(config: dict[str, Any]) -> list[str]:
    """The special tokens that a config names without a role."""
    return all_special_tokens({key: config.get(key) for key in _LISTS})


def added_token_ids(config: dict[str, Any]) -> dict[str, int]:
    """The ids that a config gives to added tokens, special or not."""
    found = {}
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        text = content(token)
        if text is not None:
            found[text] = int(number)
    return found


def max_length(config: dict[str, Any]) -> int | None:
    """The longest input that a config allows; None where it says nothing."""
    length = config.get("model_max_length")
    # transformers writes 10^30 for "not known"
    return length if type(length) is int and 0 < length < 10**9 else None


def _check_placed(decoder: object, folder: Path) -> None:
    if decoder is not None and not (isinstance(decoder, dict) and all(_is_id(number) for number in decoder)):
        raise ValueError(
            f"{folder / 'tokenizer_config.json'}: added_tokens_decoder maps ids to tokens, such as "
            f'{{"0": {{"content": "<pad>"}}}}; got {decoder!r:.60}'
        )


def _is_id(number: str) -> bool:
    return number.isascii() and number.isdecimal() and len(number) < 20


def _all(config: dict[str, Any]) -> Iterator[object]:
    yield from (token for role in ROLES if (token := config.get(f"{role}_token")) is not None)
    for key in _LISTS:
        tokens = config.get(key) or []
        yield from tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else [tokens]
    decoder = config.get("added_tokens_decoder")
    for token in decoder.values() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and token.get("special"):
            yield token
