"""Compare the outputs of two runs of a notebook.

Processors round differently, and libraries draw the same figure with slightly different pixels. The comparison allows
that much: text is equal except for spaces and last digits, and pictures have about the same size and look the same.
"""

import base64
import io
import re

import numpy as np
from PIL import Image

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?", re.IGNORECASE)
DURATION = re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min)\b")
RELATIVE = 0.02
"""Largest relative difference of two decimal numbers."""
ABSOLUTE = 1e-5
"""Largest difference of two numbers that print rounding errors, such as 2e-07."""
THUMBNAIL = (48, 48)
PIXEL_RMS = 0.04
"""Largest root mean square difference of two thumbnails, where 1 is black against white."""


def is_close(stored: str, fresh: str) -> bool:
    """Return whether two printed numbers agree.

    Whole numbers must be equal. Decimal numbers may differ by 2 percent or by one unit of the last printed digit.

    >>> is_close("0.123", "0.124"), is_close("2e-07", "6e-07"), is_close("0.123", "0.223"), is_close("512", "513")
    (True, True, False, False)
    """
    if not any(mark in number.lower() for number in (stored, fresh) for mark in ".e"):
        return stored == fresh
    first, second = (float(number.replace(",", "")) for number in (stored, fresh))
    decimals = stored.lower().partition("e")[0].partition(".")[2]
    unit = 0.0 if "e" in stored.lower() else 10.0 ** -len(decimals)
    return abs(first - second) <= max(RELATIVE * abs(first), 1.001 * unit, ABSOLUTE)


def text_difference(stored: str, fresh: str) -> str | None:
    """Return a description of the first difference of two texts, or None if they agree.

    >>> text_difference("loss 0.51 after 2.1 s", "loss  0.52 after 7 s")
    >>> text_difference("(2, 10)", "(2, 12)")
    "stored '(2, 10)', fresh '(2, 12)'"
    """
    stored_lines, fresh_lines = (DURATION.sub("TIME", text).strip().splitlines() for text in (stored, fresh))
    if len(stored_lines) != len(fresh_lines):
        return f"stored {len(stored_lines)} lines, fresh {len(fresh_lines)}"
    for stored_line, fresh_line in zip(stored_lines, fresh_lines, strict=True):
        words = [re.sub(r"\s+", "", NUMBER.sub("#", line)) for line in (stored_line, fresh_line)]
        numbers = [NUMBER.findall(line) for line in (stored_line, fresh_line)]
        if words[0] != words[1] or not all(map(is_close, *numbers)):
            return f"stored {stored_line!r}, fresh {fresh_line!r}"
    return None


def picture_difference(stored: str, fresh: str) -> str | None:
    """Return a description of how two base64-encoded PNG files differ, or None if they look the same."""
    pictures = [Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB") for text in (stored, fresh)]
    sizes = [picture.size for picture in pictures]
    if any(abs(first - second) > RELATIVE * first for first, second in zip(*sizes, strict=True)):
        return f"stored picture of {sizes[0]} pixels, fresh one of {sizes[1]}"
    thumbnails = [np.asarray(picture.resize(THUMBNAIL, Image.Resampling.BOX)) / 255.0 for picture in pictures]
    rms = float(np.sqrt(((thumbnails[0] - thumbnails[1]) ** 2).mean()))
    return f"the pictures differ: RMS {rms:.3f}, allowed {PIXEL_RMS}" if rms > PIXEL_RMS else None


def output_difference(stored, fresh) -> str | None:
    """Return a description of how two outputs of a cell differ, or None if they agree."""
    kinds = [(output.output_type, output.get("name"), sorted(output.get("data", {}))) for output in (stored, fresh)]
    if kinds[0] != kinds[1]:
        return f"stored output {kinds[0]}, fresh output {kinds[1]}"
    if stored.output_type == "stream":
        return text_difference(stored.text, fresh.text)
    for kind, content in stored.data.items():
        compare = picture_difference if kind == "image/png" else text_difference
        if (difference := compare(content, fresh.data[kind])) is not None:
            return difference
    return None


def differences(stored, fresh) -> list[str]:
    """Return the differences of the outputs of two runs of a notebook, one line for each cell that differs."""
    found = []
    for before, after in zip(stored.cells, fresh.cells, strict=True):
        outputs = [cell.get("outputs", []) for cell in (before, after)]
        if len(outputs[0]) != len(outputs[1]):
            found.append(f"cell {before.id}: stored {len(outputs[0])} outputs, fresh {len(outputs[1])}")
            continue
        pairs = (output_difference(*pair) for pair in zip(*outputs, strict=True))
        found += [f"cell {before.id}: {difference}" for difference in pairs if difference is not None][:1]
    return found
