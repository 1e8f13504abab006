"""Tokenizers of the `tokenizers` library: from tokenizer.json or vocabulary files."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import BertNormalizer

from clearhead.io.atomic import atomic_file
from clearhead.io.json import write_json
from clearhead.tokenizers import special_tokens, vocabulary_files
from clearhead.tokenizers.base import (
    MultilingualTokenizer,
    PairTokens,
    Tokens,
    check_max_length,
    check_texts,
    describe_invalid_unicode,
)
from clearhead.tokenizers.byte_level import decode_byte_level
from clearhead.tokenizers.languages import LanguageTokenScheme
from clearhead.tokenizers.truncation import SplitRules, beginning, encode_truncated, split_rules


@dataclass(frozen=True)
class Tokenizer(MultilingualTokenizer):
    """Tokenizer of the `tokenizers` library, loaded from tokenizer.json or built from vocabulary files.

    Args:
        backend: the `tokenizers` object, without padding and truncation.
        config: the contents of tokenizer_config.json, which `save` writes for other libraries.
        scheme: the language tokens; None for models without languages.
        lock: guards the settings of the backend, which threads share.

    >>> from clearhead.tokenizers.tokenizer import Tokenizer
    """

    backend: Backend
    config: dict[str, Any] = field(default_factory=dict)
    scheme: LanguageTokenScheme | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        # whether a special token's spelling in a text is that token; tokenizer.json has no setting for it
        self.backend.encode_special_tokens = self.config.get("split_special_tokens") is True

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Return the tokenizer in a model folder.

        Raises:
            ValueError: the folder has no tokenizer, a broken one, or one that truncates on the left.
        """
        config, path = special_tokens.read_config(folder), folder / "tokenizer.json"
        if config.get("truncation_side", "right") != "right":
            raise ValueError(
                f"{folder / 'tokenizer_config.json'} has truncation_side={config['truncation_side']!r:.80}, which is "
                "not supported: the ends of long texts are cut off, not their beginnings"
            )
        if path.is_file():
            backend = vocabulary_files.load_json(path)
            _mark_special(backend, config)
            _set_normalizer(backend, config)
        elif (path := folder / "vocab.txt").is_file():
            backend = vocabulary_files.load_wordpiece(path, config)
        elif (path := folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            backend = vocabulary_files.load_byte_level(path, folder / "merges.txt", config)
        else:
            raise ValueError(
                f"{folder} has no tokenizer: no tokenizer.json and no vocab.txt, and no vocab.json with a merges.txt"
            )
        # some files set a fixed padding, and a shorter maximum length than the model's
        backend.no_padding()
        backend.no_truncation()
        vocabulary_files.check_encodes(backend, path)
        return cls(backend, _with_special_tokens(config, backend))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def encode(self, texts: Sequence[str], max_length: int | None = None) -> list[Tokens]:
        """Return the tokens of each text with special tokens, truncated to max_length tokens.

        Raises:
            ValueError: a text is not a string, or contains half a surrogate pair.
        """
        texts = check_texts(texts)
        if max_length is None:
            return self._encode(texts, None)
        check_max_length(max_length, self.backend.num_special_tokens_to_add(is_pair=False))
        return encode_truncated(
            texts, max_length, lambda some: self._encode(some, max_length), lambda text: self._split_rules
        )

    @property
    def has_token_types(self) -> bool:
        """Whether a model with token types gets them from this tokenizer.

        Some tokenizers number the two texts of a pair although their models were trained without token types.
        """
        inputs = self.config.get("model_input_names")
        return not isinstance(inputs, list) or "token_type_ids" in inputs

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], max_length: int) -> list[PairTokens]:
        """Return the tokens of each pair of texts in the tokenizer's template for pairs, such as [CLS] a [SEP] b [SEP].

        A pair with more than max_length tokens is truncated: the longer text first, then both to equal lengths.

        Raises:
            ValueError: a text contains half a surrogate pair, or cannot be split and is too long for the memory.
        """
        check_max_length(max_length, self.backend.num_special_tokens_to_add(is_pair=True))

        def shortened(text: str) -> str:
            return beginning(text, max_length, lambda part: len(self.target_ids(part)), lambda: self._split_rules)

        # tuples: the library takes a list of two for two separate texts
        texts = [(shortened(first), shortened(second)) for first, second in pairs]
        encodings = self._encode_batch(texts, max_length, describe=[text for pair in texts for text in pair])
        return [PairTokens(pair.ids, bool(pair.overflowing), pair.type_ids) for pair in encodings]

    @cached_property
    def _split_rules(self) -> SplitRules | None:
        return split_rules(self.backend)

    def _encode(self, texts: Sequence[str], max_length: int | None) -> list[Tokens]:
        encodings = self._encode_batch(texts, max_length, describe=texts)
        return [Tokens(encoding.ids, bool(encoding.overflowing)) for encoding in encodings]

    def _encode_batch(self, inputs: Sequence[Any], max_length: int | None, describe: Sequence[str]) -> list[Encoding]:
        """Return the encodings of texts or pairs. `describe` are their texts, for the message of an error."""
        with self.lock:
            if max_length is not None:
                self.backend.enable_truncation(max_length)
            try:
                return self.backend.encode_batch_fast(inputs)
            except TypeError:
                raise ValueError(describe_invalid_unicode(describe)) from None
            except BaseException as error:
                raise _without_panic(error) from None
            finally:
                self.backend.no_truncation()

    def as_json(self, *, pretty: bool = False) -> str:
        """Return the contents of tokenizer.json."""
        with self.lock:
            contents: str = self.backend.to_str(pretty=pretty)
        return contents

    def target_ids(self, text: str) -> list[int]:
        """Return the ids of a target text or a part of one, without special tokens."""
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        except TypeError:
            raise ValueError(describe_invalid_unicode([text])) from None
        except BaseException as error:
            raise _without_panic(error) from None
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens and unknown ids."""
        try:
            return self.backend.decode(list(ids), skip_special_tokens=True)
        except BaseException as error:
            raise _without_panic(error) from None

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id as in the vocabulary; "" for unknown ids."""
        return [self.backend.id_to_token(number) or "" for number in ids]

    def display_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id in readable form; byte-level tokens are decoded."""
        tokens, added = self.ids_to_tokens(ids), self._added_ids
        if not self._is_byte_level:
            return tokens
        pairs = zip(ids, tokens, strict=True)
        return [token if number in added else decode_byte_level(token) for number, token in pairs]

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder = self.backend.decoder  # it may be part of a sequence; its state is JSON
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    def token_id(self, token: str) -> int | None:
        """Return the id of a token; None if the vocabulary does not contain it."""
        return self.backend.token_to_id(token)

    def with_language_scheme(self, scheme: LanguageTokenScheme | None) -> "Tokenizer":
        """Return this tokenizer with a scheme of language tokens, set to the default source language."""
        configured = replace(self, scheme=scheme)
        return configured._with_languages(configured._default_source(), None)

    def _with_languages(self, source: str | None, target: str | None) -> "Tokenizer":
        if self.scheme is None or not self.languages:
            return self  # with the special tokens of the file
        before, after = self.scheme.surrounding_tokens(
            source, target, special_tokens.special_token(self.config, "eos", "</s>")
        )
        ids = [(token, self.backend.token_to_id(token)) for token in dict.fromkeys([*before, *after])]
        for token, number in ids:
            if number is None:
                raise ValueError(f"the tokenizer has no token {token!r:.80}, which this model adds to every text")
        # a second backend with the same model; only the added special tokens differ
        backend = Backend(self.backend.model)
        backend.normalizer = self.backend.normalizer
        backend.pre_tokenizer = self.backend.pre_tokenizer
        backend.decoder = self.backend.decoder
        backend.add_tokens(list(self.backend.get_added_tokens_decoder().values()))
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=[*before, "$A", *after], pair=[*before, "$A", "$B", *after], special_tokens=ids
        )
        return replace(self, backend=backend, config=self.scheme.with_default_languages(self.config, source, target))

    def vocabulary(self) -> dict[str, int]:
        """Return all tokens with their ids."""
        return self.backend.get_vocab()

    def save(self, folder: Path, max_length: int | None) -> None:
        """Write tokenizer.json and tokenizer_config.json.

        Args:
            folder: the model folder.
            max_length: the model_max_length in tokenizer_config.json; None to keep the current one.
        """
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.config}
        if max_length is not None:
            config["model_max_length"] = max_length
        with atomic_file(folder / "tokenizer.json") as file:
            file.write(self.as_json(pretty=True).encode("utf-8"))
            file.flush()
            # before the rename: a tokenizer.json without settings would be loaded with the defaults
            write_json(folder / "tokenizer_config.json", config)


def _without_panic(error: BaseException) -> BaseException:
    """Return a ValueError in place of a panic of the library, and every other error unchanged.

    A regular expression can take more steps on a text than the library allows.
    """
    if not vocabulary_files.is_panic(error):
        return error
    return ValueError(f"tokenizer.json cannot take one of the texts: {vocabulary_files.shortened(error)}")


_ROLES = {
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Usual spellings of special tokens by role, for folders without a config."""


def _with_special_tokens(config: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """Return the config with the special tokens filled in; without them other libraries cannot pad."""
    # <s> and </s> are HTML tags in vocabularies like Gemma's
    ordinary = {token.content for token in backend.get_added_tokens_decoder().values() if not token.special}
    guessed: dict[str, str] = {}
    for role, spellings in _ROLES.items():
        known = [text for text in spellings if text not in ordinary and backend.token_to_id(text) is not None]
        guessed |= {f"{role}_token": text for text in known[:1]}
    return guessed | {key: value for key, value in config.items() if value is not None or key not in guessed}


_NORMALIZER_KEYS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Keys of tokenizer_config.json -> settings of BERT's normalizer."""


def _set_normalizer(backend: Backend, config: dict[str, Any]) -> None:
    """Set BERT's normalizer to the config, as transformers does; tokenizer.json may have other settings."""
    normalizer = backend.normalizer
    if isinstance(normalizer, BertNormalizer):
        for key, name in _NORMALIZER_KEYS.items():
            if isinstance(config.get(key), bool):
                setattr(normalizer, name, config[key])
        backend.normalizer = normalizer


def _mark_special(backend: Backend, config: dict[str, Any]) -> None:
    """Mark the special tokens of the config as special, as transformers does; some tokenizer.json files omit it."""
    marked = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [
        text
        for text in special_tokens.all_special_tokens(config)
        if text not in marked and backend.token_to_id(text) is not None
    ]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])
