"""Which ids the encoder-decoder families give to the pieces of their sentencepiece models."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clearhead.tokenizers import languages, special_tokens


@dataclass(frozen=True)
class SentencePieceVocabulary:
    """A family's files and ids.

    Without a vocabulary file the ids count through `first`, the model's pieces but for `skipped`, and `last`.

    Args:
        tokenizer_class: what transformers calls the tokenizer.
        models: the sentencepiece model of source texts, and that of target texts where there is another.
        vocabulary: the file that gives pieces their ids; None where there is none.
        first: the tokens in front of the pieces.
        skipped: how many pieces `first` stands for.
        last: the tokens behind the pieces.
        special: the special tokens beside `first` and `last`, as far as the vocabulary has them.
        scheme: how the family is told languages; None if it knows none.
        joins: whether pieces become text by joining them, as in the families' tokenizer.json, and not by the
            sentencepiece model.
    """

    tokenizer_class: str
    models: tuple[str, ...]
    vocabulary: str | None = None
    first: tuple[str, ...] = ()
    skipped: int = 0
    last: tuple[str, ...] = ()
    special: tuple[str, ...] = ("<unk>", "</s>", "<pad>")
    scheme: languages.LanguageTokenScheme | None = None
    joins: bool = True


def layout(family: str, config: dict[str, Any], folder: Path) -> SentencePieceVocabulary | None:
    """The layout of a family, as a folder's tokenizer config modifies it; None for a family without such models.

    Args:
        family: a model type; "mbart50" and "nllb" stand beside "mbart" and "m2m_100".
        config: the contents of tokenizer_config.json.
        folder: for messages.

    Raises:
        ValueError: a setting that is not understood.
    """
    match family:
        case "marian":
            return _MARIAN
        case "t5" | "mt5":
            return replace(_T5, last=_extra_ids(config, folder))
        case "pegasus":
            if config.get("offset", 103) != 103:
                raise ValueError(f"tokenizer_config.json in {folder} says offset={config['offset']!r}; 103 is wanted")
            return _PEGASUS
        case "mbart":
            return _MBART
        case "mbart50":
            return _MBART50
        case "nllb":
            codes = [token for token in special_tokens.additional_tokens(config) if token != "<mask>"] or languages.NLLB
            return replace(_NLLB, last=(*codes, "<mask>"), scheme=languages.scheme("nllb", config))
        case "m2m_100":
            name = config.get("language_codes") or "m2m100"
            if name not in languages.M2M100:
                raise ValueError(
                    f"tokenizer_config.json in {folder} says language_codes={name!r}; "
                    f"one of {', '.join(languages.M2M100)} is wanted"
                )
            return replace(_M2M100, last=tuple(f"__{code}__" for code in languages.M2M100[name]))
    return None


_MARIAN = SentencePieceVocabulary(
    "MarianTokenizer",
    ("source.spm", "target.spm"),
    "vocab.json",
    scheme=languages.SCHEMES["marian"],
    joins=False,
)
_M2M100 = SentencePieceVocabulary(
    "M2M100Tokenizer",
    ("sentencepiece.bpe.model",),
    "vocab.json",
    special=("<s>", "</s>", "<unk>", "<pad>"),
    scheme=languages.SCHEMES["m2m_100"],
    joins=False,
)
_T5 = SentencePieceVocabulary("T5Tokenizer", ("spiece.model",))
_PEGASUS = SentencePieceVocabulary(
    "PegasusTokenizer",
    ("spiece.model",),
    first=("<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, 103))),
    skipped=2,
)
# fairseq puts its own four tokens where sentencepiece has three
_MBART = SentencePieceVocabulary(
    "MBartTokenizer",
    ("sentencepiece.bpe.model",),
    first=("<s>", "<pad>", "</s>", "<unk>"),
    skipped=3,
    last=(*languages.MBART, "<mask>"),
    scheme=languages.SCHEMES["mbart"],
)
_MBART50 = replace(
    _MBART,
    tokenizer_class="MBart50Tokenizer",
    last=(*languages.MBART50, "<mask>"),
    scheme=languages.SCHEMES["mbart50"],
)
_NLLB = replace(_MBART, tokenizer_class="NllbTokenizer")


def _extra_ids(config: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """T5's sentinels for masked spans; the last one comes first."""
    count = config.get("extra_ids", 100)
    if type(count) is not int or count < 0:
        raise ValueError(f"tokenizer_config.json in {folder} says extra_ids={count!r}; a count is wanted")
    return tuple(f"<extra_id_{number}>" for number in reversed(range(count)))
