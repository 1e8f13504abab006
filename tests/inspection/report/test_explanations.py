"""The page answers what a learner asks about its pictures, where the pictures are."""

import re

import pytest
from support.models import folders

from clearhead import TextToText
from clearhead.inspection.report import collect

pytestmark = pytest.mark.slow


def produced(data):
    return [one["token"].removeprefix("▁") for one in data["output_tokens"]]


@pytest.mark.parametrize("width", [400, 1100])
def test_rows_of_cross_attention_have_the_tokens_that_they_produce(opened, translation, width):
    page = opened(translation, width)
    assert page.locator(".axis.down span").evaluate_all("all => all.map((one) => one.textContent)") == produced(
        translation
    )
    left = "all => all.filter((one) => one.getAttribute('text-anchor') === 'end').map((one) => one.textContent)"
    assert page.locator("#lines text").evaluate_all(left) == produced(translation)
    about = page.locator("#rows-hint").inner_text()
    assert "In row “Meine”, the decoder has read “<pad>”, and looks at the source to produce “Meine”." in about
    page.locator("#map").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#status").inner_text().startswith("To produce 2 “Großmutter”, the decoder attends to 0 “My”: ")


def test_rows_of_decoder_have_input_and_produced_tokens(opened, translation):
    page = opened(translation)
    page.locator("button[data-part=decoder]").click()
    page.locator("h3", has_text="Decoder self-attention").wait_for()
    rows = page.locator(".axis.down span").evaluate_all("all => all.map((one) => one.textContent)")
    inputs = [token.removeprefix("▁") for token in translation["target"]]
    assert rows == [f"{read} → {written}" for read, written in zip(inputs, produced(translation), strict=True)]
    assert "must not see later tokens" in page.locator("#rows-hint").inner_text()
    page.locator("#map").focus()
    assert (
        page.locator("#status").inner_text().startswith("0 “<pad>”, which produces 1 “Meine”, attends to 0 “<pad>”: ")
    )


def test_rows_of_pooled_maps_are_ranges_of_produced_tokens(opened, translation):
    cross = next(one for one in translation["attention"] if one["part"] == "cross")
    wide = cross | {"queries": 2 * cross["heads"][0]["rows"]}
    page = opened(translation | {"attention": [wide]})
    page.locator("#map").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#status").inner_text().startswith("To produce 3 to 4, the decoder attends to 0 “My”: ")


def test_start_token_and_rounding_are_explained(opened, translation):
    page = opened(translation)
    start = page.locator("#start").inner_text()
    assert "Token 0, “<pad>”, is the start token" in start
    assert "This model uses its padding token for it." in start
    assert "The output ends with “</s>”." in start
    chips = page.locator(".chips.target li").evaluate_all("all => all.map((one) => one.lastChild.data)")
    assert chips == [translation["target"][0], *(one["token"] for one in translation["output_tokens"])]
    assert "rounded by up to this amount" in page.locator("#rounding").inner_text()
    assert "±" in page.locator("#cell").inner_text()
    page.locator("details.step summary").first.click()
    assert "rounded by up to this amount" in page.locator("details.step .inside").first.inner_text()


def test_tokens_of_the_target_language_are_given(opened, tmp_path):
    folders.plain("mbart50", tmp_path, lively=True)
    translator = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    translator.generation_config = translator.generation_config.updated(min_new_tokens=3, max_new_tokens=6)
    data = collect.collect("m", translator, "The old bridge.", target_lang="de_DE", beam_size=2)
    assert data["prompt"]["start"] == "end token"
    page = opened(data)
    positions = page.locator("#word-view tbody tr td:first-child").all_inner_texts()
    assert positions == [str(data["prompt"]["length"] + index) for index in range(len(data["output_tokens"]))]
    chips = page.locator(".chips.target li").all_inner_texts()
    assert len(chips) == len(data["target"]) + 1
    given = "Token 1 is given, too" in page.locator("#start").inner_text()
    assert given == (data["prompt"]["length"] == 2)


def test_less_probable_choice_is_explained(opened):
    translation = collect.collect_checkpoint("tatoeba-en-de", "Where can I buy a ticket?")
    tokens = [
        one["token"].removeprefix("▁")
        for one in translation["output_tokens"]
        if one["alternatives"][0]["log_prob"] > one["log_prob"]
    ]
    assert tokens == ["ein"]
    text = opened(translation).locator("#word-view").inner_text()
    assert "Not the most probable at its position: “ein”." in text


def test_marks_shapes_and_layers_are_explained(opened, translation):
    page = opened(translation)
    assert "“▁” marks the start of a word, as in “▁My”" in page.locator("#tokens").inner_text()
    assert re.search("“6 ×” means 6 layers", page.locator("#figure-hint").inner_text())
    page.locator("#pipeline summary").first.click()
    names = {name for step in translation["steps"] for name, _ in step["shape"]}
    axes = page.locator("#axes").inner_text()
    assert [name for name in names if f"{name} = " not in axes] == []
