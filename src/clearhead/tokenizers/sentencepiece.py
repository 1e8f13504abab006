"""Tokenizers made of sentencepiece models (Kudo and Richardson 2018) with the ids of a family."""

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clearhead.io.atomic import atomic_file
from clearhead.io.json import read_json, write_json
from clearhead.io.reading import read_file
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.base import (
    MultilingualTokenizer,
    Tokens,
    check_max_length,
    check_texts,
    describe_invalid_unicode,
)
from clearhead.tokenizers.languages import LanguageTokenScheme
from clearhead.tokenizers.sentencepiece_vocabulary import SentencePieceVocabulary
from clearhead.tokenizers.truncation import SplitRules, encode_truncated, split_rules_of_pieces

_SPACE = "\u2581"
"""Stands for a space in a piece."""

_TARGET_IDS = "target_vocab.json"
"""Marian's ids of target pieces, for separate source and target vocabularies."""

_LANGUAGE_CODE = re.compile(">>.*?<<", re.DOTALL)


@dataclass(frozen=True)
class SentencePieceTokenizer(MultilingualTokenizer):
    """Tokenizer made of sentencepiece models, for folders without a tokenizer.json.

    Args:
        source: the sentencepiece model that splits source texts.
        target: the sentencepiece model that splits target texts.
        decoder: the sentencepiece model that joins pieces.
        source_vocabulary: the id of each piece and token of source texts.
        target_vocabulary: the id of each piece and token of target texts.
        pieces: the piece or token of each id of target texts.
        added_tokens: special and other tokens that are matched in a text before it is split.
        special_ids: the ids of special tokens.
        schema: the vocabulary files and tokens of the family.
        files: the contents of the folder's files, which `save` writes unchanged.
        config: the contents of tokenizer_config.json.
        scheme: the language tokens; None for models without languages.
        prefix_ids: the ids before each text.
        suffix_ids: the ids after each text.
    """

    source: Any
    target: Any
    decoder: Any
    source_vocabulary: Mapping[str, int] = field(repr=False)
    target_vocabulary: Mapping[str, int] = field(repr=False)
    pieces: Mapping[int, str] = field(repr=False)
    added_tokens: Mapping[str, int] = field(repr=False)
    special_ids: frozenset[int] = field(repr=False)
    schema: SentencePieceVocabulary = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    scheme: LanguageTokenScheme | None = field(repr=False)
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()

    @classmethod
    def from_folder(
        cls, folder: Path, schema: SentencePieceVocabulary, scheme: LanguageTokenScheme | None = None
    ) -> "SentencePieceTokenizer":
        """Return the tokenizer in a model folder.

        Args:
            folder: the model folder.
            schema: the vocabulary files and tokens of the family.
            scheme: the language tokens of the family; None for a family without languages.

        Raises:
            ValueError: a file is missing or broken, or sentencepiece is not installed.
        """
        config = special_tokens.read_config(folder)
        separate = schema.ids_file is not None and bool(config.get("separate_vocabs"))
        names = [
            *schema.model_files,
            *([schema.ids_file] if schema.ids_file else []),
            *([_TARGET_IDS] if separate else []),
        ]
        for name in names:
            if not (folder / name).is_file():
                raise ValueError(
                    f"{folder} has no {name}; its tokenizer needs {' and '.join(names)}, or a tokenizer.json"
                )
        models = [_load_model(folder / name) for name in schema.model_files]
        ids = _source_ids(folder, schema, models[0], config)
        names_of_special = (
            *schema.first_tokens,
            *schema.last_tokens,
            *schema.special_tokens,
            *special_tokens.all_special_tokens(config),
        )
        special = {token: ids[token] for token in names_of_special if token in ids}
        target_ids = _read_ids(folder / _TARGET_IDS) | special_tokens.added_token_ids(config) if separate else ids
        tokenizer = cls(
            source=models[0],
            target=models[-1],
            # transformers joins pieces of a shared vocabulary with the source model, in all languages
            decoder=models[-1] if separate else models[0],
            source_vocabulary=ids,
            target_vocabulary=target_ids,
            # as in transformers, special tokens keep their ids even if the target vocabulary has other pieces there
            pieces={number: token for tokens in (target_ids, special) for token, number in tokens.items()},
            added_tokens=special | special_tokens.added_token_ids(config),
            special_ids=frozenset(special.values()),
            schema=schema,
            files={name: read_file(folder / name) for name in names},
            config=config,
            scheme=scheme,
        )
        return tokenizer._with_languages(tokenizer._default_source(), None)

    def encode(self, texts: Sequence[str], max_length: int | None = None) -> list[Tokens]:
        """Return the tokens of each text with special tokens, truncated to max_length tokens.

        Raises:
            ValueError: a text is not a string, or contains half a surrogate pair.
        """
        texts = check_texts(texts)
        if max_length is None:
            return self._encode(texts, None)
        num_special = len(self.prefix_ids) + len(self.suffix_ids)
        check_max_length(max_length, num_special)
        return encode_truncated(
            texts,
            max_length,
            lambda some: self._encode(some, max_length - num_special),
            # a language code may contain a space
            lambda text: None if ">>" in text else self._split_rules,
        )

    @cached_property
    def _split_rules(self) -> SplitRules | None:
        count = self.source.get_piece_size()
        return split_rules_of_pieces([*map(self.source.id_to_piece, range(count)), *self.added_tokens])

    def _encode(self, texts: Sequence[str], max_ids: int | None) -> list[Tokens]:
        try:
            ids_of_texts = [[number for part in self._split(text) for number in self._part_ids(part)] for text in texts]
        except (UnicodeError, RuntimeError):  # half a surrogate pair has no UTF-8 encoding
            raise ValueError(describe_invalid_unicode(texts)) from None
        return [
            Tokens([*self.prefix_ids, *ids[:max_ids], *self.suffix_ids], max_ids is not None and len(ids) > max_ids)
            for ids in ids_of_texts
        ]

    def target_ids(self, text: str) -> list[int]:
        """Return the ids of a target text or a part of one, without special tokens."""
        check_texts([text])
        unknown = self.target_vocabulary[special_tokens.special_token(self.config, "unk", "<unk>")]
        try:
            pieces = self.target.encode(text, out_type=str)
        except (UnicodeError, RuntimeError):
            raise ValueError(describe_invalid_unicode([text])) from None
        return [self.target_vocabulary.get(piece, unknown) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens and unknown ids."""
        pieces = [self.pieces[number] for number in ids if number in self.pieces and number not in self.special_ids]
        if self.schema.joins_pieces:
            return "".join(pieces[:1]).replace(_SPACE, "") + "".join(pieces[1:]).replace(_SPACE, " ")
        return str(self.decoder.decode(pieces)).replace(_SPACE, " ").strip()

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id as in the vocabulary; "" for unknown ids."""
        return [self.pieces.get(number, "") for number in ids]

    def display_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id in readable form, which is the form of the vocabulary."""
        return self.ids_to_tokens(ids)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token; None if the vocabulary does not contain it."""
        return self.source_vocabulary.get(token)

    def save(self, folder: Path, max_length: int | None) -> None:
        """Write the original files of the tokenizer, and tokenizer_config.json.

        Args:
            folder: the model folder.
            max_length: the model_max_length in tokenizer_config.json; None to keep the current one.
        """
        for name, data in self.files.items():
            with atomic_file(folder / name) as file:
                file.write(data)
        config = {**self.config, "tokenizer_class": self.schema.tokenizer_class}
        if self.schema.ids_file is None:
            # without explicit ids, transformers 5 numbers NLLB's languages differently from the published models
            config["added_tokens_decoder"] = {
                str(number): {"content": token, "lstrip": token == "<mask>", "normalized": False, "special": True}
                for token, number in self.added_tokens.items()
                if number in self.special_ids
            } | (self.config.get("added_tokens_decoder") or {})
        if max_length is not None:
            config["model_max_length"] = max_length
        write_json(folder / "tokenizer_config.json", config)

    def vocabulary(self) -> dict[str, int]:
        """Return the tokens of source texts with their ids."""
        return dict(self.source_vocabulary)

    def _with_languages(self, source: str | None, target: str | None) -> "SentencePieceTokenizer":
        end = special_tokens.special_token(self.config, "eos", "</s>")
        if self.scheme is None or not self.languages:
            return replace(self, suffix_ids=(self.source_vocabulary[end],))
        before, after = (
            tuple(self.source_vocabulary[token] for token in side)
            for side in self.scheme.surrounding_tokens(source, target, end)
        )
        config = self.scheme.with_default_languages(self.config, source, target)
        return replace(self, prefix_ids=before, suffix_ids=after, config=config)

    def _split(self, text: str) -> Iterator[str]:
        """Yield the added tokens in a text, and the parts between them."""
        yield from filter(None, self._added_token_pattern.split(text))

    def _part_ids(self, part: str) -> list[int]:
        if part in self.added_tokens:
            return [self.added_tokens[part]]
        unknown = self.source_vocabulary[special_tokens.special_token(self.config, "unk", "<unk>")]
        pieces: list[str] = []
        # Marian's language codes are in its vocabulary, but not in its sentencepiece model
        takes_code = self.scheme is not None and not (self.scheme.forces_target or self.prefix_ids)
        if takes_code and (code := _LANGUAGE_CODE.match(part)):
            pieces, part = [code[0]], part[code.end() :]
        pieces += self.source.encode(part, out_type=str)
        return [self.source_vocabulary.get(piece, unknown) for piece in pieces]

    @cached_property
    def _added_token_pattern(self) -> re.Pattern[str]:
        # of several tokens with the same beginning, the longest one matches
        return re.compile("(" + "|".join(map(re.escape, sorted(self.added_tokens, key=len, reverse=True))) + ")")


_MAX_BYTES = 2**30
"""The library ends the process at 2 GiB."""


def _load_model(path: Path) -> Any:
    """Return the sentencepiece model in a file."""
    if importlib.util.find_spec("sentencepiece") is None:
        raise ValueError(f'{path.name} needs sentencepiece: pip install "clearhead[seq2seq]"')
    import sentencepiece

    if path.is_file() and path.stat().st_size >= _MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, which is too large for a sentencepiece model")
    data = read_file(path)
    try:
        if data:
            model = sentencepiece.SentencePieceProcessor(model_proto=data)
            for number in range(model.get_piece_size()):
                model.id_to_piece(number)  # an error for a piece that is not UTF-8
            return model
    except (RuntimeError, UnicodeDecodeError):  # its message only refers to the library's source code
        pass
    raise ValueError(f"{path} is damaged, or not a sentencepiece model. Download it again")


def _source_ids(folder: Path, schema: SentencePieceVocabulary, model: Any, config: dict[str, Any]) -> dict[str, int]:
    """Return the ids of all pieces and tokens of source texts."""
    if schema.ids_file is None:
        ids = _count_ids(model, schema)
    else:
        ids = _read_ids(folder / schema.ids_file)
        ids |= {token: len(ids) + number for number, token in enumerate(schema.last_tokens)}
    ids |= special_tokens.added_token_ids(config)
    for role, default in (("unk", "<unk>"), ("eos", "</s>")):
        token = special_tokens.special_token(config, role, default)
        if token not in ids:
            raise ValueError(f"{folder / (schema.ids_file or schema.model_files[0])} has no {token}")
    for token in special_tokens.all_special_tokens(config):
        if token not in ids:
            ids[token] = max(ids.values()) + 1  # as in transformers
    return ids


def _count_ids(model: Any, schema: SentencePieceVocabulary) -> dict[str, int]:
    """Return the ids in a family without a file of ids."""
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    known = set(pieces)
    last = [token for token in schema.last_tokens if token not in known]
    tokens = [*schema.first_tokens, *pieces[schema.num_skipped :], *last]
    return {token: number for number, token in enumerate(tokens)}


def _read_ids(path: Path) -> dict[str, int]:
    ids = read_json(path)
    for token, number in ids.items():
        if type(number) is not int or number < 0:
            raise ValueError(f"{path} gives {token!r:.80} the id {number!r:.80}; expected an integer of at least 0")
    return ids
