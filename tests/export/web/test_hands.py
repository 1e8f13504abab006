"""Changes by hand on a translator's page give the results of the same changes in Python."""

import re
import subprocess

import pytest
import torch
from support.pages import web
from support.pages.hands import greedy, heads_off, layers_off, next_tokens
from support.pages.web import EOS
from support.pages.web import SHORT as LENGTH

from clearhead import masks, watch

pytestmark = pytest.mark.slow

TEXT = "The old bridge was closed after the storm."


@pytest.fixture
def page(short, opened):
    """The page with the greedy output of the text."""
    with web.served(short) as address:
        page = opened(address)
        page.locator("#beams").select_option("1")
        web.type_text(page, TEXT)
        yield page


@pytest.fixture
def source(tiny_pipeline):
    (tokens,) = tiny_pipeline.tokenizer.encode([TEXT])
    return tokens.ids


@pytest.fixture
def shown(tiny_pipeline):
    """Compare the target tokens of the page with ids."""

    def check(page, ids):
        page.wait_for_selector(web.READY)
        tokens = tiny_pipeline.tokenizer.ids_to_tokens(ids)
        assert web.chips(page, "target") == [token.removeprefix("▁") or "▁" for token in tokens]

    return check


def check_bars(page, logits):
    """Compare the bars of the page with logits."""
    page.wait_for_selector(web.READY)
    best, found = logits.softmax(-1).topk(10), web.bars(page)
    assert [token for token, _ in found] == best.indices.tolist()
    assert [share for _, share in found] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_chosen_token(page, tiny_pipeline, source, shown):
    model = tiny_pipeline.model
    ids = greedy(model, source, [], LENGTH, EOS)
    shown(page, ids)
    for index in (0, 5):
        page.locator("#target button").nth(index).click()
        check_bars(page, next_tokens(model, source, ids[:index]))
        assert page.locator(".map tbody button[aria-pressed=true]").inner_text() == web.chips(page, "target")[index]


def test_weights_are_those_of_watch(page, tiny_pipeline, source):
    model = tiny_pipeline.model
    ids = greedy(model, source, [], LENGTH, EOS)
    with torch.inference_mode(), watch(model) as attention:
        model(torch.tensor([source]), torch.tensor([[model.config.start_id, *ids[:-1]]]))
    for record in attention.records:
        page.locator(f"[data-part={record.part}]").click()
        for head in range(record.values.shape[1]):
            page.locator(f"[data-key='tile {record.layer} {head}']").click()
            weights = torch.tensor(web.weights(page, ".map"), dtype=torch.float32)
            torch.testing.assert_close(weights, record.values[0, head], atol=1e-4, rtol=0)


def test_the_heading_names_the_chosen_row(page):
    title, target = page.locator("#attention-title"), web.chips(page, "target")
    page.locator("#target button").nth(2).click()
    assert title.inner_text() == f"What “{target[2]}” looked at"
    page.locator("[data-part=encoder]").click()
    assert title.inner_text() == "What the source tokens looked at"
    page.locator("[data-key='row 2']").click()
    assert title.inner_text() == "What source token “bridge” looked at"
    page.locator("[data-part=decoder]").click()
    assert title.inner_text() == f"What “{target[2]}” looked at"


def test_nothing_is_changed_in_an_empty_text(page):
    page.get_by_role("switch", name="This head").click()
    page.wait_for_selector(web.READY)
    assert page.locator("#changes").is_visible()
    web.type_text(page, " ")
    assert page.locator("#note").inner_text() == "Type a sentence."
    assert page.locator("#own").is_hidden()
    assert page.locator("#changes").is_hidden()
    assert page.locator("#output.by-hand").count() == 0
    web.type_text(page, TEXT)
    assert page.locator("#note").inner_text() == ""
    assert "head 1 is off" in page.locator("#changes").inner_text()


def test_rows_of_tokens_say_what_they_hide_and_what_bytes_are(page):
    assert page.locator("#token-note").inner_text() == ""
    code = f"import {{ tokenNotes }} from '{web.ROOT.as_uri()}/web/source/page/token_notes.js';"
    code += "console.log(tokenNotes({ source: Array(60).fill('a'), target: Array(86).fill('a') }));"
    printed = subprocess.run(["node", "--input-type=module", "-e", code], capture_output=True, text=True, check=True)
    assert printed.stdout == "The first 60 target tokens are shown, … 26 more.\n"
    web.type_text(page, "ש")
    assert re.match(r"Tokens such as <0x[0-9A-F]{2}> are bytes: ", page.locator("#token-note").inner_text())


def test_temperature(page, tiny_pipeline, source):
    model = tiny_pipeline.model
    ids = greedy(model, source, [], 3, EOS)
    page.locator("#target button").nth(3).click()
    page.locator("#temperature").fill("2.5")
    check_bars(page, next_tokens(model, source, ids) / 2.5)
    assert page.locator("#changes").inner_text().count("temperature 2.5") == 1
    page.get_by_role("button", name="Undo: temperature 2.5").click()
    check_bars(page, next_tokens(model, source, ids))
    assert page.locator("#changes").is_hidden()


def test_continue_with_another_token(page, tiny_pipeline, source, shown):
    model = tiny_pipeline.model
    page.locator("#target button").nth(2).click()
    page.wait_for_selector(web.READY)
    picked = web.bars(page)[4][0]
    page.locator("#bars button").nth(4).click()
    ids = greedy(model, source, [*greedy(model, source, [], 2, EOS), picked], LENGTH, EOS)
    shown(page, ids)
    assert page.locator("#target .by-hand").count() == 3
    style = page.locator("#target .by-hand[aria-current]").evaluate(
        "(one) => { const { borderTopStyle, outlineStyle } = getComputedStyle(one); return [borderTopStyle, outlineStyle]; }"
    )
    assert style == ["dashed", "solid"]
    name = page.locator("#target .by-hand[aria-current]").get_attribute("aria-label")
    assert re.fullmatch(r".+ \d+\.\d %", name)
    assert page.locator("#output.by-hand").count() == 1
    check_bars(page, next_tokens(model, source, ids[:2]))
    page.get_by_role("button", name="Back to the model").click()
    shown(page, greedy(model, source, [], LENGTH, EOS))
    assert page.locator(".by-hand").count() == 0


def test_continue_a_branch_of_the_tree(page, tiny_pipeline, source, shown):
    page.locator("#beams").select_option("4")
    page.wait_for_selector(web.READY)
    best = page.locator(".node.best").evaluate_all("nodes => nodes.map((node) => node.dataset.key)")
    expected = tiny_pipeline.generate(TEXT, num_beams=4, max_new_tokens=LENGTH, return_details=True)
    ids = list(expected.token_ids)
    assert best == [" ".join(map(str, ids[: index + 1])) for index in range(len(ids))]
    assert page.locator("#outputs li").count() == 4
    node = page.locator(".node:not(.best):not(.end)").first
    branch = [int(one) for one in node.get_attribute("data-key").split()]
    page.locator("#beams").select_option("1")  # also keeps the tree of the greedy output simple
    page.wait_for_selector(web.READY)
    page.locator("#beams").select_option("4")
    page.wait_for_selector(web.READY)
    node.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(web.READY)
    page.locator("#beams").select_option("1")
    shown(page, greedy(tiny_pipeline.model, source, branch, LENGTH, EOS))
    assert page.locator(".node.by-hand").count() == len(branch)


@pytest.mark.parametrize("part", ["cross", "decoder", "encoder"])
def test_switch_off(page, tiny_pipeline, source, shown, part):
    model, stack = tiny_pipeline.model, "encoder" if part == "encoder" else "decoder"
    page.locator("#target button").nth(1).click()
    page.locator(f"[data-part={part}]").click()
    page.locator("[data-key='tile 1 1']").click()
    page.get_by_role("switch", name="This head").click()
    with heads_off(model, [{"part": part, "layer": 1, "head": 1}]):
        ids = greedy(model, source, [], LENGTH, EOS)
        shown(page, ids)
        check_bars(page, next_tokens(model, source, ids[:1]))
    assert page.locator(".tile.off").count() == 1
    assert "head 2 is off" in page.locator("#changes").inner_text()
    page.get_by_role("switch", name="This head").click()
    page.get_by_role("switch", name=f"The whole {stack} layer 2").click()
    with layers_off(model, [{"part": stack, "layer": 1}]):
        shown(page, greedy(model, source, [], LENGTH, EOS))
    assert page.locator(".tile.off").count() == page.locator("[data-key^='tile 1 ']").count()


def test_a_change_shows_at_once_and_the_next_one_counts(short, opened, tiny_pipeline, source, shown):
    """Switches and the list of changes do not wait for the model, and no click is lost meanwhile."""
    model = tiny_pipeline.model
    with web.served(short) as address:
        page = opened(address, script=web.HOLD)
        page.locator("#beams").select_option("1")
        web.type_text(page, TEXT)
        head, layer = page.get_by_role("switch", name="This head"), page.get_by_role("switch", name="The whole")
        page.evaluate("window.held = []")
        head.click()
        assert head.get_attribute("aria-checked") == "false"
        assert "head 1 is off" in page.locator("#changes").inner_text()
        layer.click()
        page.get_by_role("button", name="Mask “bridge”").click()
        assert page.locator("#change-list li").count() == 3
        page.get_by_role("button", name="Undo: decoder layer 3 is off").click()
        assert [head.get_attribute("aria-checked"), layer.get_attribute("aria-checked")] == ["false", "true"]
        assert page.locator("#source .masked").inner_text() == "bridge"
        page.evaluate(web.RELEASE)
        keep = torch.ones(1, len(source), dtype=torch.bool)
        keep[0, web.chips(page, "source").index("bridge")] = False
        with heads_off(model, [{"part": "cross", "layer": 2, "head": 0}]):
            shown(page, greedy(model, source, [], LENGTH, EOS, masks.padding(keep)))
        assert page.locator("#change-list li").count() == 2


def test_a_click_under_way_is_not_lost_when_results_appear(page):
    switch = page.get_by_role("switch", name="This head")
    switch.hover()
    page.mouse.down()
    page.locator("#beams").evaluate("(one) => { one.value = '2'; one.dispatchEvent(new Event('change')); }")
    page.wait_for_selector(web.READY)
    page.mouse.up()
    assert switch.get_attribute("aria-checked") == "false"


def test_masked_source_token(page, tiny_pipeline, source, shown):
    model = tiny_pipeline.model
    page.locator("#source button").nth(2).click()
    keep = torch.ones(1, len(source), dtype=torch.bool)
    keep[0, 2] = False
    ids = greedy(model, source, [], LENGTH, EOS, masks.padding(keep))
    shown(page, ids)
    weights = torch.tensor(web.weights(page, ".map"), dtype=torch.float32)
    assert weights[:, 2].abs().max() == 0
    own = page.locator("#own").inner_text()
    assert own.startswith("Changed by hand. The model’s own translation")
    web.type_text(page, "The storm.")  # its tokens are others
    assert page.locator("#changes").is_hidden()


def test_keyboard(page):
    """Every control is reached by Tab, and the arrow keys move within tokens, heads, cells and beams."""
    names = ("#source", "#target", ".tiles", ".map", "#tree")
    reached = set()
    page.locator("#text").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached |= {name for name in names if page.evaluate(f"document.activeElement.closest('{name}') !== null")}
        reached.add(page.evaluate("document.activeElement.id"))
    assert {*names, "temperature", "beams"} <= reached
    for name in (*names[:4], "#tree"):
        page.locator(f"{name} [tabindex='0']").first.focus()
        before = page.evaluate("document.activeElement.outerHTML")
        page.keyboard.press("ArrowRight")
        assert page.evaluate(f"document.activeElement.closest('{name}') !== null")
        assert page.evaluate("document.activeElement.outerHTML") != before


def test_a_click_on_the_tokens_of_the_text_before_is_ignored(page):
    """Between a key and its result, the page still shows the tokens of the text before."""
    page.evaluate("""() => {
        const text = document.getElementById("text");
        text.value = "The storm.";
        text.dispatchEvent(new Event("input"));
        document.querySelectorAll("#source button")[2].click();
        document.querySelectorAll("#bars button")[3].click();
        document.querySelector("#tree .node").dispatchEvent(new Event("click"));
    }""")
    page.wait_for_selector(web.READY)
    assert page.locator("#changes").is_hidden()


def test_heads_that_are_off_do_not_count_in_the_mean(page, tiny_pipeline, source):
    model, source_tokens = tiny_pipeline.model, web.chips(page, "source")
    ids = greedy(model, source, [], LENGTH, EOS)
    page.locator("#target button").nth(1).click()
    most = page.locator("#most")

    def check(without):
        prefix = torch.tensor([[model.config.start_id, *ids[:-1]]])
        with torch.inference_mode(), watch(model) as attention:
            model(torch.tensor([source]), prefix)
        heads = [
            one.values[0, head, 1]
            for one in attention.records
            if one.part == "cross"
            for head in range(one.values.shape[1])
            if (one.layer, head) not in without
        ]
        mean = torch.stack(heads).mean(0)
        expected = source_tokens[int(mean.argmax())]
        assert re.fullmatch(
            rf"“.+” looked most at “{re.escape(expected)}”, with the weight {mean.max():.2f}\.", most.inner_text()
        )

    check(set())
    last = model.config.decoder_num_layers or model.config.num_layers
    layers, heads = last, page.locator("[data-key^='tile 0 ']").count()
    for head in range(heads):  # of the last layer: they change no weight of a layer before
        page.locator(f"[data-key='tile {last - 1} {head}']").click()
        page.get_by_role("switch", name="This head").click()
        page.wait_for_selector(web.READY)
    ids = [
        int(one)
        for one in page.evaluate(
            "[...document.querySelectorAll('.node.best')].map((one) => one.dataset.key.split(' ').at(-1))"
        )
    ]
    check({(last - 1, head) for head in range(heads)})
    for layer in range(layers - 1):
        page.locator(f"[data-key='tile {layer} 0']").click()
        for head in range(heads):
            page.locator(f"[data-key='tile {layer} {head}']").click()
            page.get_by_role("switch", name="This head").click()
            page.wait_for_selector(web.READY)
    assert most.inner_text().startswith("Nothing of the source reaches the decoder")
    assert set(
        page.locator("#source li").evaluate_all("all => all.map((one) => one.style.getPropertyValue('--weight'))")
    ) == {"0.000"}


def test_what_masks_and_switches_do_is_said(page):
    page.get_by_role("switch", name="This head").click()
    page.wait_for_selector(web.READY)
    assert "its result counts as 0" in page.locator("#attention .large").inner_text()
    page.get_by_role("switch", name="The whole").click()
    page.wait_for_selector(web.READY)
    assert "passes on its input unchanged" in page.locator("#attention .large").inner_text()
    page.locator("#source button").nth(2).click()
    page.wait_for_selector(web.READY)
    assert page.locator(".map td.masked").count() == page.locator(".map tbody tr").count()
    assert page.locator(".map td.masked").first.get_attribute("aria-label").endswith("is masked")
    page.locator("[data-part=decoder]").click()
    rows = page.locator(".map tbody tr").count()
    assert page.locator(".map td.masked").count() == rows * (rows - 1) // 2


def test_probabilities_of_the_model_are_marked_and_named(page):
    assert page.locator("#before-note").is_hidden()
    page.get_by_role("switch", name="This head").click()
    page.wait_for_selector(web.READY)
    page.locator("#target button").first.click()
    page.wait_for_selector(web.READY)
    assert page.locator("#before-note").is_visible()
    bar = page.locator("#bars button:has(i)").first
    assert re.fullmatch(r".+ \d+\.\d %, \d+\.\d % in the model", bar.get_attribute("aria-label"))


def test_undo_by_keyboard_keeps_the_focus(page):
    for name in ("This head", "The whole"):
        page.get_by_role("switch", name=name).click()
    page.wait_for_selector(web.READY)
    page.locator("#change-list button").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('#change-list') !== null")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "text"


def test_equal_masked_tokens_have_different_names(page):
    web.type_text(page, "the bridge the bridge")
    buttons = page.get_by_role("button", name="Mask “bridge”")
    for index in range(2):
        buttons.nth(index).click()
        page.wait_for_selector(web.READY)
    names = page.locator("#change-list button").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert len(set(names)) == 2
