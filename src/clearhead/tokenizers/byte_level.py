"""Tokens of a byte-level vocabulary (RoBERTa's, BART's, ModernBERT's) as people read them."""

import re

_UNSEEN = (*range(33), *range(127, 161), 173)
"""Bytes that are no visible character of Latin-1: the vocabulary writes the n-th of them as character 256 + n."""
_BYTES = {chr(byte): byte for byte in range(256)} | {chr(256 + place): byte for place, byte in enumerate(_UNSEEN)}
_PICTURES = {byte: chr(0x2400 + byte) for byte in range(32)} | {32: "▁", 127: "␡"}
"""A blank as other vocabularies write it; a line's end and other controls as the signs that Unicode has for them."""


def decode_byte_level(token: str) -> str:
    """A token's bytes as text; bytes that are only part of a character in hex, as other vocabularies write them.

    >>> from clearhead.tokenizers.byte_level import decode_byte_level
    >>> decode_byte_level("ĠBrÃ¼cke"), decode_byte_level("ðŁ")
    ('▁Brücke', '<0xF0><0x9F>')
    """
    try:
        text = bytes(_BYTES[letter] for letter in token).decode("utf-8", "surrogateescape")
    except KeyError:  # an added token, which is not written in bytes
        text = token
    return re.sub("[\udc80-\udcff]", lambda part: f"<0x{ord(part[0]) - 0xDC00:02X}>", text.translate(_PICTURES))
