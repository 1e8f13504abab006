"""The end of an encoder's page: pooling, vector, similarities of several texts, and labels of a classifier."""

import re

import numpy as np
import pytest
from support.models.families import make
from support.pages.page import TEXT, unpacked

from clearhead import TextClassifier, TextEncoder, TextToText
from clearhead.checkpoints.sentence_transformers import SentenceSettings
from clearhead.inspection.report import collect

TEXTS = [TEXT, "Every Sunday my grandma makes bread.", "Der Hund schläft.", ""]
LABELS = {"id2label": {0: "good", 1: "bad", 2: "<i>odd</i>"}, "label2id": {"good": 0, "bad": 1, "<i>odd</i>": 2}}


@pytest.fixture(scope="module")
def encoder():
    return TextEncoder.from_pretrained(precision="float32", device="cpu")


@pytest.fixture(scope="module")
def compared(encoder):
    return collect.collect("encoder", encoder, TEXTS)


def test_page_has_vectors_and_cosines_of_encoder(encoder, compared):
    vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(compared["vectors"], vectors, atol=1e-5)
    np.testing.assert_allclose(compared["cosines"], encoder.similarity(vectors, vectors), atol=1e-5)
    assert [step["operation"] for step in compared["steps"][-2:]] == ["mean pooling", "normalize"]
    assert compared["steps"][-2]["equation"] == "Σ_i keep_i h_i / Σ_i keep_i"
    heat = compared["steps"][-1]["heat"]
    cells = unpacked(compared, heat["data"], np.int8, heat["columns"]) / 127 * heat["largest"]
    blocks = np.add.reduceat(vectors[0], np.arange(heat["columns"]) * 384 // heat["columns"]) / (384 / heat["columns"])
    np.testing.assert_allclose(cells, blocks, atol=heat["largest"] / 254 + 1e-6)


@pytest.mark.parametrize("pooling", ["cls", "max"])
def test_page_has_vector_of_any_pooling_and_prompt(encoder, pooling):
    settings = SentenceSettings(
        pooling, False, 256, prompts={"query": "query: "}, default_prompt="query", pool_prompt=False
    )
    changed = TextEncoder(encoder.model, encoder.tokenizer, settings, encoder.family, precision="float32", device="cpu")
    data = collect.collect("encoder", changed, TEXT)
    np.testing.assert_allclose(data["vectors"][0], changed.encode(TEXT), atol=1e-4)
    assert data["steps"][-1]["operation"] == f"{pooling} pooling"
    assert data["pooling"] == {"kind": pooling, "skip": 3, "normalize": False}


@pytest.mark.slow
def test_page_ends_with_pooling_vector_and_similarities(opened, compared):
    page = opened(compared, 400)
    outside = [" ".join(box.split()) for box in page.locator(".stack > .box").all_inner_texts()]
    assert outside == ["Embedding", "+ Positions", "Pooling", "Normalize"]
    assert "The mean of the 11 tokens' vectors" in page.locator("#vector").inner_text()
    strip = page.locator("#vector-view .cells")
    strip.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator("#status").inner_text() == f"text 2, dimension 1: {compared['vectors'][1][1]:#.3g}"
    rows = page.locator(".matrix tbody tr").evaluate_all(
        "all => all.map((row) => [...row.cells].map((one) => one.innerText))"
    )
    shown = [[float(cell.replace("−", "-")) for cell in row[1:]] for row in rows]
    np.testing.assert_allclose(shown, compared["cosines"], atol=0.005001)
    assert "Most similar: 1 and 2 (0.88)" in page.locator("#similarity-view").inner_text()
    assert page.locator(".texts li").all_inner_texts()[3] == "(empty)"
    assert page.locator("#words, #beams, #labels").evaluate_all("all => all.every((one) => one.hidden)")
    assert page.evaluate("document.documentElement.scrollWidth") == 400


@pytest.mark.slow
def test_twelve_texts_fit_a_phone_and_truncation_is_reported(opened, encoder):
    texts = ["", "<script>alert(1)</script>", "שלום עולם", "👩‍👩‍👧‍👦" * 30, "W" * 300, "a " * 400] * 2
    page = opened(collect.collect("encoder", encoder, texts), 400)
    assert page.locator("main script").count() == 0
    assert page.locator(".texts li", has_text="truncated").count() == 2
    assert page.locator(".matrix").evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    assert "The text is empty." in page.locator("header").inner_text()


@pytest.mark.parametrize("count", [0, 13])
def test_number_of_texts_is_limited(encoder, count):
    with pytest.raises(ValueError, match=f"A page shows 1 to 12 texts, got {count}"):
        collect.collect("encoder", encoder, ["a"] * count)


def test_translator_does_not_compare_texts():
    translator = TextToText.from_pretrained(precision="float32", device="cpu")
    with pytest.raises(ValueError, match="Only an encoder compares several texts; m takes 1, got 2"):
        collect.collect("m", translator, ["a", "b"])


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert"])
def test_page_of_classifier_ends_with_probabilities(opened, tmp_path, family, problem):
    make(family, tmp_path, "ForSequenceClassification", problem_type=problem, **LABELS)
    classifier = TextClassifier.from_pretrained(tmp_path, precision="float32", device="cpu")
    text = "the old bridge"
    data = collect.collect_checkpoint(str(tmp_path), text)
    expected = classifier.classify(text).probabilities
    assert data["labels"] == pytest.approx(expected, abs=1e-5)
    assert data["steps"][-1]["values"]["max"] == pytest.approx(max(expected.values()), abs=1e-5)
    page = opened(data, 400)
    rows = page.locator("#label-view tbody tr").all_inner_texts()
    best = max(expected, key=expected.get)
    assert rows[0].split("\t") == [best, f"{100 * expected[best]:.1f} %"]
    assert re.search("softmax" if problem.startswith("single") else "sigmoid", page.locator("#label-hint").inner_text())
    assert page.locator("#labels i").count() == 0
    assert "Classifier" in " ".join(page.locator(".stack > .box").all_inner_texts())
