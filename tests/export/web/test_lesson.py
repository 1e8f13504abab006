"""The lesson: its numbers are those of Python, its pictures move in steps, and it names functions that exist."""

import ast
import re
from pathlib import Path

import pytest
import torch
from support.pages import web

from clearhead import Seq2Seq, Seq2SeqConfig, TextToText, watch
from clearhead.equations import attention, embedding, feedforward, norm
from clearhead.export.web.lesson import describe_lesson

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TEXT = "The old bridge was closed."
NUMBERS = (
    "rows => rows.map((row) => [...row.querySelectorAll('[data-value]')].map((cell) => Number(cell.dataset.value)))"
)


def test_functions_exist():
    source = (ROOT / "web" / "source" / "lesson" / "lesson.html").read_text(encoding="utf-8")
    lines = re.findall(r'<p class="code">(.*?)</p>', source)
    assert len(lines) == source.count('class="chapter"') == 7
    for line in lines:
        names = []
        for part in re.split(r"(?=<code data-file)", line)[1:]:
            path = ROOT / re.search(r'data-file="([^"]+)"', part)[1]
            tree = ast.parse(path.read_text(encoding="utf-8"))
            defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            own = re.findall(r'<code class="function"[^>]*>(\w+)</code>', part)
            assert own
            assert set(own) <= defined, path
            names += own
        assert names


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"positions": "concatenated", "activation": "silu"}, True),
        ({"norm_order": "pre"}, False),
        ({"positions": "learned"}, False),
        ({"positions": "none", "relative_buckets": 4}, False),
        ({"norm": "rms"}, False),
        ({"activation": "geglu"}, False),
        ({"scale_scores": False}, False),
        ({"embedding_norm": True}, False),
        ({"tie_output": False}, False),
        ({"share_embeddings": False}, False),
    ],
)
def test_models_with_a_lesson(changes, expected):
    model = Seq2Seq(Seq2SeqConfig(vocab_size=9, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1, **changes))
    assert (describe_lesson(model) is not None) == expected


def first_layer(model, ids):
    """Return the results inside the first encoder layer, by the equations of the package."""
    layer, config = model.encoder.layers[0], model.config
    rows = embedding.embed(torch.tensor([ids]), model.source_embedding.tokens.weight)
    embedded = embedding.scale_embeddings(rows)
    positions = model.source_embedding.positions.pe[: len(ids)]
    x = embedded + positions
    qkv = attention.project(x, layer.attention.qkv.weight, layer.attention.qkv.bias)
    q, k, v = (attention.split_heads(part, config.num_heads) for part in qkv.chunk(3, dim=-1))
    z, weights = attention.scaled_dot_product(q, k, v)
    attended = attention.output(attention.merge_heads(z), layer.attention.out.weight, layer.attention.out.bias)
    first, second = layer.attention_residual.norm, layer.feedforward_residual.norm
    shape, eps = first.parameters_shape, first.eps
    added = x + attended
    normal = norm.layer_norm(added, parameters_shape=shape, eps=eps)
    y = norm.layer_norm(added, first.weight, first.bias, parameters_shape=shape, eps=eps)
    network = layer.feedforward
    inner = network.activation(feedforward.expand(y, network.inner.weight, network.inner.bias))
    changed = feedforward.contract(inner, network.out.weight, network.out.bias)
    output = norm.layer_norm(y + changed, second.weight, second.bias, parameters_shape=shape, eps=eps)
    passed = [x, attended, added, normal, y, inner, changed, y + changed, output]
    return {
        "embedding": [rows[0], embedded[0], positions, x[0]],
        "scores": attention.scores(q, k, scale=1.0)[0],
        "weights": weights[0],
        "parts": weights[0, ..., None] * v[0][:, None],
        "z": z[0],
        "pass": [part[0] for part in passed],
    }


def chosen(page, chapter, label, index):
    """Choose a token or a head of a chapter."""
    page.locator(f"#chapter-{chapter} [data-key='{label} {index}']").click()


def close(found, expected):
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float32), expected.float(), atol=1e-4, rtol=1e-4)


def check_numbers(page, model, ids, token, head):
    """Compare the numbers of chapters 2 to 5 with those of the equations."""
    with torch.inference_mode(), watch(model) as watched:
        expected = first_layer(model, ids)
        model.encode(torch.tensor([ids]))
    weights = next(one.values[0] for one in watched.records if one.part == "encoder" and one.layer == 0)
    torch.testing.assert_close(expected["weights"], weights, atol=1e-5, rtol=0)
    chosen(page, 2, "Token", token)
    chosen(page, 3, "Head", head)
    for row, part in zip(
        page.locator("#chapter-2 .numbers tbody tr").evaluate_all(NUMBERS), expected["embedding"], strict=True
    ):
        close(row, part[token, : len(row)])
    rows = page.locator("#chapter-3 .keys tbody tr").evaluate_all(NUMBERS)
    scores = expected["scores"][head, token]
    scaled = scores / expected["z"].shape[-1] ** 0.5
    close(rows, torch.stack([scores, scaled, scaled.exp(), weights[head, token]], dim=-1))
    parts = page.locator("#chapter-3 .long tbody tr").evaluate_all(NUMBERS)
    close(parts[:-1], expected["parts"][head, token])
    close(parts[-1], expected["z"][head, token])
    rows = page.locator("#chapter-4 .heads tbody tr").evaluate_all(NUMBERS)
    close(rows, weights[:, token])
    page.locator(f"#chapter-4 [data-key='tile 0 {head}']").click()
    close(web.weights(page, "#chapter-4 .map"), weights[head])
    rows = page.locator("#chapter-5 .pass tbody tr").evaluate_all(NUMBERS)
    for (*numbers, mean, deviation), part in zip(rows, expected["pass"], strict=True):
        close(numbers, part[token, : len(numbers)])
        close([mean, deviation], torch.stack([part[token].mean(), part[token].std(correction=0)]))


def check_decoder(page, model, ids, target, beams):
    """Compare the maps of chapter 6 with `watch`, and the sums of chapter 7 with the model's log-probabilities."""
    prefix = torch.tensor([[model.config.start_id, *target[:-1]]])
    with torch.inference_mode(), watch(model) as watched:
        logits = model(torch.tensor([ids]), prefix)
    for index, part in enumerate(["decoder", "cross"]):
        means = torch.stack([one.values[0].mean(0) for one in watched.records if one.part == part]).mean(0)
        close(web.weights(page, f"#chapter-6 .maps > :nth-child({index + 1}) .map"), means)
    assert page.locator("#chapter-6 .map").first.locator(".masked").count() == len(target) * (len(target) - 1) // 2
    check_equation_of_probabilities(page, model, ids, prefix, target)
    total = logits[0].log_softmax(-1).gather(1, torch.tensor(target)[:, None]).sum()
    row = page.locator("#chapter-7 .outputs tbody tr").evaluate_all(NUMBERS)[0]
    close(row, torch.stack([total, total / len(target)]))
    assert page.locator("#chapter-7 .outputs tbody tr").count() == beams + 1


def check_equation_of_probabilities(page, model, ids, prefix, target):
    """Compare the probabilities of chapter 6 with its equation, which has the bias b only if the model has one."""
    kept = []
    with torch.inference_mode(), model.output.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0][0])):
        model(torch.tensor([ids]), prefix)
        scores = embedding.unembed(kept[0], model.target_embedding.tokens.weight, model.output.bias)
    has_bias = model.output.bias is not None
    probabilities = scores.softmax(-1).gather(1, torch.tensor(target)[:, None])[:, 0]
    shown = page.locator("#chapter-6 .chips.target small").all_inner_texts()
    assert shown == [f"{100 * one:.1f} %" for one in probabilities.tolist()]
    assert page.locator("#chapter-6 [data-bias]").count() == (3 if has_bias else 0)


@pytest.mark.parametrize("place", ["server", "disk"])
def test_numbers(short, tiny_pipeline, opened, place):
    model, (tokens,) = tiny_pipeline.model, tiny_pipeline.tokenizer.encode([TEXT])
    output = tiny_pipeline.generate(TEXT, num_beams=3, max_new_tokens=web.SHORT, return_details=True)
    with web.address_of(short, place) as address:
        page = opened(address, "lesson.html")
        assert web.type_text(page, TEXT) == output.text.strip()
        shown = page.locator("#chapter-1 [data-id]").evaluate_all("ids => ids.map((id) => Number(id.dataset.id))")
        assert shown == list(tokens.ids)
        for token, head in ((1, 0), (len(tokens.ids) - 1, 1)):
            check_numbers(page, model, tokens.ids, token, head)
        check_decoder(page, model, tokens.ids, list(output.token_ids), 3)


def test_numbers_of_the_shipped_translator(shipped, opened):
    pipeline = TextToText.from_pretrained(precision="float32", device="cpu", shortlist=False)
    text = "I have not seen the cat."
    output = pipeline.generate(text, num_beams=3, return_details=True)
    with web.served(shipped) as address:
        page = opened(address, "lesson.html")
        assert page.locator("#output").inner_text() == output.text
        (tokens,) = pipeline.tokenizer.encode([text])
        for token, head in ((1, 0), (5, 3)):
            check_numbers(page, pipeline.model, tokens.ids, token, head)
        check_decoder(page, pipeline.model, tokens.ids, list(output.token_ids), 3)
        href = page.locator("#chapter-3 .code a").first.get_attribute("href")
        assert href.endswith("/blob/main/src/clearhead/equations/attention.py")
        link = page.locator("#chapter-3 .code").get_by_role("link", name="weighted_sum", exact=True)
        path, line = link.get_attribute("href").split("/blob/main/")[1].split("#L")
        assert (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1].startswith("def weighted_sum(")
    files = [path for path in shipped.rglob("*") if path.is_file() and "scalar" not in path.name]
    downloaded = [path for path in files if "disk" not in path.parts]
    assert sum(path.stat().st_size for path in downloaded) <= 30e6


def test_each_cell_is_worked_out(short, opened):
    with web.served(short) as address:
        page = opened(address, "lesson.html")
        web.type_text(page, TEXT)
        button = page.locator("#chapter-3 [data-key='cell 1 2']")
        button.focus()
        page.keyboard.press("Enter")
        q, key, products, sums = page.locator("#chapter-3 .long tbody tr").evaluate_all(NUMBERS)
        assert products == pytest.approx([one * other for one, other in zip(q, key, strict=True)], abs=1e-5)
        shown = float(button.inner_text().replace("−", "-"))
        assert shown == pytest.approx(sums[-1], abs=6e-4)
        assert page.evaluate("document.activeElement.dataset.key") == "cell 1 2"
        page.locator("#chapter-3 [data-key='cell 4 2']").click()
        first = page.locator("#chapter-3 .work p").inner_text()
        powers, total, weight = (
            float(one.replace("−", "-")) for one in re.search(r"(\S+) ÷ (\S+) = (\S+)", first).groups()
        )
        assert weight == pytest.approx(powers / total, abs=2e-3)


def test_first_head_has_more_than_a_single_weight(shipped, opened):
    with web.served(shipped) as address:
        page = opened(address, "lesson.html")
        picture = page.locator("#chapter-3")
        (chosen,) = picture.locator("[aria-label=Head] [aria-pressed=true]").all_inner_texts()
        largest = {}
        for head in picture.locator("[aria-label=Head] button").all():
            head.click()
            caption = next(one for one in picture.locator("li").all_inner_texts() if "Softmax, second half" in one)
            weight, token = re.search(r"The largest is (\S+): .* attends most to “(.+?)”", caption).groups()
            largest[head.inner_text()] = float(weight)
            assert ("do not need on punctuation" in caption) == (not token.isalpha())
        assert len(largest) == 4
        assert chosen == min(largest, key=largest.get)


def test_pictures_move_in_steps(short, opened):
    quick = "const own = setInterval; window.setInterval = (work) => own(work, 5);"
    with web.served(short) as address:
        page = opened(address, "lesson.html", script=quick)
        web.type_text(page, TEXT)
        for chapter in range(1, 8):
            picture = page.locator(f"#picture-{chapter}")
            steps = picture.locator(".steps button")
            place, play = picture.locator(".place"), picture.get_by_role("button", name=re.compile("^Play"))
            end = place.inner_text().split(" of ")[1]
            play.click()
            picture.get_by_role("button", name=re.compile("^Pause")).wait_for(state="detached")
            assert place.inner_text() == f"{end} of {end}"  # it ends
            picture.get_by_role("button", name=re.compile("^Step forward")).click()
            assert place.inner_text() == f"1 of {end}"
            assert steps.first.get_attribute("aria-current") == "step"
            picture.get_by_role("button", name=re.compile("^Step back")).click()
            assert place.inner_text() == f"{end} of {end}"
            steps.nth(1).focus()
            page.keyboard.press("Enter")
            assert steps.nth(1).get_attribute("aria-current") == "step"
            assert page.locator("#status").inner_text() != ""


def test_reduced_motion_and_keyboard(short, opened):
    with web.served(short) as address:
        page = opened(address, "lesson.html", reduced_motion="reduce")
        web.type_text(page, TEXT)
        assert page.get_by_role("button", name=re.compile("^Play")).count() == 0
        token = page.locator("#chapter-2 [data-key='Token 1']")
        token.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.dataset.key") == "Token 2"
        assert page.locator("#chapter-5 [data-key='Token 2']").get_attribute("aria-pressed") == "true"
        unnamed = page.evaluate("""() => [...document.querySelectorAll("button, [role=img], [role=group], nav")]
            .filter((one) => one.getClientRects().length && !(one.getAttribute("aria-label") || one.textContent.trim()))
            .map((one) => one.outerHTML.slice(0, 80))""")
        assert unnamed == []


def test_any_text(short, opened):
    with web.served(short) as address:
        page = opened(address, "lesson.html")
        assert web.type_text(page, "  ") == ""
        assert page.locator(".picture:visible").count() == 0
        for text in ("<script>document.title='hacked'</script>", "שלום עולם", "🙂👩‍👩‍👧 e\u0301", "x"):
            web.type_text(page, text)
            assert page.title().startswith("Clearhead: how")
            assert page.locator(".picture:visible").count() == 7
            assert page.locator("#chapter-1 .big").inner_text() == text
        page.locator("#text").fill("word " * 5000)
        page.wait_for_selector(web.READY)
        assert page.locator("#note").inner_text().startswith("The lesson uses the beginning of your text")
        for text, unit in (
            ("extraordinary " * 30, "extraordinary "),
            ("👩‍👩‍👧" * 40, "👩‍👩‍👧"),
            ("e\u0301" * 150, "e\u0301"),
        ):
            web.type_text(page, text)
            used = page.locator("#chapter-1 .big").inner_text()
            assert f"{used} " == unit * len(used.split()) or used == unit * (len(used) // len(unit))
            assert 0 < len(used) < len(text)


def test_an_empty_text_has_a_note_until_something_is_typed(short, opened):
    with web.served(short) as address:
        page = opened(address, "lesson.html")
        web.type_text(page, "")
        assert page.locator("#note").inner_text() == "Type a sentence to see its numbers."
        page.locator("#text").evaluate("(one) => { one.value = 'Hi'; one.dispatchEvent(new Event('input')); }")
        assert page.locator("#note").inner_text() == ""
        page.wait_for_selector(web.READY)
        assert page.locator("#chapter-1 .big").inner_text() == "Hi"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280, 2000])
def test_nothing_is_cut_off(short, opened, width, scheme):
    with web.served(short) as address:
        page = opened(address, "lesson.html", viewport={"width": width, "height": 900}, color_scheme=scheme)
        web.type_text(page, "Donaudampfschifffahrtsgesellschaftskapitän " * 3)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert web.parts_beyond(page) == []
        # a formula that can scroll cuts its letters off, and takes the focus
        assert page.evaluate(
            "[...document.querySelectorAll('math')].every((one) => getComputedStyle(one).overflowY === 'visible')"
        )


def test_wide_tables_show_that_they_scroll(short, opened):
    with web.served(short) as address:
        page = opened(address, "lesson.html", viewport={"width": 400, "height": 900})
        web.type_text(page, TEXT)
        tables = page.locator(".scroll:has(> .numbers)").evaluate_all(
            """boxes => boxes.map((box) => [box.tabIndex, box.getAttribute("role"), Boolean(box.getAttribute("aria-label")),
                getComputedStyle(box).backgroundAttachment])"""
        )
        assert len(tables) > 5
        assert all(one == [0, "region", True, "local, local, scroll, scroll"] for one in tables)


def test_explorer_links_to_the_lesson(short, tiny_bert, tmp_path, opened):
    with web.served(short) as address:
        page = opened(address)
        page.locator("#lesson-link").click()
        page.wait_for_selector("#lesson:not([hidden])")
    web.export(tiny_bert, tmp_path / "page", texts=["hello world"])
    assert not list((tmp_path / "page").glob("lesson*"))
    with web.served(tmp_path / "page") as address:
        assert opened(address).locator("#lesson-link").is_hidden()
