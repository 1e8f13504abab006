"""The beams on the page: they fit any width, and arrow keys move along the tree."""

import pytest
from support.pages.page import TEXT

from clearhead import TextToText
from clearhead.inspection.report import collect

LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
OUTSIDE = """() => {
    const inside = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1
        && one.top >= other.top - 1 && one.bottom <= other.bottom + 1;
    const view = document.getElementById("beam-view").getBoundingClientRect();
    const wrong = [...document.querySelectorAll("#beam-view svg *")].filter(
        (one) => !inside(one.getBoundingClientRect(), view));
    for (const node of document.querySelectorAll(".node")) {
        const box = node.querySelector("rect").getBoundingClientRect();
        wrong.push(...[...node.querySelectorAll("text")].filter(
            (one) => one.getBoundingClientRect().right > box.right || one.getBoundingClientRect().left < box.left));
    }
    return [wrong.map((one) => one.outerHTML), document.documentElement.scrollWidth - innerWidth];
}"""


@pytest.fixture(scope="module")
def translator():
    return TextToText.from_pretrained(precision="float32", device="cpu")


@pytest.fixture(scope="module", params=[1, 5, 12])
def searched(request, translator):
    return collect.collect("translator", translator, TEXT, beam_size=request.param)


def with_long_words(data):
    tree = [
        [node | {"token": f"▁{LONG}" if beam % 2 else "W" * 40} for beam, node in enumerate(column)]
        for column in data["tree"]
    ]
    return data | {"tree": tree, "target": ["<start-of-the-target-of-a-translation>", *data["target"][1:]]}


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1000, 1600, 2000])
def test_beams_fit_any_width(opened, searched, width):
    for data in (searched, with_long_words(searched)):
        page = opened(data, width)
        assert page.evaluate(OUTSIDE) == [[], 0]
        links = sum(map(len, data["tree"])) + len(data["outputs"])
        assert (page.locator(".node").count(), page.locator(".link").count()) == (links, links)


@pytest.mark.slow
def test_beams_follow_width_of_window(opened, searched):
    from playwright.sync_api import expect

    page = opened(searched, 1600)
    page.locator(".node").first.focus()
    before = page.locator("#beam-view svg").bounding_box()
    page.set_viewport_size({"width": 400, "height": 900})
    # wait_for_function would evaluate text, which the page's security policy forbids
    expect(page.locator("#beam-view svg")).not_to_have_attribute("width", str(int(before["width"])))
    after = page.locator("#beam-view svg").bounding_box()
    assert after["height"] > before["height"]
    assert page.evaluate(OUTSIDE) == [[], 0]
    assert page.evaluate("document.activeElement === document.querySelector('.node')")


@pytest.mark.slow
def test_arrow_keys_move_along_the_tree(opened, translation):
    page = opened(translation)
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.locator(".node[tabindex='0']").count() == 1
    page.locator(".node").first.focus()
    nodes = [(node["token"].removeprefix("▁"), f"{node['log_prob']:.3f}") for node in translation["tree"][0]]
    names = [f"{token}: {log_prob.replace('-', '−')}" for token, log_prob in nodes]
    assert page.evaluate(focused).startswith(names[0])
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused).startswith(names[1])
    page.keyboard.press("ArrowUp")
    for _ in range(len(translation["output_tokens"])):  # along the best output to its end
        page.keyboard.press("ArrowRight")
    assert page.evaluate(focused).startswith("Output 1 ends with </s>")
    assert page.locator(".node[tabindex='0']").evaluate("node => node === document.activeElement")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused).startswith(translation["output_tokens"][-2]["token"].removeprefix("▁"))
    page.keyboard.press("Tab")
    assert not page.evaluate("document.getElementById('beam-view').contains(document.activeElement)")


@pytest.mark.slow
def test_long_outputs_start_with_60_steps(opened, translation):
    node = translation["tree"][0][0] | {"from": 0}
    long = {
        "tree": [[node]] * 130,
        "output_tokens": translation["output_tokens"][:1] * 131,
        "target": ["<pad>", *["▁a"] * 130],
        "outputs": [translation["outputs"][0] | {"end": translation["outputs"][0]["end"] | {"step": 130, "from": 0}}],
    }
    page = opened(translation | long, 400)
    assert page.locator(".node").count() == page.locator("#word-view tbody tr").count() == 60
    assert page.locator(".chips.target li").count() == 60
    page.locator("#beam-view button", has_text="Show all 131 steps").click()
    page.locator("#word-view button", has_text="Show all 131 tokens").click()
    assert page.locator(".node").count() == page.locator("#word-view tbody tr").count() == 131
    assert page.evaluate(OUTSIDE) == [[], 0]


@pytest.mark.slow
def test_numbers_in_boxes_are_explained(opened, searched):
    page = opened(searched)
    hint = page.locator("#beam-hint").inner_text()
    log_prob = searched["output_tokens"][0]["log_prob"]
    assert f"= {log_prob:.2f}".replace("-", "−") in hint
    assert ("Greedy search" in hint) == (len(searched["outputs"]) == 1)
    assert "divided by the number of tokens:" in hint
    best = searched["outputs"][0]
    assert best["score"] == pytest.approx(best["log_prob"] / len(searched["output_tokens"]), abs=1e-5)
