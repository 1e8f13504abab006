"""Which language a text is in: English, German, or neither."""

import pytest

from clearhead.pipelines.seq2seq.language_detection import detect_language


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where can I buy a ticket?", "en"),
        ("It's raining, so we should take the bus.", "en"),
        ("how are you", "en"),
        ("I DON’T KNOW", "en"),
        ("Hello", "en"),
        ("Wo kann ich eine Fahrkarte kaufen?", "de"),
        ("Es regnet, also nehmen wir den Bus.", "de"),
        ("wie geht es dir", "de"),
        ("DAS WEIẞ ICH NICHT", "de"),
        ("Danke", "de"),
    ],
)
def test_language_is_clear(text, expected):
    assert detect_language(text) == (expected, True)


@pytest.mark.parametrize("text", ["", "123", "😀", "Привет", "Il fait beau aujourd'hui.", "Où est la gare ?"])
def test_other_languages_are_not_clear(text):
    assert not detect_language(text)[1]
