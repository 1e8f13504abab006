"""Text to token ids, by a model's own tokenizer."""

from collections.abc import Sequence
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
        config_file = folder / "tokenizer_config.json"
        config = directory.read_json(config_file) if config_file.is_file() else {}
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
        return cls(backend, config)

    @property
    def max_length(self) -> int | None:
        """The longest input that tokenizer_config.json allows; None where it says nothing."""
        length = self.config.get("model_max_length")
        # transformers writes 10^30 for "not known"
        return length if isinstance(length, int) and length < 10**9 else None

    def encode(self, texts: Sequence[str], max_length: int | None = None) -> list[Tokens]:
        """Each text as tokens, with the model's special tokens, cut to max_length with them kept.

        Raises:
            ValueError: what is not a string, or a string with half a surrogate pair.
        """
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
            encodings = self.backend.encode_batch_fast(list(texts))
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


def _wordpiece(path: Path, config: dict[str, Any]) -> Backend:
    """BERT's tokenizer, put together from its vocabulary as Devlin et al. 2018 describe it."""
    with path.open(encoding="utf-8", newline="\n") as file:
        vocabulary = {line.rstrip("\r\n"): number for number, line in enumerate(file)}
    named = {role: config.get(f"{role}_token", f"[{role.upper()}]") for role in ("unk", "cls", "sep", "pad", "mask")}
    special = {role: token["content"] if isinstance(token, dict) else token for role, token in named.items()}
    for role in ("unk", "cls", "sep"):
        if special[role] not in vocabulary:
            raise ValueError(f"{path} has no {special[role]}, which a WordPiece vocabulary needs")
    backend = Backend(tokenizers.models.WordPiece(vocabulary, unk_token=special["unk"]))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = tokenizers.processors.BertProcessing(
        (special["sep"], vocabulary[special["sep"]]), (special["cls"], vocabulary[special["cls"]])
    )
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.add_special_tokens([token for token in special.values() if token in vocabulary])
    return backend


def _first_not_text(texts: Sequence[object]) -> str:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            return f"text {number} is a {type(text).__name__}; a string is wanted"
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return (
                f"text {number} holds half a surrogate pair at character {error.start}, which is no Unicode text; "
                'text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") mends it'
            )
    return "the texts could not be tokenised"
