"""Sample texts for comparing an exported model with the original."""

from collections.abc import Sequence
from pathlib import Path

from clearhead.data.corpus import Corpus

TEXTS = (
    "Hello.",
    "Where can I buy a ticket to Hamburg?",
    "My grandmother bakes bread every Sunday morning.",
    "The old bridge was closed after the storm, and nobody knows when it will open again.",
    "She has lived in Lisbon since 2014, but she still dreams in Finnish.",
    "Water boils at 100 °C at sea level; on a high mountain it takes less.",
    "“I don't believe it,” he said, “until I have seen it myself.”",
    "3.14159 is not π, and 22/7 is not either.",
    "Wo ist der nächste Bahnhof, und wann fährt der letzte Zug?",
    "Les enfants jouaient dans le jardin pendant que leur père préparait le dîner.",
    "La biblioteca cierra a las ocho, excepto los domingos.",
    "Как пройти на вокзал?",
    "今日は天気がいいですね。",
    "The committee, which had met four times since the spring without finding words that all of its members would "
    "sign, agreed in the end to publish two reports: one that said what had happened, and another, a good deal "
    "shorter, that said what ought to happen next.",
    "An encoder reads a whole text at once: every token looks at every other, in both directions, and what it finds "
    "there becomes part of what it is. A decoder writes one token after the other and looks back only.",
    "ok",
    "Please, please, please do not press that button!",
    "He bought apples, pears, plums, cherries and, because they were cheap, two melons.",
)


def texts_or_samples(path: Path | None) -> tuple[str, ...]:
    """Return the texts of a file that are not empty; without a file, `TEXTS`.

    Raises:
        ValueError: all texts of the file are empty, or as in `Corpus`.

    >>> from clearhead.export.sample_texts import texts_or_samples
    >>> texts_or_samples(None)[0]
    'Hello.'
    """
    if path is None:
        return TEXTS
    texts = tuple(text for text in Corpus([str(path)]) if text.strip())
    if not texts:
        raise ValueError(f"{path} has no text; give a file with at least one line that is not empty")
    return texts


def non_empty_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts that are not empty.

    Raises:
        ValueError: all texts are empty.
    """
    non_empty = [text for text in texts if text.strip()]
    if not non_empty:
        raise ValueError("no text to compare the export on; pass --texts a file with at least one non-empty line")
    return non_empty
