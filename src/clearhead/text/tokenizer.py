"""Text to token ids, by a model's own tokenizer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Tokenizer as Backend

from clearhead.checkpoints import directory
from clearhead.files import whole_file


@dataclass(frozen=True)
class Tokens:
    """One text as a model sees it.

    Args:
        ids: token ids, special tokens included.
        truncated: whether the text was longer and has been cut.
    """

    ids: list[int]
    truncated: bool


@dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer, from its tokenizer.json or, where there is none, its WordPiece vocab.txt.

    Args:
        backend: the `tokenizers` object; its own padding and truncation are switched off.
        config: the contents of tokenizer_config.json, kept so that other libraries open a saved folder alike.

    >>> from clearhead.text.tokenizer import Tokenizer
    """

    backend: Backend
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """The tokenizer in a model's folder.

        Raises:
            ValueError: no tokenizer, or a broken one.
        """
        config: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                config |= directory.read_json(folder / name)
        if (folder / "tokenizer.json").is_file():
            try:
                backend = Backend.from_file(str(folder / "tokenizer.json"))
            except Exception as error:  # the library raises nothing more precise
                raise ValueError(f"{folder / 'tokenizer.json'} is not a tokenizer: {error}") from None
        elif (folder / "vocab.txt").is_file():
            backend = _wordpiece(folder / "vocab.txt", config)
        else:
            raise ValueError(f"{folder} has no tokenizer: no tokenizer.json and no vocab.txt")
        # some files ask for padding to a fixed length and for a shorter truncation than the model's
        backend.no_padding()
        backend.no_truncation()
        return cls(backend, _with_special_tokens(config, backend))

    @property
    def max_length(self) -> int | None:
        """The longest input that tokenizer_config.json allows; None where it says nothing."""
        length = self.config.get("model_max_length")
        # transformers writes 10^30 for "not known"
        return length if type(length) is int and 0 < length < 10**9 else None

    def encode(self, texts: Sequence[str], max_length: int | None = None) -> list[Tokens]:
        """Each text as tokens, with the model's special tokens, cut to max_length with them kept.

        Raises:
            ValueError: what is not a string, or a string with half a surrogate pair.
        """
        texts = check_texts(texts)
        if max_length is None:
            self.backend.no_truncation()
        else:
            special = self.backend.num_special_tokens_to_add(is_pair=False)
            if max_length <= special:
                raise ValueError(
                    f"max_length must leave room for a token beside the {special} special ones; got {max_length}"
                )
            self.backend.enable_truncation(max_length)
        try:
            encodings = self.backend.encode_batch_fast(texts)
        except TypeError:
            raise ValueError(_first_not_text(texts)) from None
        finally:
            self.backend.no_truncation()
        return [Tokens(encoding.ids, bool(encoding.overflowing)) for encoding in encodings]

    def words(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids, as text."""
        return [self.backend.id_to_token(number) or "" for number in ids]

    def save(self, folder: Path, max_length: int | None) -> None:
        """Writes tokenizer.json and tokenizer_config.json.

        Args:
            folder: where to.
            max_length: what tokenizer_config.json shall say of the longest input.
        """
        with whole_file(folder / "tokenizer.json") as file:
            file.write(self.backend.to_str(pretty=True).encode("utf-8"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.config}
        if max_length is not None:
            config["model_max_length"] = max_length
        directory.write_json(folder / "tokenizer_config.json", config)


def check_texts(texts: Iterable[object]) -> list[str]:
    """The texts as a list.

    Raises:
        ValueError: a single string, or something in the list that is none.
    """
    if isinstance(texts, str):
        raise ValueError("a list of texts is wanted; got a single string: put it in a list")
    listed: list[str] = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {number} is a {type(text).__name__}; a string is wanted")
        listed.append(text)
    return listed


_ROLES = {
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Special tokens by role, as families spell them; for folders that do not say."""


def _with_special_tokens(config: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """A tokenizer_config.json that names its special tokens: without them other libraries cannot pad."""
    guessed = {
        f"{role}_token": next(spelling for spelling in spellings if backend.token_to_id(spelling) is not None)
        for role, spellings in _ROLES.items()
        if any(backend.token_to_id(spelling) is not None for spelling in spellings)
    }
    return guessed | {key: value for key, value in config.items() if value is not None or key not in guessed}


def _wordpiece(path: Path, config: dict[str, Any]) -> Backend:
    """BERT's tokenizer, put together from its vocabulary as Devlin et al. 2018 describe it."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines) if line or number < len(lines) - 1}
    special = {role: _content(config.get(f"{role}_token"), spellings[0], path) for role, spellings in _ROLES.items()}
    for role in ("unk", "cls", "sep"):
        if special[role] not in vocabulary:
            raise ValueError(f"{path} has no {special[role]}, which a WordPiece vocabulary needs")
    switches = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    for key, default in switches.items():
        switches[key] = config.get(key, default)
        if switches[key] not in (True, False, None):
            raise ValueError(
                f"beside {path}, tokenizer_config.json says {key}={switches[key]!r}; true or false is wanted"
            )
    backend = Backend(tokenizers.models.WordPiece(vocabulary, unk_token=special["unk"]))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=switches["do_lower_case"] is not False,
        strip_accents=switches["strip_accents"],
        handle_chinese_chars=switches["tokenize_chinese_chars"] is not False,
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = tokenizers.processors.BertProcessing(
        (special["sep"], vocabulary[special["sep"]]), (special["cls"], vocabulary[special["cls"]])
    )
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.add_special_tokens([token for token in special.values() if token in vocabulary])
    return backend


def _content(token: object, default: str, path: Path) -> str:
    """A special token's text: it stands as itself, or in an object under "content"."""
    text = token.get("content") if isinstance(token, dict) else token
    if text is None and not isinstance(token, dict):
        return default
    if not isinstance(text, str):
        raise ValueError(f"tokenizer_config.json beside {path} has a special token {token!r}; a text is wanted")
    return text


def _first_not_text(texts: Sequence[str]) -> str:
    for number, text in enumerate(texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return (
                f"text {number} holds half a surrogate pair at character {error.start}, which is no Unicode text; "
                'text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") mends it'
            )
    return "the texts could not be tokenised"
