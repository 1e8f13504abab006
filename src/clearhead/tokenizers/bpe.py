"""Train a tokenizer with byte pair encoding."""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

from tokenizers import AddedToken, models, processors, trainers
from tokenizers import Tokenizer as Backend

from clearhead.memory import check_memory
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.tokenizers.vocabulary_files import untrained_bpe

log = logging.getLogger(__name__)

Architecture = Literal["encoder-decoder", "encoder"]
"""Architecture of the tokenizer's model: an encoder–decoder has Marian's special tokens, an encoder has BERT's."""

_TRAINER_BYTES = 100
"""Bytes that the trainer allocates for each token of the vocabulary, before it learns the first."""

_MAX_FREQUENCY = 2**31
"""Limit of min_frequency: the library panics at larger numbers."""

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    architecture: Architecture = "encoder-decoder",
    lowercase: bool = False,
    min_frequency: int = 2,
    max_length: int = 512,
) -> Tokenizer:
    """Train a tokenizer: merge the most frequent pair of adjacent tokens in a word, again and again.

    Equation: (a, b) = argmax count(a b); a b → ab, until the vocabulary is full
    Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", Section 3.2

    Spaces are part of the tokens, and characters outside the vocabulary become bytes. So decoding restores the text:
    `decode(encode(x)) == x` for x in Unicode form NFC (lowercase if `lowercase`) without U+2581, which stands for a
    space. There is no other normalization. The same texts give the same vocabulary.

    Special tokens that a text spells out, such as a literal "</s>", are encoded as text. The vocabulary of an
    encoder–decoder is </s>, <unk>, 256 bytes, the alphabet, the merges, <pad>; each text ends with </s>. The vocabulary
    of an encoder is [PAD], [UNK], [CLS], [SEP], [MASK], 256 bytes, the alphabet, the merges. A text is [CLS] A [SEP], a
    pair is [CLS] A [SEP] B [SEP].

    Args:
        texts: the training texts, for example lines; they are read once and not kept in memory.
        vocab_size: the number of tokens, including special tokens, bytes and alphabet. Small corpora give fewer, with a
            warning.
        architecture: the architecture of the model, "encoder-decoder" or "encoder".
        lowercase: whether texts are lowercased first.
        min_frequency: the minimum frequency of a pair to be merged.
        max_length: the model_max_length in tokenizer_config.json.

    Raises:
        ValueError: there is no text, the vocabulary is too small for the alphabet, or an argument is out of range.

    >>> tokenizer = train_bpe(["the old bridge", "the bridge"], vocab_size=300)
    >>> tokenizer.ids_to_tokens(tokenizer.encode(["the bridge"])[0].ids)
    ['▁the', '▁bridge', '</s>']
    """
    _check_arguments(architecture, min_frequency, max_length)
    check_memory(
        _TRAINER_BYTES * vocab_size, f"learning a vocabulary of {vocab_size} tokens", "Choose a smaller vocab_size."
    )
    first, last = (["</s>", "<unk>"], ["<pad>"]) if architecture == "encoder-decoder" else (_BERT_TOKENS, [])
    num_reserved = len(first) + len(_BYTES) + len(last)
    backend = untrained_bpe(lowercase)
    pieces, merges = _learn(backend, _checked(texts), vocab_size - num_reserved, min_frequency)
    if num_reserved + len(pieces) > vocab_size:
        raise ValueError(
            f"a vocabulary of {vocab_size} is too small: the alphabet of these texts has {len(pieces)} characters, and "
            f"{num_reserved} tokens are special tokens and bytes. Use {num_reserved + len(pieces)} or more"
        )
    if num_reserved + len(pieces) < vocab_size:
        log.warning(
            "the texts are too few for a vocabulary of %d tokens: it has %d, because no other pair of tokens occurs "
            "%d times",
            *(vocab_size, num_reserved + len(pieces), min_frequency),
        )
    tokens = [*first, *_BYTES, *pieces, *last]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    assert len(vocabulary) == len(tokens)
    backend.model = models.BPE(vocabulary, merges, unk_token=first[1], byte_fallback=True)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in [*first, *last]])
    _add_template(backend, architecture)
    return Tokenizer(backend, _config(architecture, max_length))


def tokens_per_word(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Return the average number of tokens in a word, without special tokens; words are separated by whitespace.

    Args:
        tokenizer: the tokenizer.
        texts: the texts.

    Raises:
        ValueError: the texts have no words.

    >>> tokenizer = train_bpe(["the old bridge", "the bridge"], vocab_size=300)
    >>> tokens_per_word(tokenizer, ["the bridge"])
    1.0
    """
    words = sum(len(text.split()) for text in texts)
    if not words:
        raise ValueError("the texts have no words; all of them are blank")
    count = sum(len(encoding) for encoding in tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False))
    return count / words


def _check_arguments(architecture: str, min_frequency: int, max_length: int) -> None:
    if architecture not in get_args(Architecture):
        raise ValueError(f"expected the architecture encoder-decoder or encoder; got {architecture!r}")
    for name, number in (("min_frequency", min_frequency), ("max_length", max_length)):
        if number < 1:
            raise ValueError(f"{name} must be 1 or more; got {number}")
    if min_frequency > _MAX_FREQUENCY:
        raise ValueError(f"min_frequency must be at most {_MAX_FREQUENCY:,}; got {min_frequency}")


def _learn(
    backend: Backend, texts: Iterable[str], room: int, min_frequency: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the whole alphabet with the learned tokens, and the merges."""
    # the trainer takes a size of 0 for no limit
    trainer = trainers.BpeTrainer(
        vocab_size=max(1, room), min_frequency=min_frequency, special_tokens=[], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    if not model["vocab"]:
        raise ValueError("no text to learn from: all texts are empty")
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return pieces, [(left, right) for left, right in model["merges"]]


def _checked(texts: Iterable[object]) -> Iterator[str]:
    if isinstance(texts, str):
        raise ValueError("expected a list of texts, got a single string. Put it in a list")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {number} is a {type(text).__name__}; expected a string")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text {number} has half a surrogate pair at character {error.start}, which is not valid Unicode"
            ) from None
        yield text


def _add_template(backend: Backend, architecture: Architecture) -> None:
    """Set the special tokens that are added to a text and to a pair."""
    if architecture == "encoder-decoder":
        single, pair, added = "$A </s>", "$A $B </s>", ["</s>"]
    else:
        single, pair, added = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ["[CLS]", "[SEP]"]
    ids = [(token, backend.token_to_id(token)) for token in added]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _config(architecture: Architecture, max_length: int) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    if architecture == "encoder-decoder":
        config |= {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        return config | {"model_input_names": ["input_ids", "attention_mask"]}
    config |= {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    return config | {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
