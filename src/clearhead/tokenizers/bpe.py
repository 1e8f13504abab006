"""A tokenizer of one's own: byte pair encoding, learnt from texts."""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from clearhead.memory import check_memory
from clearhead.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Layout = Literal["encoder-decoder", "encoder"]
"""Whom a tokenizer is for: an encoder–decoder with Marian's special tokens, or an encoder with BERT's."""

BLANK = "▁"
"""What stands for a blank in a token, U+2581, as sentencepiece writes it."""

_LEARNING = 100
"""Bytes that the trainer takes for each token of the vocabulary, before it learns the first."""

_MOST_FREQUENT = 2**31
"""The library counts pairs in 64 bits, and panics at larger numbers."""

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

# letters, digits and signs are never joined, so that no special token can be learnt from a text that spells it;
# a blank goes with what follows it
WORDS = "|".join(
    (
        rf"{BLANK}?[\p{{L}}\p{{M}}]+",
        rf"{BLANK}?\p{{N}}+",
        rf"{BLANK}?[^\s{BLANK}\p{{L}}\p{{M}}\p{{N}}]+",
        rf"{BLANK}+(?={BLANK})",
        BLANK,
        r"\s+",
    )
)
"""What a word is, as a regular expression."""


def train_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    layout: Layout = "encoder-decoder",
    lowercase: bool = False,
    min_frequency: int = 2,
    max_length: int = 512,
) -> Tokenizer:
    """A tokenizer whose tokens are learnt: the most frequent pair of neighbours in a word becomes one token, again and
    again.

    Equation: (a, b) = argmax count(a b); a b → ab, until the vocabulary is full
    Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", Section 3.2

    Blanks are part of the tokens and characters that are not in the vocabulary are spelt in bytes, so that decoding
    gives the text back: `decode(encode(x)) == x` for x in Unicode's form NFC (in lower case with `lowercase`) without
    U+2581, which stands for a blank. Nothing else is normalised. The same texts give the same vocabulary.

    Special tokens that a text spells out, such as a literal "</s>", are text. An encoder–decoder's vocabulary is </s>,
    <unk>, 256 bytes, the alphabet, what was learnt, <pad>; </s> stands behind every text. An encoder's is [PAD],
    [UNK], [CLS], [SEP], [MASK], 256 bytes, the alphabet, what was learnt; a text is [CLS] A [SEP], a pair
    [CLS] A [SEP] B [SEP].

    Args:
        texts: what to learn from, lines for example; read once, and never held whole.
        vocab_size: tokens in all, special ones, bytes and alphabet included. Small texts give fewer, with a warning.
        layout: whom it is for, "encoder-decoder" or "encoder".
        lowercase: put texts in lower case first.
        min_frequency: how often a pair must come to be joined.
        max_length: what tokenizer_config.json says of the longest input, in tokens.

    Raises:
        ValueError: no text; a vocabulary that does not hold the alphabet; an argument out of range.

    >>> tokenizer = train_bpe(["the old bridge", "the bridge"], vocab_size=300)
    >>> tokenizer.words(tokenizer.encode(["the bridge"])[0].ids)
    ['▁the', '▁bridge', '</s>']
    """
    if layout not in get_args(Layout):
        raise ValueError(f"a tokenizer is for an encoder-decoder or for an encoder; got {layout!r}")
    for name, number in (("min_frequency", min_frequency), ("max_length", max_length)):
        if number < 1:
            raise ValueError(f"{name} must be 1 or more; got {number}")
    if min_frequency > _MOST_FREQUENT:
        raise ValueError(f"min_frequency must be at most {_MOST_FREQUENT:,}; got {min_frequency}")
    check_memory(
        _LEARNING * vocab_size, f"learning a vocabulary of {vocab_size} tokens", "Choose a smaller vocab_size."
    )
    front, back = (["</s>", "<unk>"], ["<pad>"]) if layout == "encoder-decoder" else (_BERT, [])
    own = len(front) + len(_BYTES) + len(back)
    backend = _words(lowercase)
    pieces, merges = _learn(backend, _checked(texts), vocab_size - own, min_frequency)
    if own + len(pieces) > vocab_size:
        raise ValueError(
            f"a vocabulary of {vocab_size} is too small: the alphabet of these texts has {len(pieces)} characters, and "
            f"{own} tokens are special ones and bytes; ask for {own + len(pieces)} or more"
        )
    if own + len(pieces) < vocab_size:
        said = "the texts gave a vocabulary of %d tokens, not of %d: no more pairs come %d times or more"
        log.warning(said, own + len(pieces), vocab_size, min_frequency)
    tokens = [*front, *_BYTES, *pieces, *back]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    assert len(vocabulary) == len(tokens)
    backend.model = models.BPE(vocabulary, merges, unk_token=front[1], byte_fallback=True)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in [*front, *back]])
    _frame(backend, layout)
    return Tokenizer(backend, _config(layout, max_length))


def tokens_per_word(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """How many tokens a word takes, words being what stands between blanks; special tokens do not count.

    Args:
        tokenizer: what cuts the words.
        texts: the texts.

    Raises:
        ValueError: no words.

    >>> tokenizer = train_bpe(["the old bridge", "the bridge"], vocab_size=300)
    >>> tokens_per_word(tokenizer, ["the bridge"])
    1.0
    """
    words = sum(len(text.split()) for text in texts)
    if not words:
        raise ValueError("there are no words to count tokens of; all texts are blank")
    count = sum(len(encoding) for encoding in tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False))
    return count / words


_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _words(lowercase: bool) -> Backend:
    """What cuts texts into words, and joins tokens to texts again."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if lowercase else []),
            normalizers.NFC(),
            normalizers.Prepend(BLANK),  # the first word is the same token as within a text
            normalizers.Replace(" ", BLANK),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _learn(
    backend: Backend, texts: Iterable[str], room: int, min_frequency: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """The alphabet with what was joined, and the joins; the alphabet is whole even where there is no room for it."""
    # the trainer would take a room of 0 for no limit
    trainer = trainers.BpeTrainer(
        vocab_size=max(1, room), min_frequency=min_frequency, special_tokens=[], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    learnt = json.loads(backend.to_str())["model"]
    if not learnt["vocab"]:
        raise ValueError("there is no text to learn from; all texts are empty")
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)
    return pieces, [(left, right) for left, right in learnt["merges"]]


def _checked(texts: Iterable[object]) -> Iterator[str]:
    if isinstance(texts, str):
        raise ValueError("a list of texts is wanted; got a single string: put it in a list")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {number} is a {type(text).__name__}; a string is wanted")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text {number} holds half a surrogate pair at character {error.start}, which is no Unicode text"
            ) from None
        yield text


def _frame(backend: Backend, layout: Layout) -> None:
    """What stands around a text, and around a pair."""
    if layout == "encoder-decoder":
        single, pair, around = "$A </s>", "$A $B </s>", ["</s>"]
    else:
        single, pair, around = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ["[CLS]", "[SEP]"]
    ids = [(token, backend.token_to_id(token)) for token in around]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _config(layout: Layout, max_length: int) -> dict[str, Any]:
    """tokenizer_config.json."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    if layout == "encoder-decoder":
        config |= {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        return config | {"model_input_names": ["input_ids", "attention_mask"]}
    config |= {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    return config | {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
