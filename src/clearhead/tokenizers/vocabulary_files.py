"""Backends of the `tokenizers` library, built from plain vocabulary files or for training."""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Backend

from clearhead.io.reading import read_file
from clearhead.tokenizers import special_tokens

SPACE = "▁"
"""Stands for a space in a token of our BPE: U+2581, as in sentencepiece."""

# letters, digits and symbols are never merged, so no special token can be learned from a text that spells it;
# a space belongs to the following word
WORDS = "|".join(
    (
        rf"{SPACE}?[\p{{L}}\p{{M}}]+",
        rf"{SPACE}?\p{{N}}+",
        rf"{SPACE}?[^\s{SPACE}\p{{L}}\p{{M}}\p{{N}}]+",
        rf"{SPACE}+(?={SPACE})",
        SPACE,
        r"\s+",
    )
)
"""Regular expression of a word of our BPE; tokens never cross words."""


def untrained_bpe(lowercase: bool) -> Backend:
    """Return a BPE tokenizer without a vocabulary, for training.

    Args:
        lowercase: whether texts are lowercased.
    """
    backend = Backend(tokenizers.models.BPE())
    backend.normalizer = tokenizers.normalizers.Sequence(
        [
            *([tokenizers.normalizers.Lowercase()] if lowercase else []),
            tokenizers.normalizers.NFC(),
            tokenizers.normalizers.Prepend(SPACE),  # the first word gets the same token as inside a text
            tokenizers.normalizers.Replace(" ", SPACE),
        ]
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(Regex(WORDS), "isolated")
    decoders = tokenizers.decoders
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def load_json(path: Path) -> Backend:
    """Return the tokenizer in a tokenizer.json.

    Args:
        path: the file.

    Raises:
        ValueError: it is not a tokenizer, merges tokens without the prefix of all but the first token of a word, adds
            a special token that it does not define, has a template that repeats or omits a text, or makes texts many
            times longer.
    """
    content = read_file(path)
    _check_prefix(content, path)
    _check_charsmaps(content, path)
    try:
        backend = Backend.from_buffer(content)
    except BaseException as error:  # the library raises no specific type, and a panic is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ValueError(f"{path} is not a tokenizer: {shortened(error)}") from None
    processor = _state(backend.post_processor)
    for token in _undefined_tokens(processor):
        raise ValueError(f"{path}: the post_processor adds the token {token!r:.80}, but does not define its id")
    for template, texts in _wrong_templates(processor):
        raise ValueError(
            f"{path}: the template {template!r} of the post_processor has the texts {', '.join(texts) or 'none'}; "
            f"expected {_TEXTS[template]}, each once"
        )
    for part, name in ((backend.normalizer, "normalizer"), (backend.decoder, "decoder")):
        growth = _growth(_state(part))
        if growth > _MAX_GROWTH:
            raise ValueError(
                f"{path}: the {name} can make a text {growth:.3g} times longer; at most {_MAX_GROWTH} is allowed"
            )
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None  # a regularizer of training, which makes each result random
    return backend


def check_encodes(backend: Backend, path: Path) -> None:
    """Check that a tokenizer can encode an empty text, and characters that it does not know.

    Args:
        backend: the tokenizer.
        path: its file, for the message.

    Raises:
        ValueError: it cannot, for example because its unknown token is missing in its vocabulary.
    """
    try:
        backend.encode_batch_fast(["", "the \u0378"])  # a character that Unicode does not assign
    except BaseException as error:  # a panic of the library is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ValueError(f"{path} is not a usable tokenizer: {shortened(error)}") from None


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of the `tokenizers` library, which cannot import its own type."""
    return type(error).__name__ == "PanicException"


def shortened(error: BaseException) -> str:
    """Return the message of the library, which may have several lines and repeat a part of the file."""
    return " ".join(str(error).split())[:_MAX_SHOWN]


def _check_prefix(content: bytes, path: Path) -> None:
    """Check that the second token of each merge has the prefix. Otherwise the library ends in a panic."""
    if b'"merges"' not in content or not _PREFIX.search(content):  # a vocabulary may be large
        return
    try:
        model = json.loads(content)["model"]
        prefix = model["continuing_subword_prefix"]
        pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
        wrong = next((second for _, second in pairs if not second.startswith(prefix)), None)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):  # the library reports the error
        return
    if wrong is not None:
        raise ValueError(f"{path} merges {wrong!r:.80}, which does not start with the prefix {prefix!r:.80}")


_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')


def _check_charsmaps(content: bytes, path: Path) -> None:
    """Check the tables of characters of all normalizers of type Precompiled. The library crashes on a damaged one."""
    for match in _CHARSMAP.finditer(content):
        try:
            data = base64.b64decode(match[1].replace(b"\\/", b"/"), validate=True)
        except binascii.Error:
            data = b""
        if not _is_charsmap(data):
            raise ValueError(f"{path}: the precompiled_charsmap of the normalizer is damaged")


def _is_charsmap(data: bytes) -> bool:
    """Return whether every search in a table stays inside it.

    Format: the size of a trie in bytes, the trie, and the replacements in UTF-8, each with a null byte at its end. The
    trie is a double array of darts-clone: the child of node i for a byte c is node i ^ offset(i) ^ c, and c = 0 is the
    leaf with the position of a replacement.
    """
    size = int.from_bytes(data[:4], "little")
    trie, replacements = data[4 : 4 + size], data[4 + size :]
    if size < 1024 or size % 4 or len(trie) < size:  # a node has 256 possible children
        return False
    try:
        replacements.decode("utf-8")
    except UnicodeDecodeError:
        return False
    unit = np.frombuffer(trie, "<u4").astype(np.int64)
    inner, has_leaf = unit >> 31 == 0, unit >> 8 & 1 == 1
    first_child = np.arange(len(unit)) ^ (unit >> 10) << ((unit & 512) >> 6)
    if ((first_child | 255)[inner] >= len(unit)).any():
        return False
    position = unit[first_child[inner & has_leaf]] & 0x7FFFFFFF
    if (position >= len(replacements)).any():
        return False
    starts = np.frombuffer(replacements, np.uint8)[position]
    return bool((starts & 0xC0 != 0x80).all())  # not inside a character


def _state(part: Any) -> dict[str, Any]:
    """Return the settings of a part of a tokenizer; {} for none."""
    return {} if part is None else json.loads(part.__getstate__())


def _undefined_tokens(processor: dict[str, Any]) -> Iterator[str]:
    """Yield the tokens of a template without an id, which would end in a panic of the library."""
    for inner in processor.get("processors") or ():
        yield from _undefined_tokens(inner)
    for piece in (*(processor.get("single") or ()), *(processor.get("pair") or ())):
        token = piece.get("SpecialToken", {}).get("id")
        if token is not None and token not in processor["special_tokens"]:
            yield token


_TEXTS = {"single": "A", "pair": "A and B"}
"""The texts of each template."""


def _wrong_templates(processor: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the templates that repeat or omit a text, and their texts."""
    for inner in processor.get("processors") or ():
        yield from _wrong_templates(inner)
    for name, expected in _TEXTS.items():
        if name in processor:
            texts = [piece["Sequence"]["id"] for piece in processor[name] if "Sequence" in piece]
            if sorted(texts) != expected.split(" and "):
                yield name, texts


def _growth(part: dict[str, Any]) -> float:
    """Return how many times longer a normalizer or a decoder can make a text of 1,000 characters, roughly."""
    growth = 1.0
    for inner in (*(part.get("normalizers") or ()), *(part.get("decoders") or ())):
        growth *= _growth(inner)
    if part.get("type") == "Replace":
        pattern = part["pattern"]
        # a regular expression can match an empty text, between all characters
        least, kept = (0, 1) if "Regex" in pattern else (len(pattern["String"]), 0)
        growth *= max(1, kept + len(part["content"]) / max(1, least))
    return growth + len(part.get("prepend") or "") / 1000


_MAX_GROWTH = 64
"""Real tokenizers replace a space by another character, or quotation marks by shorter ones."""
_MAX_SHOWN = 300
"""Maximum number of characters of the library's message."""


def load_wordpiece(path: Path, config: dict[str, Any]) -> Backend:
    """Return BERT's tokenizer for a vocab.txt (Devlin et al. 2018).

    Args:
        path: the vocab.txt.
        config: the contents of tokenizer_config.json.

    Raises:
        ValueError: the file is not a WordPiece vocabulary, or an option of the config is neither true nor false.
    """
    try:
        lines = read_file(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines) if line or number < len(lines) - 1}
    spellings = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    tokens = {role: special_tokens.special_token(config, role, spelling) for role, spelling in spellings.items()}
    for role in ("unk", "cls", "sep"):
        if tokens[role] not in vocabulary:
            raise ValueError(f"{path} has no {tokens[role]}, which a WordPiece vocabulary needs")
    switches = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    for key, default in switches.items():
        switches[key] = config.get(key, default)
        if not isinstance(switches[key], bool | None):
            raise ValueError(
                f"tokenizer_config.json next to {path} has {key}={switches[key]!r:.80}; expected true or false"
            )
    backend = Backend(tokenizers.models.WordPiece(vocabulary, unk_token=tokens["unk"]))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=switches["do_lower_case"] is not False,
        strip_accents=switches["strip_accents"],
        handle_chinese_chars=switches["tokenize_chinese_chars"] is not False,
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = tokenizers.processors.BertProcessing(
        (tokens["sep"], vocabulary[tokens["sep"]]), (tokens["cls"], vocabulary[tokens["cls"]])
    )
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.add_special_tokens([token for token in tokens.values() if token in vocabulary])
    return backend


def load_byte_level(vocabulary: Path, merges: Path, config: dict[str, Any]) -> Backend:
    """Return the byte-level BPE tokenizer of RoBERTa and BART (Radford et al. 2019).

    Args:
        vocabulary: the vocab.json.
        merges: the merges.txt.
        config: the contents of tokenizer_config.json.

    Raises:
        ValueError: the files are not a byte-level BPE vocabulary, or have no special tokens.
    """
    try:
        model = tokenizers.models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises no specific type
        raise ValueError(f"{vocabulary} and {merges.name} are not a byte-level BPE: {shortened(error)}") from None
    backend = Backend(model)
    prefix = bool(config.get("add_prefix_space", False))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = tokenizers.decoders.ByteLevel()
    spellings = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"}
    tokens = {role: special_tokens.special_token(config, role, spelling) for role, spelling in spellings.items()}
    ids = {role: number for role, token in tokens.items() if (number := backend.token_to_id(token)) is not None}
    for role in ("cls", "sep"):
        if role not in ids:
            raise ValueError(f"{vocabulary} has no {tokens[role]}, which is added to every text")
    backend.post_processor = tokenizers.processors.RobertaProcessing(
        (tokens["sep"], ids["sep"]), (tokens["cls"], ids["cls"]), True, prefix
    )
    backend.add_special_tokens([token for role, token in tokens.items() if role in ids])
    mask = special_tokens.special_token(config, "mask", "<mask>")
    if backend.token_to_id(mask) is not None:
        # the space before the mask belongs to it, as in the published tokenizer.json files
        backend.add_special_tokens([AddedToken(mask, lstrip=True, special=True, normalized=False)])
    return backend
