"""Backends of the `tokenizers` library, put together from plain vocabulary files."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from clearhead.tokenizers import special_tokens


def wordpiece(path: Path, config: dict[str, Any]) -> Backend:
    """BERT's tokenizer, put together from its vocab.txt as Devlin et al. 2018 describe it.

    Raises:
        ValueError: a file that is no such vocabulary, or a switch in the config that is no yes or no.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
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
        if switches[key] not in (True, False, None):
            raise ValueError(
                f"beside {path}, tokenizer_config.json says {key}={switches[key]!r}; true or false is wanted"
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


def byte_level(vocabulary: Path, merges: Path, config: dict[str, Any]) -> Backend:
    """The tokenizer of RoBERTa and BART (Radford et al. 2019: BPE over bytes), from vocab.json and merges.txt.

    Raises:
        ValueError: files that are no such vocabulary, or one without the special tokens.
    """
    try:
        model = tokenizers.models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{vocabulary} and {merges.name} are not a byte-level BPE: {error}") from None
    backend = Backend(model)
    prefix = bool(config.get("add_prefix_space", False))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = tokenizers.decoders.ByteLevel()
    spellings = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"}
    tokens = {role: special_tokens.special_token(config, role, spelling) for role, spelling in spellings.items()}
    ids = {role: number for role, token in tokens.items() if (number := backend.token_to_id(token)) is not None}
    for role in ("cls", "sep"):
        if role not in ids:
            raise ValueError(f"{vocabulary} has no {tokens[role]}, which stands around every text")
    backend.post_processor = tokenizers.processors.RobertaProcessing(
        (tokens["sep"], ids["sep"]), (tokens["cls"], ids["cls"]), True, prefix
    )
    backend.add_special_tokens([token for role, token in tokens.items() if role in ids])
    mask = special_tokens.special_token(config, "mask", "<mask>")
    if backend.token_to_id(mask) is not None:
        # the blank in front belongs to the mask, as in the published tokenizer.json files
        backend.add_special_tokens([AddedToken(mask, lstrip=True, special=True, normalized=False)])
    return backend
