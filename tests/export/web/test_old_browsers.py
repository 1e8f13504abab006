"""Browsers that lack features: the page runs more slowly and gives the same results, or shows one line."""

import shutil

import pytest
import torch
from support.pages import web

from clearhead import watch

TEXT = "The old bridge was closed after the storm."
WITHOUT_SHARED_MEMORY = """
const { Memory } = WebAssembly;
WebAssembly.Memory = function (options) {
  if (options.shared) throw new TypeError("no shared memory");
  return new Memory(options);
};
WebAssembly.Memory.prototype = Memory.prototype;
"""
WITHOUT_UNPACKING = "delete globalThis.DecompressionStream; delete Intl.Segmenter;"


@pytest.fixture(scope="module")
def browser_without_simd(browser):
    """Chromium on a processor without SSE 4.1, which WebAssembly SIMD needs."""
    arguments = ["--no-sandbox", "--disable-gpu", "--js-flags=--no-enable-sse4-1"]
    opened = browser.browser_type.launch(executable_path=shutil.which("chromium"), args=arguments)
    yield opened
    opened.close()


@pytest.fixture
def open_old(opened, browser, browser_without_simd):
    """Open the page in a browser that lacks a feature."""

    def open_page(address, lacks, name="index.html"):
        if lacks == "WebAssembly SIMD":
            return opened(address, name, browser=browser_without_simd, script=WITHOUT_UNPACKING)
        return opened(address, name, script=WITHOUT_SHARED_MEMORY)

    return open_page


@pytest.mark.slow
@pytest.mark.parametrize("place", ["server", "disk"])
@pytest.mark.parametrize("lacks", ["WebAssembly SIMD", "shared WebAssembly memory"])
def test_results_are_the_same(short, tiny_pipeline, open_old, lacks, place):
    model, (source,) = tiny_pipeline.model, tiny_pipeline.tokenizer.encode([TEXT])
    expected = tiny_pipeline.generate(
        TEXT, num_beams=4, num_return_sequences=4, max_new_tokens=web.SHORT, return_details=True
    )
    with web.address_of(short, place) as address:
        page = open_old(address, lacks)
        line = page.locator("#slow").inner_text()
        assert line == f"This browser has no {lacks}, so the model runs more slowly."
        page.locator("#beams").select_option("4")
        assert web.type_text(page, TEXT) == expected.text.strip()
        scores = page.locator("#outputs .score").all_inner_texts()
        assert scores == [f"score {one.score:.3f}".replace("-", "−") for one in expected.n_best]
        target = torch.tensor([[model.config.start_id, *expected.token_ids[:-1]]])
        with torch.inference_mode(), watch(model) as attention:
            model(torch.tensor([source.ids]), target)
        for record in attention.records:
            page.locator(f"[data-part={record.part}]").click()
            page.locator(f"[data-key='tile {record.layer} 1']").click()
            weights = torch.tensor(web.weights(page, ".map"), dtype=torch.float32)
            torch.testing.assert_close(weights, record.values[0, 1], atol=1e-4, rtol=0)
        loaded = page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name.split('/').pop())")
        if place == "server":
            assert {"runtime_scalar.wasm.gz", "worker_scalar.js.gz"} <= set(loaded)
            assert "runtime.wasm.gz" not in loaded


@pytest.mark.slow
def test_lesson(short, tiny_pipeline, open_old):
    with web.served(short) as address:
        page = open_old(address, "WebAssembly SIMD", "lesson.html")
        expected = tiny_pipeline.generate(TEXT, num_beams=3, max_new_tokens=web.SHORT)
        assert web.type_text(page, TEXT) == expected.strip()
        assert page.locator("#slow").is_visible()


@pytest.mark.slow
def test_other_browsers_do_not_load_the_slow_runtime(short, opened):
    with web.served(short) as address:
        page = opened(address)
        loaded = page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name.split('/').pop())")
        assert "runtime.wasm.gz" in loaded
        assert not [name for name in loaded if "scalar" in name]
        assert page.locator("#slow").is_hidden()


@pytest.mark.slow
def test_without_webassembly_there_is_one_line(short, opened):
    with web.served(short) as address:
        page = opened(address, wait="#failure:not([hidden])", script="delete globalThis.WebAssembly")
        line = "The model was not loaded: this browser has no WebAssembly, or it is turned off."
        assert page.locator("#failure").inner_text().strip() == line
        assert page.get_by_role("button", name="Try again").count() == 0


@pytest.mark.slow
def test_shipped_translator(shipped, open_old, opened):
    texts = ["My sister wants to buy a new house this summer.", "We have to leave early because the train is late."]
    with web.served(shipped) as address:
        pages = [open_old(address, "WebAssembly SIMD"), opened(address)]
        slow, usual = ([web.type_text(page, text) for text in texts] for page in pages)
        assert slow == usual
        assert all(slow)
