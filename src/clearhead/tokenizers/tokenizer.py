"""Text to token ids and back, by a tokenizer of the `tokenizers` library."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from clearhead.io.atomic import atomic_file
from clearhead.io.json import write_json
from clearhead.tokenizers import special_tokens, vocabulary_files
from clearhead.tokenizers.base import MultilingualTokenizer, Tokens, check_room, check_texts, first_not_text
from clearhead.tokenizers.byte_level import decode_byte_level
from clearhead.tokenizers.languages import LanguageTokenScheme
from clearhead.tokenizers.truncation import Cuts, cuts_of, encode_beginnings


@dataclass(frozen=True)
class Tokenizer(MultilingualTokenizer):
    """A tokenizer of the `tokenizers` library: from tokenizer.json, or put together from vocabulary files.

    Args:
        backend: the `tokenizers` object; its own padding and truncation are switched off.
        config: the contents of tokenizer_config.json, kept so that other libraries open a saved folder alike.
        scheme: how the model is told languages; None for models that have none.
        lock: held while the backend is set for a call: threads may share it.

    >>> from clearhead.tokenizers.tokenizer import Tokenizer
    """

    backend: Backend
    config: dict[str, Any] = field(default_factory=dict)
    scheme: LanguageTokenScheme | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        # tokenizer.json cannot say it: whether a text that spells a special token means it
        self.backend.encode_special_tokens = self.config.get("split_special_tokens") is True

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """The tokenizer in a model's folder.

        Raises:
            ValueError: no tokenizer, or a broken one.
        """
        config = special_tokens.read_config(folder)
        if (folder / "tokenizer.json").is_file():
            try:
                backend = Backend.from_file(str(folder / "tokenizer.json"))
            except Exception as error:  # the library raises nothing more precise
                raise ValueError(f"{folder / 'tokenizer.json'} is not a tokenizer: {error}") from None
            _mark_special(backend, config)
        elif (folder / "vocab.txt").is_file():
            backend = vocabulary_files.wordpiece(folder / "vocab.txt", config)
        elif (folder / "merges.txt").is_file() and (folder / "vocab.json").is_file():
            backend = vocabulary_files.byte_level(folder / "vocab.json", folder / "merges.txt", config)
        else:
            raise ValueError(
                f"{folder} has no tokenizer: no tokenizer.json and no vocab.txt, and no vocab.json with a merges.txt"
            )
        # some files ask for padding to a fixed length and for a shorter truncation than the model's
        backend.no_padding()
        backend.no_truncation()
        return cls(backend, _with_special_tokens(config, backend))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that are no text."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def encode(self, texts: Sequence[str], max_length: int | None = None) -> list[Tokens]:
        """Each text as tokens, with the model's special tokens, cut to max_length with them kept.

        Raises:
            ValueError: what is not a string, or a string with half a surrogate pair.
        """
        texts = check_texts(texts)
        if max_length is None:
            return self._encode(texts, None)
        check_room(max_length, self.backend.num_special_tokens_to_add(is_pair=False))
        return encode_beginnings(
            texts, max_length, lambda some: self._encode(some, max_length), lambda text: self._cuts
        )

    @cached_property
    def _cuts(self) -> Cuts | None:
        return cuts_of(self.backend)

    def _encode(self, texts: Sequence[str], max_length: int | None) -> list[Tokens]:
        with self.lock:
            if max_length is not None:
                self.backend.enable_truncation(max_length)
            try:
                encodings = self.backend.encode_batch_fast(texts)
            except TypeError:
                raise ValueError(first_not_text(texts)) from None
            finally:
                self.backend.no_truncation()
        return [Tokens(encoding.ids, bool(encoding.overflowing)) for encoding in encodings]

    def as_json(self, *, pretty: bool = False) -> str:
        """The contents of its tokenizer.json."""
        with self.lock:
            told: str = self.backend.to_str(pretty=pretty)
        return told

    def target_ids(self, text: str) -> list[int]:
        """A target's text as ids, or a piece of it, without special tokens."""
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        except TypeError:
            raise ValueError(first_not_text([text])) from None
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens; ids that the tokenizer does not know say nothing."""
        return self.backend.decode(list(ids), skip_special_tokens=True)

    def words(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids, as text."""
        return [self.backend.id_to_token(number) or "" for number in ids]

    def shown(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids as people read them: those of a byte-level vocabulary decoded."""
        words, added = self.words(ids), self._added_ids
        if not self._byte_level:
            return words
        return [word if number in added else decode_byte_level(word) for number, word in zip(ids, words, strict=True)]

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    @cached_property
    def _byte_level(self) -> bool:
        decoder = self.backend.decoder  # perhaps one of a sequence: its state is JSON
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    def token_id(self, token: str) -> int | None:
        """The id of a token; None where there is no such token."""
        return self.backend.token_to_id(token)

    def speaking(self, scheme: LanguageTokenScheme | None) -> "Tokenizer":
        """This tokenizer for a family that is told languages by `scheme`, from the default source language."""
        told = replace(self, scheme=scheme)
        return told._between(told._default_source(), None)

    def _between(self, source: str | None, target: str | None) -> "Tokenizer":
        if self.scheme is None or not self.languages:
            return self  # what the file says of the special tokens holds
        before, after = self.scheme.frame(source, target, special_tokens.special_token(self.config, "eos", "</s>"))
        ids = [(token, self.backend.token_to_id(token)) for token in dict.fromkeys([*before, *after])]
        for token, number in ids:
            if number is None:
                raise ValueError(f"the tokenizer has no token {token!r}, which stands around this model's texts")
        # a second backend around the same model: only what stands around the text differs
        backend = Backend(self.backend.model)
        backend.normalizer = self.backend.normalizer
        backend.pre_tokenizer = self.backend.pre_tokenizer
        backend.decoder = self.backend.decoder
        backend.add_tokens(list(self.backend.get_added_tokens_decoder().values()))
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=[*before, "$A", *after], pair=[*before, "$A", "$B", *after], special_tokens=ids
        )
        return replace(self, backend=backend, config=self.scheme.noted(self.config, source, target))

    def _vocabulary(self) -> dict[str, int]:
        return self.backend.get_vocab()

    def save(self, folder: Path, max_length: int | None) -> None:
        """Writes tokenizer.json and tokenizer_config.json.

        Args:
            folder: where to.
            max_length: what tokenizer_config.json shall say of the longest input.
        """
        with atomic_file(folder / "tokenizer.json") as file:
            file.write(self.as_json(pretty=True).encode("utf-8"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.config}
        if max_length is not None:
            config["model_max_length"] = max_length
        write_json(folder / "tokenizer_config.json", config)


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


def _mark_special(backend: Backend, config: dict[str, Any]) -> None:
    """Makes special what the config names so: some tokenizer.json files leave that out, and transformers adds it."""
    marked = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [
        text
        for text in special_tokens.all_special_tokens(config)
        if text not in marked and backend.token_to_id(text) is not None
    ]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])
