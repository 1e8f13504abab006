"""Figure 1 on the page matches the model, and the whole page works by keyboard."""

import dataclasses

import pytest
from support.pages.page import unpacked, weights

from clearhead import EncoderModel, Seq2Seq, TextEncoder, TextToText
from clearhead.inspection.report import collect

POST = ["Self-attention", "Add & Norm", "Feed forward", "Add & Norm"]
PRE = ["Norm", "Self-attention", "Add", "Norm", "Feed forward", "Add"]


def collect_random(pipeline, **changes):
    """Collect the page of a random model with a changed config."""
    model_class = Seq2Seq if isinstance(pipeline, TextToText) else EncoderModel
    pipeline.model = model_class(dataclasses.replace(pipeline.model.config, **changes)).eval()
    if model_class is Seq2Seq:
        pipeline.generation_config = pipeline.generation_config.updated(max_new_tokens=4)
    return collect.collect("random", pipeline, "The old bridge.")


def translator():
    return TextToText.from_pretrained(precision="float32", device="cpu")


def titles(page, half):
    return [" ".join(title.split()) for title in page.locator(f".{half} .boxes .box").all_inner_texts()]


def arrows(page, kind):
    """Return the start and end of each wire of a kind in screen coordinates."""
    return page.locator(f".wire.{kind}").evaluate_all(
        """wires => wires.map((wire) => {
            const at = wire.getScreenCTM(), ends = [0, wire.getTotalLength()];
            return ends.map((end) => { const p = wire.getPointAtLength(end).matrixTransform(at); return [p.x, p.y]; });
        })"""
    )


def box_of(page, half, title, number=0):
    return page.locator(f".{half} .boxes .box", has_text=title).nth(number).bounding_box()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 390])
def test_figure_1_with_post_norm(opened, translation, width):
    page = opened(translation, width)
    assert titles(page, "encoder") == POST
    masked = ["Masked self-attention", "Add & Norm", "Cross-attention", "Add & Norm", "Feed forward", "Add & Norm"]
    assert titles(page, "decoder") == masked
    assert page.locator(".encoder .many").inner_text() == "6 ×"
    assert page.locator(".decoder .many").inner_text() == "2 ×"
    residual = arrows(page, "residual")
    assert len(residual) == 5
    sums = [("encoder", 0), ("encoder", 1), ("decoder", 0), ("decoder", 1), ("decoder", 2)]
    for (start, end), (half, number) in zip(residual, sums, strict=True):
        box = box_of(page, half, "Add & Norm", number)
        assert start[1] > box["y"] + box["height"]  # from below the sub-layer to the side of the addition
        assert box["y"] < end[1] < box["y"] + box["height"]
        assert end[0] == pytest.approx(box["x"] if half == "encoder" else box["x"] + box["width"], abs=3)
    ((start, end),) = arrows(page, "memory")
    last, cross = box_of(page, "encoder", "Add & Norm", 1), box_of(page, "decoder", "Cross-attention")
    assert start == pytest.approx([last["x"] + last["width"] / 2, last["y"]], abs=3)
    assert end == pytest.approx([cross["x"], cross["y"] + cross["height"] / 2], abs=3)
    assert page.locator(".halves .box").evaluate_all("all => all.every((one) => one.tagName === 'BUTTON')")


@pytest.mark.slow
def test_figure_1_with_pre_norm(opened):
    page = opened(collect_random(translator(), norm_order="pre", num_layers=2, decoder_num_layers=None))
    assert titles(page, "encoder") == PRE
    assert titles(page, "decoder")[3:6] == ["Norm", "Cross-attention", "Add"]
    residual = arrows(page, "residual")
    assert len(residual) == 5
    norm, add = box_of(page, "encoder", "Norm"), box_of(page, "encoder", "Add")
    assert residual[0][0][1] > norm["y"] + norm["height"]  # around the norm too
    assert add["y"] < residual[0][1][1] < add["y"] + add["height"]
    assert page.locator(".encoder .stack > .box", has_text="Norm").count() == 1
    assert len(arrows(page, "memory")) == 1


@pytest.mark.slow
def test_figure_1_of_encoder_without_first_norm(opened):
    encoder = TextEncoder.from_pretrained(precision="float32", device="cpu")
    page = opened(collect_random(encoder, norm_order="pre", first_norm=False, num_layers=2))
    assert titles(page, "encoder") == PRE[1:]
    assert page.locator(".half").count() == 1
    assert page.locator(".wire.memory").count() == 0
    page.locator(".half select").select_option("1")
    assert titles(page, "encoder") == PRE
    assert len(arrows(page, "residual")) == 2


@pytest.mark.slow
def test_open_steps_stay_open_in_another_layer(opened, translation):
    page = opened(translation)
    page.locator(".encoder .box.attention").click()
    for name in ("scores", "softmax"):
        page.locator(f"details.step[data-tail='attention.{name}'] summary").click()
    page.locator(".encoder select").select_option("3")
    assert page.locator("#steps h3").inner_text() == "encoder, layer 3, Self-attention: 8 steps"
    open_steps = page.locator("details.step[open]")
    assert open_steps.evaluate_all("all => all.map((one) => one.dataset.tail)") == [
        "attention.scores",
        "attention.softmax",
    ]
    assert "encoder.layers.3.attention.scores" in open_steps.first.inner_text()
    assert open_steps.locator("canvas").count() == 8  # 4 heads each
    assert page.locator(".encoder select option").all_inner_texts()[0] == "layer 0"


@pytest.mark.slow
def test_closed_heat_maps_are_not_redrawn(opened, translation):
    page = opened(translation)
    page.locator(".encoder .box.attention").click()
    summaries = page.locator("details.step summary")
    for number in range(3):
        summaries.nth(number).click()
    page.locator("details.step .cells").nth(2).wait_for()
    assert page.evaluate("openHeatmaps.size") == 3
    summaries.first.click()
    page.locator("details.step .cells").nth(2).wait_for(state="detached")
    assert page.evaluate("openHeatmaps.size") == 2
    page.locator("#theme").click()
    page.locator(".box.feedforward").first.click()
    assert page.evaluate("openHeatmaps.size") == 0
    assert page.locator("details.step canvas").count() == 0


@pytest.mark.slow
def test_heat_map_works_by_keyboard(opened, translation):
    page = opened(translation)
    page.locator(".encoder .box.attention").click()
    step = next(step for step in translation["steps"] if step["path"] == "encoder.layers.0.attention.softmax")
    page.locator("details.step[data-tail='attention.softmax'] summary").click()
    cells, status = page.locator("details.step .cells"), page.locator("#status")
    cells.and_(page.locator("[data-ready]")).wait_for()
    assert cells.get_attribute("role") == "application"
    assert "4 heads of 10 rows by 10 columns" in cells.get_attribute("aria-label")
    cells.focus()
    heatmap = step["heat"]
    values = unpacked(translation, heatmap["data"], "int8", 4, 10, 10) / 127 * heatmap["largest"]
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert status.inner_text().startswith("head 1, row 1, column 2: ")
    assert float(status.inner_text().split()[-3]) == pytest.approx(values[1, 1, 2], abs=0.001)
    assert page.locator(".cells .panel .marker").count() == 1
    marker, panel = page.locator(".cells .marker").bounding_box(), page.locator(".cells .panel").nth(1).bounding_box()
    assert panel["x"] <= marker["x"] < panel["x"] + panel["width"]
    page.keyboard.press("Tab")
    assert not page.locator(".cells .marker").is_visible()
    live = page.locator("[aria-live], [role=status], [role=alert], [role=log]")
    assert live.evaluate_all("all => all.map((one) => one.id)") == ["status"]


@pytest.mark.slow
def test_faded_lines_are_restored(opened, translation):
    page = opened(translation)
    faded = "[...document.querySelectorAll('#lines line')].filter((one) => Number(one.style.opacity || 1) < 1).length"
    page.locator("#map").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate(faded) > 0
    assert page.locator("#map .marker").is_visible()
    page.keyboard.press("Escape")
    assert page.evaluate(faded) == 0
    page.keyboard.press("ArrowDown")
    assert page.evaluate(faded) > 0
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(faded) == 0
    page.locator("#map").click()
    page.locator("h1").hover()
    assert page.evaluate(faded) > 0  # a clicked row stays highlighted
    page.keyboard.press("Escape")
    assert page.evaluate(faded) == 0
    page.locator("#map").hover()
    page.locator("#map").blur()
    page.locator("h1").hover()
    assert page.evaluate(faded) == 0


@pytest.mark.slow
def test_large_map_has_tokens_on_both_axes(opened, translation):
    page = opened(translation)
    shown = [token.removeprefix("▁") for token in translation["source"]]
    assert page.locator(".axis.across span").all_inner_texts() == shown
    produced = [one["token"].removeprefix("▁") for one in translation["output_tokens"]]
    assert page.locator(".axis.down span").all_inner_texts() == produced
    assert page.locator("#map").get_attribute("role") == "application"
    page.locator(".as-text summary").click()
    head = next(one for one in translation["attention"] if one["part"] == "cross")["heads"][0]
    row = weights(translation, head)[1]
    first = page.locator(".as-text li").nth(1).inner_text()
    start = "To produce 2 “Großmutter”, the decoder attends most to"
    assert first.startswith(f"{start} {row.argmax()} “{shown[row.argmax()]}” {row.max():#.3g}")


def test_alternatives_are_not_clipped(opened, translation):
    page = opened(translation, 390)
    clipped = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert page.locator("td.alternatives, #word-view").evaluate_all(clipped) == 0
    assert "%" in page.locator("td.alternatives").first.inner_text()


def test_every_output_ends_in_tree(opened, translation):
    for number, one in enumerate(translation["outputs"]):
        end = one["end"]
        assert end["total"] == pytest.approx(one["log_prob"])
        assert end["token"] == "</s>"
        before = translation["tree"][end["step"] - 1][end["from"]]
        assert before["total"] + end["log_prob"] == pytest.approx(end["total"], abs=1e-4)
        assert before["best"] == (number == 0)
    page = opened(translation)
    ends = page.locator(".node.end")
    assert ends.count() == len(translation["outputs"])
    labels = ends.evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    log_prob = f"{translation['outputs'][1]['end']['log_prob']:.3f}".replace("-", "−")
    assert labels[1].startswith(f"Output 2 ends with </s>: {log_prob}")
    links = sum(map(len, translation["tree"])) + len(translation["outputs"])
    assert page.locator(".link").count() == links
