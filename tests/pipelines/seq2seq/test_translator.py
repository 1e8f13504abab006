"""The translators of the package, in the direction that each text requires."""

import pytest
from support.command import refused, started

from clearhead import TextToText
from clearhead.io import hub
from clearhead.pipelines.translator import Translator, choose_directions

ENGLISH, GERMAN = "Where can I buy a ticket?", "Es regnet, also nehmen wir den Bus."


@pytest.fixture(scope="module")
def english_german():
    return TextToText.from_pretrained(precision="float32", device="cpu")


@pytest.fixture
def both(monkeypatch, english_german):
    """Translators for both directions; the second has the model of the first, and counts its texts."""
    monkeypatch.setattr(hub, "is_installed", lambda name: name in hub.TRANSLATORS.values())
    loaded = []

    def load(name):
        loaded.append(name)
        return english_german

    return load, loaded


def test_each_text_takes_its_direction(both, english_german):
    load, loaded = both
    translator = Translator(load=load)
    texts = [ENGLISH, "", GERMAN, "How are you?", "2 😀"]
    assert translator.generate(texts) == [english_german.generate(text) for text in texts]
    assert loaded == ["tatoeba-en-de", "tatoeba-de-en"]
    assert translator.counts == {("en", "de"): 3, ("de", "en"): 1}
    assert translator.report() == (
        "translated 3 texts from English to German and 1 text from German to English; 1 text may be in neither "
        "language. Set the direction with --from and --to"
    )


def test_only_the_model_of_the_direction_is_loaded(both):
    load, loaded = both
    for languages in (("de", None), (None, "en"), ("auto", "en"), ("de", "en")):
        translator = Translator(*languages, load)
        assert isinstance(translator.generate(ENGLISH), str)
        assert translator.report() is None
    assert set(loaded) == {"tatoeba-de-en"}


def test_clear_english_needs_no_report(both):
    translator = Translator(load=both[0])
    translator.generate([ENGLISH])
    assert translator.report() is None


def test_streams_keep_their_order(both, english_german):
    texts = [ENGLISH, GERMAN] * 5
    outputs = Translator(load=both[0]).generate_iter(iter(texts), window=3, beam_size=1)
    assert [output.text for output in outputs] == english_german.generate(texts, beam_size=1)


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (("fr", None), "there is no translator from 'fr'; the directions are en to de, de to en"),
        ((None, "fr"), "there is no translator to 'fr'; the directions are en to de, de to en"),
        (("de", "de"), "there is no translator from 'de' to 'de'; the directions are en to de, de to en"),
    ],
)
def test_other_directions_are_errors(languages, message):
    with pytest.raises(ValueError, match="^" + message + "$"):
        choose_directions(*languages)


def test_missing_translator_is_an_error(monkeypatch):
    monkeypatch.setattr(hub, "is_installed", lambda name: name == "tatoeba-en-de")
    with pytest.raises(
        ValueError, match=r"from German to English \(tatoeba-de-en\) is not installed; installed: en to de"
    ):
        choose_directions("de", None)
    with pytest.raises(ValueError, match="'tatoeba-de-en' is not installed: this package contains tatoeba-en-de"):
        hub.resolve_model("tatoeba-de-en")


def test_german_without_its_translator_is_reported(monkeypatch, english_german):
    monkeypatch.setattr(hub, "is_installed", lambda name: name == "tatoeba-en-de")
    translator = Translator(load=lambda name: english_german)
    translator.generate([ENGLISH, GERMAN])
    assert "1 text looks German, but the translator from German to English is not installed" in translator.report()


def test_languages_of_a_loaded_translator(english_german):
    assert english_german.generate(ENGLISH, source_lang="en", target_lang="de") == english_german.generate(ENGLISH)
    with pytest.raises(ValueError, match="translates from 'en' to 'de'; got source_lang='de' and target_lang=None"):
        english_german.generate(ENGLISH, source_lang="de")


@pytest.mark.slow
def test_command():
    status, out, err = started("translate", "--from", "en", "--to", "de", ENGLISH)
    assert (status, out, err) == (0, "Wo kann ich ein Ticket kaufen?\n", "")
    assert "there is no translator from 'fr'" in refused("translate", "--from", "fr", ENGLISH)


@pytest.mark.slow
def test_command_reports_a_text_in_neither_language():
    status, out, err = started("translate", "Il fait beau aujourd'hui.")
    assert status == 0
    assert out.strip()
    assert "translated 1 text from English to German; 1 text may be in neither language" in err
