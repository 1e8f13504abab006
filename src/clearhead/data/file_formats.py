"""Recognize the format of files by their extension, and files that are not UTF-8 text by their first bytes."""

from pathlib import Path

GZIP = b"\x1f\x8b"

_COMPRESSED = {
    b"\x28\xb5\x2f\xfd": ("Zstandard", "zstd -d"),
    b"BZh": ("bzip2", "bzip2 -d"),
    b"\xfd7zXZ\x00": ("xz", "xz -d"),
    b"PK\x03\x04": ("zip", "unzip"),
    GZIP: ("gzip", "gzip -d"),
}
# the mark of UTF-32 starts with that of UTF-16
_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def file_extension(path: str | Path) -> str:
    """Return the extension of a file, without .gz.

    >>> from clearhead.data.file_formats import file_extension
    >>> file_extension("data/train.tsv.gz")
    '.tsv'
    """
    return Path(str(path).removesuffix(".gz")).suffix


def check_text_format(first: bytes, name: str) -> None:
    """Refuse compressed text, Parquet, UTF-16 and UTF-32.

    Args:
        first: the first bytes of the text; a few hundred are enough.
        name: the file name, for messages.

    Raises:
        ValueError: the text has one of these formats; the message has the command that converts it.

    >>> from clearhead.data.file_formats import check_text_format
    >>> check_text_format("one café".encode(), "a.txt")
    """
    for magic, (kind, command) in _COMPRESSED.items():
        if first.startswith(magic):
            raise ValueError(f"{name} contains {kind} data, not text. Decompress it first: {command}")
    if first.startswith(b"PAR1"):
        raise ValueError(f"{name} is a Parquet file; rename it to end in .parquet")
    encoding = next((name for mark, name in _MARKS.items() if first.startswith(mark)), None) or _encoding_without_mark(
        first
    )
    if encoding is not None:
        raise ValueError(f"{name} is {encoding}, not UTF-8. Convert it first: iconv -f {encoding} -t UTF-8")


def _encoding_without_mark(first: bytes) -> str | None:
    """Return the encoding of UTF-16 or UTF-32 without a byte order mark; None for other text.

    The high bytes of characters below U+2000 are 0 or control characters, which do not occur in UTF-8 text.
    """
    for encoding, width in (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2)):
        little = encoding.endswith("le")
        high = first[width - 1 :: width] if little else first[::width]
        low = first[::width] if little else first[width - 1 :: width]
        if len(high) < 2 or 0 not in high or 0 in low or (width == 4 and any(high)):
            continue
        controls = sum(byte < 32 and byte not in b"\t\n\r" for byte in high)
        text = first[: len(first) // width * width].decode(encoding, "replace")
        if controls >= 0.8 * len(high) and any(character.isalpha() for character in text):
            return encoding.upper()
    return None
