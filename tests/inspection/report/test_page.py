"""The page in a browser: it opens from disk, works by mouse and keyboard, and shows any text safely."""

import json
import os
import re
from pathlib import Path

import pytest
from support.command import clearhead
from support.models import seq2seq, spm
from support.pages.page import TEXT, weights

from clearhead import TextEncoder
from clearhead.inspection.attention.head import head_attention
from clearhead.inspection.report import collect
from clearhead.inspection.report.html import render_page
from clearhead.pipelines.text_to_text import TextToText

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>document.title='hacked'</script>",
    "<img src=x onerror=\"document.title='hacked'\">",
    "&lt;b&gt; &amp; \"quotes\" 'more' <!-- -->",
    "\u202eright to left\u202c שלום عالم",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "ด" + "้็" * 150,
    "👩‍👩‍👧 \ufeff\u2028\u2029\u0007 \\u003c ${1+1} {{7*7}}",
]


def test_beams_lead_to_outputs(translation):
    total, before = 0.0, 0
    for column in translation["tree"]:
        for node in column:
            assert node["alternatives"][0]["log_prob"] >= node["log_prob"] - 1e-6
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


@pytest.mark.slow
def test_opens_from_disk_and_every_section_works(opened, translation):
    page = opened(translation)
    assert page.locator("h1").inner_text() == TEXT
    assert page.locator("#output").inner_text() == translation["output"]
    assert page.locator(".chips.source li").count() == len(translation["source"])
    page.locator(".box.attention").first.click()
    first = page.locator("details.step").first
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    first.locator("math").wait_for(state="attached")  # the toggle event is asynchronous
    assert first.locator("math").count() == 1
    step = next(step for step in translation["steps"] if step["path"] == "encoder.layers.0.attention.qkv")
    assert f"{step['values']['max']:.3g}" in first.locator(".numbers").inner_text().replace("\n", " ")
    assert first.locator("canvas").count() == 1
    for part in ("encoder", "decoder", "cross"):
        page.locator(f"#attention-view button[data-part={part}]").click()
        assert page.locator(f"#attention-view button[data-part={part}]").get_attribute("aria-pressed") == "true"
    page.locator(".node").first.focus()
    assert page.locator("#tip").is_visible()
    assert f"{translation['tree'][0][0]['log_prob']:.3f}".replace("-", "−") in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()
    assert page.locator("#word-view tbody tr").count() == len(translation["output_tokens"])
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"


@pytest.mark.slow
def test_heads_switch_by_mouse_and_keyboard_and_hover_shows_weight(opened, translation):
    page = opened(translation)
    cross = next(one for one in translation["attention"] if one["part"] == "cross")
    heads = page.locator(".grid button")
    assert heads.count() == len(cross["heads"])
    heads.nth(1).click()
    assert heads.nth(1).get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowRight")
    assert heads.nth(2).get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Head 2"
    page.locator("h3", has_text="Cross-attention, layer 0, head 2").wait_for()
    head = cross["heads"][2]
    cells = weights(translation, head)
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map canvas").bounding_box()
    row, column = 3, 4
    page.mouse.move(
        box["x"] + box["width"] * (column + 0.5) / head["columns"],
        box["y"] + box["height"] * (row + 0.5) / head["rows"],
    )
    assert f"{cells[row, column]:.3f}" in page.locator("#tip").inner_text()
    page.locator("#map").focus()
    page.keyboard.press("ArrowDown")
    assert f"{cells[row + 1, column]:.3f}" in page.locator("#cell").inner_text()


def with_tokens(data, texts):
    """Return the data of a translation with texts in place of all tokens."""
    texts = texts + ["·"] * max(0, len(data["source"]) - len(texts))
    source, target = [texts[: len(row)] for row in (data["source"], data["target"])]
    alternatives = [{"token": text, "log_prob": -2.0} for text in texts[:4]]
    output_tokens = [
        {"token": text, "log_prob": -0.5, "alternatives": alternatives} for text in texts[: len(data["output_tokens"])]
    ]
    tree = [
        [
            node | {"token": texts[(step + beam) % len(texts)], "alternatives": alternatives}
            for beam, node in enumerate(column)
        ]
        for step, column in enumerate(data["tree"])
    ]
    outputs = [
        one | {"text": text, "end": one["end"] | {"token": text}}
        for one, text in zip(data["outputs"], texts, strict=False)
    ]
    return data | {"source": source, "target": target, "output_tokens": output_tokens, "tree": tree, "outputs": outputs}


def assert_tokens_are_text(page, tokens):
    assert page.locator(".chips.source li").evaluate_all("all => all.map((one) => one.lastChild.data)") == tokens
    assert page.locator("main script, main img, main iframe, main svg script, .chips b").count() == 0
    page.locator(".as-text summary").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tokens


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_is_shown_as_text(opened, text):
    page = opened(collect.collect_checkpoint("all-MiniLM-L6-v2", text), 390)
    assert page.locator("h1").evaluate("element => element.textContent") == text
    assert "hacked" not in page.title() or "hacked" in text[:60]
    assert page.locator("h1 *").count() == 0
    assert page.locator("main script, main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 390])
def test_any_token_is_shown_as_text(opened, translation, width):
    """Include wide tokens, and graphemes of many characters."""
    data = with_tokens(translation, [*HOSTILE, "W" * 24, "👩‍👩‍👧‍👦" * 20])
    page = opened(data, width)
    page.locator("#attention-view button[data-part=encoder]").click()
    page.locator("h3", has_text="Encoder self-attention, layer 0").wait_for()
    assert_tokens_are_text(page, data["source"])
    assert "hacked" not in page.title()
    page.locator("#map").focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_truncated_token_ends_at_grapheme(opened, translation):
    family, accented = "👩‍👩‍👧‍👦", "é̱"
    page = opened(with_tokens(translation, [family * 20, accented * 20]))
    texts = page.locator("svg text").all_text_contents()
    for grapheme in (family, accented):
        truncated = [text for text in texts if grapheme[0] in text]
        assert truncated
        assert all(text.replace(grapheme, "") in ("…", "1. …", "2. …") for text in truncated), truncated


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 390])
def test_list_of_naughty_strings_is_shown_as_text(opened, translation, width):
    """Test every line of a file such as the Big List of Naughty Strings; lines with # are comments."""
    if "NAUGHTY_STRINGS" not in os.environ:
        pytest.skip("set NAUGHTY_STRINGS=path/to/blns.txt to test every string of that file")
    encoder = TextEncoder.from_pretrained(precision="float32", device="cpu")
    lines = Path(os.environ["NAUGHTY_STRINGS"]).read_text(encoding="utf-8").split("\n")
    texts = [line for line in lines if line and not line.startswith("#")]
    assert len(texts) > 100
    for text in texts:
        page = opened(collect.collect("all-MiniLM-L6-v2", encoder, text), width)
        assert page.locator("h1").evaluate("element => element.textContent") == text
        assert page.locator("h1 *, main script, main img, main iframe, main svg script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), text
        page.context.close()
    each = len(translation["source"])
    for first in range(0, len(texts), each):
        data = with_tokens(translation, texts[first : first + each])
        page = opened(data, width)
        assert_tokens_are_text(page, data["source"])
        page.context.close()


@pytest.fixture(scope="module")
def bytelevel(tmp_path_factory):
    """A tiny random BART with a byte-level vocabulary."""
    folder = tmp_path_factory.mktemp("bart")
    seq2seq.make("bart", folder, vocab_size=400)
    return str(spm.bart(folder))


@pytest.mark.slow
def test_byte_tokens_are_shown_as_text(opened, bytelevel):
    data = collect.collect_checkpoint(bytelevel, "Die Brücke שלום 👩 é\n<script>alert(1)</script>", beam_size=2)
    assert {"▁", "<0xD7>", "␊"} <= set(data["source"])
    page = opened(data)
    assert_tokens_are_text(page, data["source"])
    assert not re.search("[ĠÃÂĊðŁ]", page.locator("main").inner_text())


@pytest.mark.slow
def test_trace_shows_byte_tokens_as_text(bytelevel):
    (encoder, *_) = head_attention(
        TextToText.from_pretrained(bytelevel, precision="float32"), "a ü", 0, 0, target="b ü"
    )
    assert encoder.queries == ["<s>", "a", "▁", "<0xC3>", "<0xBC>", "</s>"]
    status, out, err = clearhead("trace", "a ü", "--model", bytelevel)
    assert status == 0, err
    assert "<s> a ▁ <0xC3> <0xBC> </s>" in out


@pytest.mark.slow
def test_phone_needs_no_horizontal_scrolling(opened, translation):
    page = opened(translation, 390, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("html").get_attribute("data-theme") == "dark"
    inside = """() => [...document.querySelectorAll(".many")].map(label => {
        const box = label.getBoundingClientRect(), around = label.closest("section").getBoundingClientRect();
        return box.left >= around.left && box.right <= around.right;
    })"""
    assert page.evaluate(inside) == [True, True]  # the labels for repeated layers are visible


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 390])
def test_long_text_leaves_space_for_page(opened, translation, width):
    long = "the old bridge " * 1365
    page = opened(translation | {"text": long, "output": long}, width)
    assert page.locator("#tokens").bounding_box()["y"] < 900
    for part in (page.locator("h1"), page.locator("#output")):
        assert part.evaluate("element => element.textContent") == long
        part.focus()
        for _ in range(100):  # the browser scrolls smoothly
            page.keyboard.press("End")
            if part.evaluate("element => element.scrollTop") > 1000:
                break
            page.wait_for_timeout(50)
        assert part.evaluate("element => element.scrollTop") > 1000
    page = opened(translation, width)
    for part in (page.locator("h1"), page.locator("#output")):
        assert part.evaluate("element => [element.tabIndex, element.scrollHeight - element.clientHeight]") == [-1, 0]


def test_page_has_no_external_addresses(translation):
    page = render_page(translation)
    assert not re.search(r"(src|href)=[\"'](?!#)", page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


@pytest.mark.slow
def test_command_writes_page(tmp_path):
    path = tmp_path / "a.html"
    status, _, err = clearhead("view", TEXT, "--output", path)
    assert status == 0, err
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8")).group(1))["text"] == TEXT
    status, _, err = clearhead("view", TEXT, "--full-maps", "encoder.1", cwd=tmp_path)
    assert status == 1
    assert "got 'encoder.1'" in err
    assert not Path(tmp_path / "view.html").exists()
