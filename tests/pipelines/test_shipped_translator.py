"""The translators inside the package: translations, model cards, and parity with other libraries."""

import hashlib
import re
from pathlib import Path

import pytest
import torch
from support.command import started

from clearhead import TextToText
from clearhead.io import hub

NAMES = list(hub.TRANSLATORS.values())
RECIPES = {"tatoeba-en-de": "recipes/translator/en-de.yaml", "tatoeba-de-en": "recipes/translator/de-en.yaml"}
ROOT = Path(__file__).parents[2]
ENGLISH = ROOT / "examples" / "everyday.txt"
SENTENCES = {"tatoeba-en-de": ENGLISH, "tatoeba-de-en": ROOT / "recipes" / "translator" / "sentences.de"}
GERMAN = [
    "Wir werden unsere Freunde am nächsten Wochenende besuchen.",
    "Wo kann ich ein Ticket kaufen?",
    "Meine Großmutter backt jeden Sonntag morgens Brot.",
    "Ich habe meine Schlüssel verloren und kann nicht ins Haus kommen.",
    "Könntest du bitte langsamer sprechen?",
    "Sie lernt schon seit drei Jahren Geige.",
    "Es regnet, also sollten wir den Bus nehmen.",
    "Er war zu müde zum Kochen, also bestellte sie eine Pizza.",
    "Wie viel kostet dieses Buch?",
    "Vergiss nicht, heute Abend deinen Bruder anzurufen!",
]


TO_ENGLISH = [
    "We'll visit our friends next weekend.",
    "Where can I buy a ticket?",
    "My grandmother bakes bread every Sunday morning.",
    "I lost my keys and can't get into the house.",
    "Could you speak more slowly, please?",
    "She has been studying violin for three years.",
    "It's raining, so we should take the bus.",
    "He was too tired to cook because they ordered a pizza.",
    "How much is this book?",
    "Don't forget to call your brother tonight.",
]


@pytest.fixture(scope="module", params=NAMES)
def translator(request):
    return TextToText.from_pretrained(request.param, precision="float32", device="cpu")


def name_of(translator):
    return hub.TRANSLATORS[translator.direction]


def test_translations_of_ten_sentences(translator):
    expected = {"tatoeba-en-de": GERMAN, "tatoeba-de-en": TO_ENGLISH}[name_of(translator)]
    assert translator.generate(lines(SENTENCES[name_of(translator)])[:10]) == expected


@pytest.mark.slow
def test_shipped_translator_is_the_default_of_translate():
    status, out, err = started("translate", "--precision", "float32", ENGLISH)
    assert (status, err) == (0, "")
    assert out.splitlines() == GERMAN


@pytest.mark.slow
def test_german_texts_are_translated_to_english(tmp_path):
    german = tmp_path / "texts.txt"
    german.write_text("\n".join(lines(SENTENCES["tatoeba-de-en"])[:10]), encoding="utf-8")
    status, out, err = started("translate", "--precision", "float32", german)
    assert status == 0
    assert out.splitlines() == TO_ENGLISH
    assert "translated 10 texts from German to English" in err


@pytest.mark.parametrize("name", NAMES)
def test_model_card_names_weights_and_training_data(name):
    folder = hub.resolve_model(name)
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert re.findall(r"\b[0-9a-f]{64}\b", card) == [digest]
    for phrase in (
        "CC BY 2.0",
        "tatoeba.org",
        "manythings.org/anki",
        RECIPES[name],
        "BLEU",
        "chrF",
    ):
        assert phrase in card


def test_shipped_translators_are_small():
    sizes = {
        name: sum(path.stat().st_size for folder in map(hub.resolve_model, NAMES) for path in folder.glob(name))
        for name in ("model.safetensors", "*")
    }
    assert sizes["model.safetensors"] <= 36_000_000
    assert round(sizes["*"] / 1e6) == 57


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 5])
def test_tokens_equal_transformers(translator, beams):
    transformers = pytest.importorskip("transformers")
    texts = lines(SENTENCES[name_of(translator)])[:32]
    folder = hub.resolve_model(name_of(translator))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    assert model.dtype == torch.float32
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        theirs = model.generate(**inputs, num_beams=beams, max_new_tokens=60, do_sample=False)
    plain = TextToText.from_pretrained(folder, precision="float32", device="cpu", copy_unknown=False)
    ours = plain.generate(texts, beam_size=beams, max_new_tokens=60, return_details=True)
    pad = translator.model.config.pad_id
    assert [[number for number in row[1:] if number != pad] for row in theirs.tolist()] == [
        list(output.token_ids) for output in ours
    ]


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 5])
def test_texts_equal_ctranslate2(translator, beams, tmp_path):
    ctranslate2, transformers = pytest.importorskip("ctranslate2"), pytest.importorskip("transformers")
    folder = hub.resolve_model(name_of(translator))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    converted = ctranslate2.converters.TransformersConverter(str(folder)).convert(str(tmp_path / "converted"))
    theirs = ctranslate2.Translator(converted, compute_type="float32")
    texts = lines(SENTENCES[name_of(translator)])[:10]
    rows = [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in texts]
    translations = [
        tokenizer.decode(tokenizer.convert_tokens_to_ids(output.hypotheses[0]))
        for output in theirs.translate_batch(rows, beam_size=beams)
    ]
    assert translations == translator.generate(texts, beam_size=beams)


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()
