"""The translator inside the package: translations, model card, and parity with other libraries."""

import hashlib
import re
from pathlib import Path

import pytest
import torch
from support.command import started

from clearhead import TextToText
from clearhead.io import hub

FOLDER = hub.resolve_model(hub.TRANSLATOR)
ENGLISH = Path(__file__).parents[2] / "examples" / "everyday.txt"
GERMAN = [
    "Wir werden unsere Freunde am nächsten Wochenende besuchen.",
    "Wo kann ich ein Ticket kaufen?",
    "Meine Großmutter bäckt jeden Sonntag Brot.",
    "Ich habe meine Schlüssel verloren und kann nicht ins Haus kommen.",
    "Könntest du bitte langsamer sprechen?",
    "Sie lernt schon seit drei Jahren Geige.",
    "Es regnet, also sollten wir den Bus nehmen.",
    "Er war zu müde zum Kochen, also bestellten sie eine Pizza.",
    "Wie viel kostet dieses Buch?",
    "Vergiss nicht, deinen Bruder heute Abend anzurufen.",
]


@pytest.fixture(scope="module")
def translator():
    return TextToText.from_pretrained(precision="float32", device="cpu")


def test_translations_of_ten_sentences(translator):
    assert translator.generate(ENGLISH.read_text(encoding="utf-8").splitlines()) == GERMAN


def test_shipped_translator_is_the_default_of_translate():
    status, out, err = started("translate", "--precision", "float32", ENGLISH)
    assert (status, err) == (0, "")
    assert out.splitlines() == GERMAN


def test_model_card_names_weights_and_training_data():
    card = (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")
    digest = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert re.findall(r"\b[0-9a-f]{64}\b", card) == [digest]
    for phrase in (
        "CC BY 2.0",
        "tatoeba.org",
        "manythings.org/anki",
        "recipes/datasets/tatoeba-en-de.yaml",
        "BLEU",
        "chrF",
    ):
        assert phrase in card


def test_shipped_translator_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 30_000_000
    assert round(sum(path.stat().st_size for path in FOLDER.glob("*.safetensors")) / 1e6) == 28


@pytest.mark.parametrize("beams", [1, 5])
def test_tokens_equal_transformers(translator, beams):
    transformers = pytest.importorskip("transformers")
    texts = [line for name in ("everyday", "sentences") for line in lines(ENGLISH.with_name(f"{name}.txt"))]
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.MarianMTModel.from_pretrained(FOLDER).eval()
    assert model.dtype == torch.float32
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        theirs = model.generate(**inputs, num_beams=beams, max_new_tokens=60, do_sample=False)
    ours = translator.generate(texts, beam_size=beams, max_new_tokens=60, return_details=True)
    pad = translator.model.config.pad_id
    assert [[number for number in row[1:] if number != pad] for row in theirs.tolist()] == [
        list(output.token_ids) for output in ours
    ]


@pytest.mark.parametrize("beams", [1, 5])
def test_texts_equal_ctranslate2(translator, beams, tmp_path):
    ctranslate2, transformers = pytest.importorskip("ctranslate2"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    converted = ctranslate2.converters.TransformersConverter(str(FOLDER)).convert(str(tmp_path / "converted"))
    theirs = ctranslate2.Translator(converted, compute_type="float32")
    texts = lines(ENGLISH)
    rows = [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in texts]
    translations = [
        tokenizer.decode(tokenizer.convert_tokens_to_ids(output.hypotheses[0]))
        for output in theirs.translate_batch(rows, beam_size=beams)
    ]
    assert translations == translator.generate(texts, beam_size=beams)


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()
