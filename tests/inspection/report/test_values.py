"""Values on the page equal the tensors within the stated error, and the page stays small."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from support.models import families, folders
from support.pages.page import TEXT, results, tooltips, unpacked, weights
from transformers import BertTokenizerFast

from clearhead import Seq2Seq, TextEncoder, TextToText, watch
from clearhead.inspection.attention.weights import AttentionLayer
from clearhead.inspection.report import collect, heatmaps, page_recorder
from clearhead.inspection.report.html import render_page

TOOLTIP = re.compile(
    r"(?:head (?P<head>\d+), )?rows? (?P<top>\d+)(?:-(?P<bottom>\d+))?, columns? (?P<left>\d+)(?:-(?P<right>\d+))?: "
    r"(?:(?P<nothing>masked, −∞)|(?P<mean>mean )?(?P<value>-?[\d.]+) ± (?P<error>[\d.]+))"
)


def block(tooltip, tensor):
    """Return the elements of a tensor that a tooltip describes."""
    top, left = int(tooltip["top"]), int(tooltip["left"])
    matrix = tensor if tooltip["head"] is None else tensor[int(tooltip["head"])]
    return matrix[top : int(tooltip["bottom"] or top) + 1, left : int(tooltip["right"] or left) + 1]


def test_page_has_values_of_tensors(translation):
    translator = TextToText.from_pretrained(precision="float32", device="cpu")
    (best,) = translator.generate([TEXT], return_details=True)
    assert translation["output"] == best.text
    assert len(translation["outputs"]) == translator.generation_config.beam_size
    assert translation["outputs"][0]["score"] == pytest.approx(best.score, abs=1e-5)
    assert [one["log_prob"] for one in translation["output_tokens"]] == pytest.approx(list(best.log_probs), abs=1e-4)
    ids = torch.tensor([translator.tokenizer.encode([TEXT], translator.max_length)[0].ids])
    target = torch.tensor([[translator.model.config.start_id, *best.token_ids[:-1]]])
    with torch.inference_mode(), watch(translator.model) as records:
        translator.model(ids, target)
    for one, record in zip(translation["attention"], records.records, strict=True):
        assert (one["part"], one["layer"]) == (record.part, record.layer)
        for head, expected in zip(one["heads"], record.values[0], strict=True):
            assert np.abs(weights(translation, head) - expected.numpy()).max() <= float(expected.max()) / 510 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scores", "mask", "softmax", "split_heads", "qkv", "out"])
def test_every_cell_of_heat_map_matches_tensor(opened, translation, name):
    path = f"decoder.layers.0.attention.{name}"
    tensor = results(translation)[path]
    page = opened(translation)
    page.locator(".decoder .box.attention").first.click()
    step = page.locator(f"details.step[data-tail='attention.{name}']")
    step.locator("summary").click()
    step.locator(".cells[data-ready]").wait_for()
    matches = [TOOLTIP.fullmatch(text) for text in tooltips(page, step.locator(".cells"))]
    covered = np.zeros(tensor.shape, int)
    for tooltip in matches:
        values = block(tooltip, tensor)
        block(tooltip, covered)[...] += 1
        finite = values[np.isfinite(values)]
        if tooltip["nothing"]:
            assert np.isneginf(values).all()
        else:
            assert abs(finite.mean() - float(tooltip["value"])) <= float(tooltip["error"])
        assert bool(tooltip["mean"]) == (values.size > 1 and not tooltip["nothing"])
    assert (covered == 1).all()  # each element is in one cell
    assert any(tooltip["nothing"] for tooltip in matches) == (name == "mask")
    exact = tensor.ndim == 3  # 4 small heads; without heads, a row has hundreds of columns
    assert all(tooltip["mean"] is None for tooltip in matches) == exact
    assert ("largest cell" in step.locator(".ends").inner_text().lower()) == (not exact)
    masked = int(np.isneginf(tensor).sum())
    assert (f"{masked} of {tensor.size}" in step.locator(".numbers").inner_text()) == (masked > 0)
    assert step.locator(".key.masked").count() == (masked > 0)


def test_heads_are_not_averaged():
    blobs, result = heatmaps.Blobs(), torch.stack([torch.ones(60, 60), -torch.ones(60, 60)])[None]
    heatmap = heatmaps.heatmap(result, 2 * 24 * 24, blobs)
    cells = unpacked({"blobs": blobs.texts}, heatmap.data, np.int8, heatmap.heads, heatmap.rows, heatmap.columns)
    assert (heatmap.heads, heatmap.height, heatmap.width, heatmap.rows, heatmap.columns) == (2, 60, 60, 24, 24)
    assert (cells[0] == 127).all()
    assert (cells[1] == -127).all()


def test_mean_excludes_infinite_elements():
    result = torch.tensor([[[1.0, 3.0, -torch.inf, 5.0, -torch.inf, -torch.inf]]])
    blobs = heatmaps.Blobs()
    heatmap = heatmaps.heatmap(result, 3, blobs)
    cells = unpacked({"blobs": blobs.texts}, heatmap.data, np.int8, 3)
    assert heatmap.masked == 3
    assert cells[2] == -128
    assert cells[:2] / 127 * heatmap.largest == pytest.approx([2.0, 5.0], abs=heatmap.largest / 254)


@pytest.mark.parametrize(("length", "room", "size"), [(300, 90_000, 256), (300, 30_000, 128), (512, 7_000, 64)])
def test_pooled_cells_are_largest_weights(length, room, size):
    values = torch.rand(1, 1, length, length)
    blobs, maps = heatmaps.Blobs(), heatmaps.attention_maps(AttentionLayer("", "encoder", 0, 1), values[0], frozenset())
    (packed,) = heatmaps.pack([({}, maps)], room, blobs)
    (head,) = packed["heads"]
    assert (head["rows"], head["columns"]) == (size, size)
    cells = weights({"blobs": blobs.texts}, head)
    edges = [index * length // size for index in range(size + 1)]
    for row in (0, 1, size // 2, size - 1):
        for column in range(size):
            part = values[0, 0, edges[row] : edges[row + 1], edges[column] : edges[column + 1]]
            assert abs(cells[row, column] - part.max()) <= 0.002


@pytest.mark.slow
def test_page_describes_pooled_map(opened, translation):
    values, about = torch.rand(1, 1, 300, 300), {"part": "encoder", "layer": 0, "queries": 300, "keys": 300}
    blobs = heatmaps.Blobs()
    blobs.texts += translation["blobs"]
    attention = heatmaps.pack(
        [(about, heatmaps.attention_maps(AttentionLayer("", "encoder", 0, 1), values[0], frozenset()))], 10**6, blobs
    )
    page = opened(translation | {"attention": attention, "source": ["a"] * 300, "blobs": blobs.texts})
    assert "300 × 300 tokens in 256 × 256 cells" in page.locator("#attention-view").inner_text()
    page.locator("#map").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert page.locator("#status").inner_text().startswith("0 “a” attends to 4 “a”: ")
    page.keyboard.press("ArrowRight")
    status = page.locator("#status").inner_text()
    assert status.startswith("0 “a” attends to 5 to 6: ")
    assert abs(float(status.split()[-3]) - float(values[0, 0, 0, 5:7].max())) <= 0.003
    assert 5 < page.locator(".axis.across span").count() <= 40  # only some tokens are written at the map


@pytest.mark.slow
def test_every_query_has_a_line(opened, translation):
    values = torch.rand(1, 1, 40, 40).softmax(dim=-1)  # all near 1 / 40, below the limit for lines
    values[0, 0, 3] = torch.tensor([0.5, 0.46, 0.04, *[0.0] * 37])
    values[0, 0, 4] = 0.0
    about = {"part": "encoder", "layer": 0, "queries": 40, "keys": 40}
    blobs = heatmaps.Blobs()
    blobs.texts += translation["blobs"]
    attention = heatmaps.pack(
        [(about, heatmaps.attention_maps(AttentionLayer("", "encoder", 0, 1), values[0], frozenset()))], 10**6, blobs
    )
    page = opened(translation | {"attention": attention, "source": ["a"] * 40, "blobs": blobs.texts})
    starts = page.locator("#lines line").evaluate_all("all => all.map((one) => Number(one.getAttribute('y1')))")
    rows = [round((start - 14) / 21) for start in starts]
    assert rows.count(3) in (2, 3)  # the byte of 0.04 may round down
    assert set(rows) == set(range(40)) - {4}
    assert "largest weight of each query, and all weights of at least 0.04" in page.locator("#lines").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("length", [12, 200])
def test_small_weights_are_visible(opened, translation, length):
    values = torch.rand(1, 1, length, length).softmax(dim=-1)  # all near 1 / length
    values[..., -1] = 0.0
    about = {"part": "encoder", "layer": 0, "queries": length, "keys": length}
    blobs = heatmaps.Blobs()
    blobs.texts += translation["blobs"]
    maps = heatmaps.attention_maps(AttentionLayer("", "encoder", 0, 1), values[0], frozenset())
    attention = heatmaps.pack([(about, maps)], 10**6, blobs)
    page = opened(translation | {"attention": attention, "source": ["a"] * length, "blobs": blobs.texts})
    hint = page.locator("#scale").inner_text()
    assert float(hint.split()[3].removesuffix(",")) == pytest.approx(float(values.max()), rel=0.01)
    assert ("square root" in hint) == (length > 60)
    colors = page.locator("#map canvas").evaluate(
        "(map) => Array.from(map.getContext('2d').getImageData(0, 0, map.width, 1).data)"
    )
    distances = np.abs(np.reshape(colors, (length, 4))[:, :3] - colors[-4:-1]).sum(1)  # from the color of 0
    assert (distances[:-1] > 40).all()
    page.locator("#map").focus()
    _, _, _, value, _, error = page.locator("#status").inner_text().rsplit(maxsplit=5)
    assert float(error) < 0.01 / length
    assert abs(float(value) - float(values[0, 0, 0, 0])) <= float(error)


@pytest.mark.slow
def test_page_of_short_sentence_is_small(translation):
    assert len(render_page(translation)) < 2_000_000
    assert len(render_page(collect.collect_checkpoint("all-MiniLM-L6-v2", TEXT))) < 2_000_000


@pytest.mark.slow
def test_page_of_large_model_is_small():
    translator = TextToText.from_pretrained(precision="float32", device="cpu")
    sizes = {"d_model": 512, "num_heads": 16, "num_layers": 12, "ffn_hidden": 1024}
    same = {"decoder_ffn_hidden": None, "decoder_num_heads": None, "decoder_num_layers": None, "head_dim": None}
    translator.model = Seq2Seq(dataclasses.replace(translator.model.config, **sizes, **same)).eval()
    translator.generation_config = translator.generation_config.updated(max_new_tokens=20)
    text = "My grandmother bakes bread every Sunday morning, and then she walks to the old bridge by the river."
    data = collect.collect("large", translator, text)
    assert len(data["source"]) >= 20
    assert len(render_page(data)) < 2_000_000


@pytest.mark.slow
def test_random_maps_stay_under_40_megabytes(translation):
    """Use 24 layers of 16 heads with 4,096 tokens, random bytes, and one full map."""
    noise = np.random.default_rng(0)

    def random(size, full_size=False):
        return heatmaps.AttentionMap(0, noise.integers(0, 256, (size, size), dtype=np.uint8), 1.0, full_size)

    layers = [({"part": "encoder", "layer": layer}, [random(256) for _ in range(16)]) for layer in range(24)]
    layers[3][1][5] = random(4096, full_size=True)
    before = layers[0][1][0].cells
    blobs = heatmaps.Blobs()
    packed = heatmaps.pack(layers, page_recorder.MAP_CHARACTERS, blobs)
    data = translation | {"attention": packed, "blobs": blobs.texts, "source": ["token"] * 4096}
    assert len(render_page(data)) < 40_000_000
    assert packed[3]["heads"][5]["rows"] == 4096
    assert packed[0]["heads"][0]["rows"] == 128
    expected = before.reshape(128, 2, 128, 2).max((1, 3))
    assert (weights({"blobs": blobs.texts}, packed[0]["heads"][0]) * 255).round().astype(
        int
    ).tolist() == expected.tolist()


def test_refuses_too_many_full_maps():
    maps = heatmaps.attention_maps(
        AttentionLayer("", "encoder", 0, 2), torch.rand(2, 300, 300), frozenset({("encoder", 0, 1)})
    )
    with pytest.raises(
        ValueError, match=r"take 0\.1 MB of the page, and the limit is 0\.0 MB\. Keep fewer full maps than 1"
    ):
        heatmaps.pack([({}, maps)], 30_000, heatmaps.Blobs())


@pytest.mark.slow
def test_maps_of_long_text_are_pooled_except_full_maps(opened):
    text = " ".join(f"word{number}" for number in range(400))
    encoder = TextEncoder.from_pretrained(precision="float32", device="cpu")
    data = collect.collect_checkpoint("all-MiniLM-L6-v2", text, full_maps=[("encoder", 1, 2)])
    tokens = len(encoder.tokenize([text])[0].ids)
    assert data["truncated"] is True
    assert len(data["source"]) == tokens == 256
    assert data["attention"][1]["heads"][2]["rows"] == 256
    opened(data)


@pytest.mark.slow
def test_page_of_4096_tokens_is_under_40_megabytes(opened, tmp_path):
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    families.make("bert", tmp_path, max_position_embeddings=4096, **sizes)
    BertTokenizerFast(str(tmp_path / "vocab.txt"), model_max_length=4096).save_pretrained(tmp_path)
    data = collect.collect_checkpoint(str(tmp_path), "the old bridge " * 2000, full_maps=[("encoder", 1, 3)])
    assert len(data["source"]) == 4096
    sizes = {one["rows"] for part in data["attention"] for one in part["heads"]}
    assert sizes == {256, 4096}
    assert len(render_page(data)) < 40_000_000
    page = opened(data)
    assert page.locator("#tokens").bounding_box()["y"] < 900
    page.locator("#attention-view select").first.select_option("1")
    page.locator(".grid button").nth(3).click()
    page.locator("h3", has_text="layer 1, head 3").wait_for()
    assert page.locator("#map canvas").evaluate("canvas => [canvas.width, canvas.height]") == [4096, 4096]


@pytest.mark.slow
def test_page_of_large_translation_is_under_40_megabytes(opened, tmp_path):
    sizes = {"d_model": 256, "max_position_embeddings": 4096}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_layers": 12, f"{part}_attention_heads": 16, f"{part}_ffn_dim": 512}
    folders.bart(tmp_path, **sizes)
    limits = tmp_path / "tokenizer_config.json"
    limits.write_text(json.dumps(json.loads(limits.read_text()) | {"model_max_length": 4096}))
    translator = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    translator.generation_config = translator.generation_config.updated(max_new_tokens=24)
    data = collect.collect("long", translator, "the old bridge " * 3000)
    assert len(data["source"]) == 4096
    assert len(data["attention"]) == 12 * 3
    assert len(render_page(data)) < 40_000_000
    page = opened(data)
    page.locator("#attention-view select").first.select_option("11")
    page.locator(".grid button").nth(15).click()
    page.locator("h3", has_text="layer 11, head 15").wait_for()
