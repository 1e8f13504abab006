"""Byte-level tokens in readable form."""

import re

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from clearhead.tokenizers.byte_level import decode_byte_level
from clearhead.tokenizers.tokenizer import Tokenizer

TEXT = "Die Brücke שלום 👩 é"


def trained(size, decoder=None):
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoder or decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=["<s>", "Ã¼"])
    backend.train_from_iterator([TEXT] * 5, trainer)
    return Tokenizer(backend)


@pytest.mark.parametrize("size", [258, 266, 330])
def test_decoded_tokens_form_the_text(size):
    """Vocabularies from bytes to words: incomplete characters are in hexadecimal."""
    tokenizer = trained(size)
    shown = tokenizer.display_tokens(tokenizer.encode([TEXT])[0].ids)
    raw = b"".join(
        bytes.fromhex(piece[3:5]) if piece.startswith("<0x") else piece.encode()
        for word in shown
        for piece in re.split("(<0x..>)", word)
    )
    assert raw.decode().replace("▁", " ") == TEXT
    assert ("▁Brücke" in shown) == (size == 330)
    assert (len(shown) == len(TEXT.encode())) == (size == 258)


def test_every_byte_is_decoded():
    tokenizer = trained(258)
    for byte in range(256):
        (number,) = tokenizer.encode([chr(byte)])[0].ids if byte < 128 else [None]
        if number is not None:
            (shown,) = tokenizer.display_tokens([number])
            assert shown == {32: "▁", 127: "␡"}.get(byte, chr(byte) if byte >= 32 else chr(0x2400 + byte))
    assert decode_byte_level("ðŁĳ") == "<0xF0><0x9F><0x91>"


def test_added_tokens_are_not_decoded():
    tokenizer = trained(258)
    assert tokenizer.display_tokens([tokenizer.token_id("<s>"), tokenizer.token_id("Ã¼")]) == ["<s>", "Ã¼"]
    assert decode_byte_level("→") == "→"


def test_tokens_of_other_vocabularies_are_unchanged():
    plain = Tokenizer(Backend(models.WordLevel({"Ġa": 0, "Ã¼": 1}, "Ġa")))
    assert plain.display_tokens([0, 1, 7]) == plain.ids_to_tokens([0, 1, 7]) == ["Ġa", "Ã¼", ""]
    assert trained(330, decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()])).display_tokens([]) == []


def test_byte_level_decoder_in_a_sequence():
    tokenizer = trained(330, decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]))
    assert "▁Brücke" in tokenizer.display_tokens(tokenizer.encode([TEXT])[0].ids)
