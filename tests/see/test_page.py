"""The page, in a real browser: opens from disk, shows the tensors' numbers, works by mouse and by keyboard."""

import base64
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support import families
from support.command import clearhead
from transformers import BertTokenizerFast

from clearhead import TextEncoder, TextToText, watch
from clearhead.see.page import gather
from clearhead.see.page.document import document, write

TEXT = "My grandmother bakes bread every Sunday morning."
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>document.title='hacked'</script>",
    "<img src=x onerror=\"document.title='hacked'\">",
    "&lt;b&gt; &amp; \"quotes\" 'more' <!-- -->",
    "\u202eright to left\u202c שלום عالم",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "👩‍👩‍👧 \ufeff\u2028\u2029\u0007 \\u003c ${1+1} {{7*7}}",
]


@pytest.fixture(scope="module")
def translation():
    return gather.of_text("tatoeba-en-de", TEXT)


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page from disk; in the end there was no error, and no request but for the file."""
    context = browser.new_context(viewport={"width": 1100, "height": 900}, color_scheme="light")
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if not request.url.endswith("page.html") else None)

    def open_(data):
        write(data, tmp_path / "page.html")
        page.goto((tmp_path / "page.html").as_uri())
        assert page.locator("html[data-ready=yes]").count() == 1
        return page

    yield open_
    context.close()
    assert said == []


def numbers(head, kind):
    return np.frombuffer(base64.b64decode(head["data"]), dtype=kind).reshape(head["rows"], head["columns"])


def test_the_numbers_are_the_tensors(translation):
    made = TextToText.from_pretrained(precision="float32", device="cpu")
    (best,) = made.generate([TEXT], beam_size=4, return_details=True)
    assert translation["output"] == best.text
    assert translation["outputs"][0]["score"] == pytest.approx(best.score, abs=1e-5)
    assert [one["log_prob"] for one in translation["chosen"]] == pytest.approx(list(best.log_probs), abs=1e-4)
    ids = torch.tensor([made.tokenizer.encode([TEXT], made.max_length)[0].ids])
    target = torch.tensor([[made.model.config.start_id, *best.token_ids[:-1]]])
    with torch.inference_mode(), watch(made.model) as seen:
        made.model(ids, target)
    for one, record in zip(translation["attention"], seen.records, strict=True):
        assert (one["part"], one["layer"]) == (record.part, record.layer)
        for head, weights in zip(one["heads"], record.values[0], strict=True):
            assert np.abs(numbers(head, np.uint8) / 255 - weights.numpy()).max() <= 0.002


def test_the_beams_lead_to_the_outputs(translation):
    total, before = 0.0, 0
    for column in translation["tree"]:
        for node in column:
            assert node["near"][0]["log_prob"] >= node["log_prob"] - 1e-6
        best = [node for node in column if node["best"]]
        if not best:
            break
        (node,) = best
        assert node["from"] == before
        total += node["log_prob"]
        assert node["total"] == pytest.approx(total, abs=1e-4)
        before = column.index(node)
    scores = [one["score"] for one in translation["outputs"]]
    assert scores == sorted(scores, reverse=True)


def test_a_short_sentences_page_is_small(translation):
    assert len(document(translation)) < 2_000_000
    assert len(document(gather.of_text("all-MiniLM-L6-v2", TEXT))) < 2_000_000


def test_it_opens_from_disk_and_every_part_works(opened, translation):
    page = opened(translation)
    assert page.locator("h1").inner_text() == TEXT
    assert page.locator("#output").inner_text() == translation["output"]
    assert page.locator(".chips.source li").count() == len(translation["source"])
    page.locator(".box.attention").first.click()
    first = page.locator("details.step").first
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    first.locator("math").wait_for(state="attached")  # the browser says that it has opened a moment later
    assert first.locator("math").count() == 1
    step = next(step for step in translation["steps"] if step["path"] == "encoder.layers.0.attention.qkv")
    assert f"{step['values']['max']:.3g}" in first.locator(".numbers").inner_text().replace("\n", " ")
    assert first.locator("canvas").count() == 1
    for part in ("encoder", "decoder", "cross"):
        page.locator(f"#attention-view button[data-part={part}]").click()
        assert page.locator(f"#attention-view button[data-part={part}]").get_attribute("aria-pressed") == "true"
    page.locator(".node").first.focus()
    assert page.locator("#tip").is_visible()
    assert f"{translation['tree'][0][0]['log_prob']:.3f}" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()
    assert page.locator("#word-view tbody tr").count() == len(translation["chosen"])
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_heads_switch_by_mouse_and_keyboard_and_hover_shows_the_weight(opened, translation):
    page = opened(translation)
    cross = next(one for one in translation["attention"] if one["part"] == "cross")
    heads = page.locator(".grid button")
    assert heads.count() == len(cross["heads"])
    heads.nth(1).click()
    assert heads.nth(1).get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowRight")
    assert heads.nth(2).get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Head 2"
    head = cross["heads"][2]
    weights = numbers(head, np.uint8) / 255
    box = page.locator("#map").bounding_box()
    row, column = 3, 4
    page.mouse.move(
        box["x"] + box["width"] * (column + 0.5) / head["columns"],
        box["y"] + box["height"] * (row + 0.5) / head["rows"],
    )
    assert f"{weights[row, column]:.3f}" in page.locator("#tip").inner_text()
    page.locator("#map").focus()
    page.keyboard.press("ArrowDown")
    assert f"{weights[row + 1, column]:.3f}" in page.locator("#cell").inner_text()


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_text_holds_it_shows_as_text(opened, text):
    page = opened(gather.of_text("all-MiniLM-L6-v2", text))
    assert page.locator("h1").evaluate("element => element.textContent") == text
    assert "hacked" not in page.title() or "hacked" in text[:60]
    assert page.locator("h1 *").count() == 0
    assert page.locator("main script, main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_a_whole_list_of_naughty_strings_shows_as_text(opened):
    """Such as the Big List of Naughty Strings, whose path the variable names: a string a line, # before remarks."""
    if "NAUGHTY_STRINGS" not in os.environ:
        pytest.skip("NAUGHTY_STRINGS=path/to/blns.txt tries every string of that file")
    made = TextEncoder.from_pretrained(precision="float32", device="cpu")
    lines = Path(os.environ["NAUGHTY_STRINGS"]).read_text(encoding="utf-8").split("\n")
    texts = [line for line in lines if line and not line.startswith("#")]
    assert len(texts) > 100
    for text in texts:
        page = opened(gather.of_model("all-MiniLM-L6-v2", made, text))
        assert page.locator("h1").evaluate("element => element.textContent") == text
        assert page.locator("h1 *, main script, main img, main iframe, main svg script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), text


def test_a_phone_needs_no_scrolling_sideways(browser, translation, tmp_path):
    write(translation, tmp_path / "page.html")
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("html").get_attribute("data-theme") == "dark"
    context.close()


def test_the_page_names_nothing_outside_itself(translation):
    page = document(translation)
    assert not re.search(r"(src|href)=[\"'](?!#)", page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


@pytest.mark.slow
def test_long_texts_are_pooled_and_chosen_maps_kept_whole(opened):
    text = " ".join(f"word{number}" for number in range(400))
    made = TextEncoder.from_pretrained(precision="float32", device="cpu")
    data = gather.of_text("all-MiniLM-L6-v2", text, whole=[("encoder", 1, 2)])
    tokens = len(made.tokenize([text])[0].ids)
    assert data["cut"] is True
    assert len(data["source"]) == tokens == 256
    assert data["attention"][1]["heads"][2]["rows"] == 256
    opened(data)


@pytest.mark.slow
def test_4096_tokens_are_at_most_40_megabytes_and_open(opened, tmp_path):
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 64}
    families.make("bert", tmp_path, max_position_embeddings=4096, **sizes)
    BertTokenizerFast(str(tmp_path / "vocab.txt"), model_max_length=4096).save_pretrained(tmp_path)
    data = gather.of_text(str(tmp_path), "the old bridge " * 2000, whole=[("encoder", 1, 7)])
    assert len(data["source"]) == 4096
    sizes = {one["rows"] for part in data["attention"] for one in part["heads"]}
    assert sizes == {256, 4096}
    assert len(document(data)) < 40_000_000
    page = opened(data)
    page.locator("#attention-view select").first.select_option("1")
    page.locator(".grid button").nth(7).click()
    assert page.locator("#map").evaluate("canvas => [canvas.width, canvas.height]") == [4096, 4096]


def test_the_command_writes_the_page(tmp_path):
    path = tmp_path / "a.html"
    status, _, err = clearhead("view", TEXT, "--output", path)
    assert status == 0, err
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8")).group(1))["text"] == TEXT
    status, _, err = clearhead("view", TEXT, "--whole", "encoder.1", cwd=tmp_path)
    assert status == 1
    assert "got 'encoder.1'" in err
    assert not Path(tmp_path / "view.html").exists()
