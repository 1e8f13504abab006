"""Text to token ids and back, by sentencepiece models (Kudo and Richardson 2018) with a family's ids."""

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clearhead.io.atomic import atomic_file
from clearhead.io.json import read_json, write_json
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.base import MultilingualTokenizer, Tokens, check_room, check_texts, first_not_text
from clearhead.tokenizers.languages import LanguageTokenScheme
from clearhead.tokenizers.sentencepiece_vocabularies import SentencePieceVocabulary
from clearhead.tokenizers.truncation import Cuts, cuts_of_pieces, encode_beginnings

_BLANK = "\u2581"
"""What stands for a blank in a piece."""

_TARGET = "target_vocab.json"
"""Marian's ids of target pieces, where source and target have vocabularies of their own."""

_CODE = re.compile(">>.*?<<", re.DOTALL)


@dataclass(frozen=True)
class SentencePieceTokenizer(MultilingualTokenizer):
    """A tokenizer of sentencepiece models, for folders without a tokenizer.json.

    Args:
        source: the sentencepiece model that cuts texts.
        target: the sentencepiece model that cuts target texts.
        reader: the sentencepiece model that puts pieces together.
        ids: the id of every piece and token of source texts.
        written: the id of every piece and token of target texts.
        pieces: the piece or token of every id of target texts.
        added: tokens that are found in a text before it is cut, special ones and others.
        special_ids: the ids that are no text.
        layout: the family's.
        files: the folder's files by name, kept to be written again byte for byte.
        config: the contents of tokenizer_config.json.
        scheme: how the model is told languages; None for models that have none.
        before: ids in front of every text.
        after: ids behind every text.
    """

    source: Any
    target: Any
    reader: Any
    ids: Mapping[str, int] = field(repr=False)
    written: Mapping[str, int] = field(repr=False)
    pieces: Mapping[int, str] = field(repr=False)
    added: Mapping[str, int] = field(repr=False)
    special_ids: frozenset[int] = field(repr=False)
    layout: SentencePieceVocabulary = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    scheme: LanguageTokenScheme | None = field(repr=False)
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path, layout: SentencePieceVocabulary) -> "SentencePieceTokenizer":
        """The tokenizer in a model's folder.

        Raises:
            ValueError: a file that is missing or broken, or sentencepiece is not installed.
        """
        config = special_tokens.read_config(folder)
        separate = layout.vocabulary is not None and bool(config.get("separate_vocabs"))
        names = [*layout.models, *([layout.vocabulary] if layout.vocabulary else []), *([_TARGET] if separate else [])]
        for name in names:
            if not (folder / name).is_file():
                raise ValueError(
                    f"{folder} has no {name}; its tokenizer needs {' and '.join(names)}, or a tokenizer.json"
                )
        models = [_model(folder / name) for name in layout.models]
        ids = _ids(folder, layout, models[0], config)
        known = (*layout.first, *layout.last, *layout.special, *special_tokens.all_special_tokens(config))
        marks = {token: ids[token] for token in known if token in ids}
        target = _read_vocabulary(folder / _TARGET) | special_tokens.added_token_ids(config) if separate else ids
        tokenizer = cls(
            source=models[0],
            target=models[-1],
            # transformers reads the pieces of one common vocabulary by the source's model, whatever their language
            reader=models[-1] if separate else models[0],
            ids=ids,
            written=target,
            # as in transformers, special tokens keep their ids whatever the target's vocabulary has there
            pieces={number: token for tokens in (target, marks) for token, number in tokens.items()},
            added=marks | special_tokens.added_token_ids(config),
            special_ids=frozenset(marks.values()),
            layout=layout,
            files={name: (folder / name).read_bytes() for name in names},
            config=config,
            scheme=layout.scheme,
        )
        return tokenizer._between(tokenizer._default_source(), None)

    def encode(self, texts: Sequence[str], max_length: int | None = None) -> list[Tokens]:
        """Each text as tokens, with the model's special tokens, cut to max_length with them kept.

        Raises:
            ValueError: what is not a string, or a string with half a surrogate pair.
        """
        texts = check_texts(texts)
        if max_length is None:
            return self._encode(texts, None)
        special_count = len(self.before) + len(self.after)
        check_room(max_length, special_count)
        return encode_beginnings(
            texts,
            max_length,
            lambda some: self._encode(some, max_length - special_count),
            # a language's code may hold a blank
            lambda text: None if ">>" in text else self._cuts,
        )

    @cached_property
    def _cuts(self) -> Cuts | None:
        count = self.source.get_piece_size()
        return cuts_of_pieces([*map(self.source.id_to_piece, range(count)), *self.added])

    def _encode(self, texts: Sequence[str], room: int | None) -> list[Tokens]:
        try:
            found = [[number for part in self._split(text) for number in self._cut(part)] for text in texts]
        except (UnicodeError, RuntimeError):  # half a surrogate pair, which is no UTF-8
            raise ValueError(first_not_text(texts)) from None
        return [Tokens([*self.before, *ids[:room], *self.after], room is not None and len(ids) > room) for ids in found]

    def target_ids(self, text: str) -> list[int]:
        """A target's text as ids, or a piece of it, without special tokens."""
        check_texts([text])
        unknown = self.written[special_tokens.special_token(self.config, "unk", "<unk>")]
        try:
            pieces = self.target.encode(text, out_type=str)
        except (UnicodeError, RuntimeError):
            raise ValueError(first_not_text([text])) from None
        return [self.written.get(piece, unknown) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens; ids that the tokenizer does not know say nothing."""
        pieces = [self.pieces[number] for number in ids if number in self.pieces and number not in self.special_ids]
        if self.layout.joins:
            return "".join(pieces[:1]).replace(_BLANK, "") + "".join(pieces[1:]).replace(_BLANK, " ")
        return str(self.reader.decode(pieces)).replace(_BLANK, " ").strip()

    def words(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids, as text."""
        return [self.pieces.get(number, "") for number in ids]

    def shown(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids, as people read them: as the vocabulary writes them."""
        return self.words(ids)

    def token_id(self, token: str) -> int | None:
        """The id of a token; None where there is no such token."""
        return self.ids.get(token)

    def save(self, folder: Path, max_length: int | None) -> None:
        """Writes the files that the tokenizer came from, and tokenizer_config.json.

        Args:
            folder: where to.
            max_length: what tokenizer_config.json shall say of the longest input.
        """
        for name, data in self.files.items():
            with atomic_file(folder / name) as file:
                file.write(data)
        config = {**self.config, "tokenizer_class": self.layout.tokenizer_class}
        if self.layout.vocabulary is None:
            # transformers 5 counts NLLB's languages otherwise than the published models, unless their ids are said
            config["added_tokens_decoder"] = {
                str(number): {"content": token, "lstrip": token == "<mask>", "normalized": False, "special": True}
                for token, number in self.added.items()
                if number in self.special_ids
            } | (self.config.get("added_tokens_decoder") or {})
        if max_length is not None:
            config["model_max_length"] = max_length
        write_json(folder / "tokenizer_config.json", config)

    def _between(self, source: str | None, target: str | None) -> "SentencePieceTokenizer":
        end = special_tokens.special_token(self.config, "eos", "</s>")
        if self.scheme is None or not self.languages:
            return replace(self, after=(self.ids[end],))
        before, after = (tuple(self.ids[token] for token in side) for side in self.scheme.frame(source, target, end))
        config = self.scheme.noted(self.config, source, target)
        return replace(self, before=before, after=after, config=config)

    def _vocabulary(self) -> dict[str, int]:
        return dict(self.ids)

    def _split(self, text: str) -> Iterator[str]:
        """A text's parts: the added tokens in it, and what stands between them."""
        yield from filter(None, self._added.split(text))

    def _cut(self, part: str) -> list[int]:
        if part in self.added:
            return [self.added[part]]
        unknown = self.ids[special_tokens.special_token(self.config, "unk", "<unk>")]
        pieces: list[str] = []
        # Marian's language codes are words of its vocabulary, which its sentencepiece model does not know
        if self.scheme and not (self.scheme.forces_target or self.before) and (code := _CODE.match(part)):
            pieces, part = [code[0]], part[code.end() :]
        pieces += self.source.encode(part, out_type=str)
        return [self.ids.get(piece, unknown) for piece in pieces]

    @cached_property
    def _added(self) -> re.Pattern[str]:
        # the longest token wins where several begin
        return re.compile("(" + "|".join(map(re.escape, sorted(self.added, key=len, reverse=True))) + ")")


def _model(path: Path) -> Any:
    """A sentencepiece model."""
    if importlib.util.find_spec("sentencepiece") is None:
        raise ValueError(f'{path.name} needs sentencepiece: pip install "clearhead[seq2seq]"')
    import sentencepiece

    data = path.read_bytes()
    try:
        if data:
            return sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError:  # its message tells of the library's source code only
        pass
    raise ValueError(f"{path} is not a whole sentencepiece model")


def _ids(folder: Path, layout: SentencePieceVocabulary, model: Any, config: dict[str, Any]) -> dict[str, int]:
    """The ids of all pieces and tokens of source texts."""
    if layout.vocabulary is None:
        ids = _counted(model, layout)
    else:
        ids = _read_vocabulary(folder / layout.vocabulary)
        ids |= {token: len(ids) + number for number, token in enumerate(layout.last)}
    ids |= special_tokens.added_token_ids(config)
    for role, default in (("unk", "<unk>"), ("eos", "</s>")):
        token = special_tokens.special_token(config, role, default)
        if token not in ids:
            raise ValueError(f"{folder / (layout.vocabulary or layout.models[0])} has no {token}")
    for token in special_tokens.all_special_tokens(config):
        if token not in ids:
            ids[token] = max(ids.values()) + 1  # as transformers does
    return ids


def _counted(model: Any, layout: SentencePieceVocabulary) -> dict[str, int]:
    """The ids of a family without a vocabulary file."""
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    held = set(pieces)
    last = [token for token in layout.last if token not in held]
    return {token: number for number, token in enumerate([*layout.first, *pieces[layout.skipped :], *last])}


def _read_vocabulary(path: Path) -> dict[str, int]:
    ids = read_json(path)
    for token, number in ids.items():
        if type(number) is not int or number < 0:
            raise ValueError(f"{path} gives {token!r} the id {number!r}; a whole number from 0 is wanted")
    return ids
