"""Decode tokens of byte-level vocabularies (RoBERTa, BART, ModernBERT) to readable text."""

import re

_INVISIBLE = (*range(33), *range(127, 161), 173)
"""Bytes without a visible Latin-1 character; the vocabulary uses character 256 + n for the n-th of them."""
_BYTES = {chr(byte): byte for byte in range(256)} | {chr(256 + number): byte for number, byte in enumerate(_INVISIBLE)}
_SYMBOLS = {byte: chr(0x2400 + byte) for byte in range(32)} | {32: "▁", 127: "␡"}
"""Symbols for the space (as in other vocabularies) and for control characters."""


def decode_byte_level(token: str) -> str:
    """Return a token's bytes as text; bytes of incomplete characters are in hexadecimal, as in other vocabularies.

    >>> from clearhead.tokenizers.byte_level import decode_byte_level
    >>> decode_byte_level("ĠBrÃ¼cke"), decode_byte_level("ðŁ")
    ('▁Brücke', '<0xF0><0x9F>')
    """
    try:
        text = bytes(_BYTES[letter] for letter in token).decode("utf-8", "surrogateescape")
    except KeyError:  # an added token, which is plain text
        text = token
    return re.sub("[\udc80-\udcff]", lambda part: f"<0x{ord(part[0]) - 0xDC00:02X}>", text.translate(_SYMBOLS))
