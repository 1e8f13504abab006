"""The page in a browser: from a server and from the disk, with any text, and with files that fail to load."""

import json
import os
import re
import shutil
import socket

import pytest
from support.command import refused
from support.pages import web

from clearhead import TextEncoder
from clearhead.export.web.export import export_web

TEXT = "The old bridge was closed after the storm."
AGAIN = "Reload the page, or try again."


@pytest.mark.slow
@pytest.mark.parametrize("place", ["server", "disk"])
def test_translates_while_one_types(tiny, tiny_pipeline, opened, place):
    with web.address_of(tiny / "page", place) as address:
        page = opened(address)
        page.locator("#beams").select_option("2")
        expected = tiny_pipeline.generate(TEXT, num_beams=2, return_details=True)
        assert web.type_text(page, TEXT) == expected.text.strip()
        assert web.chips(page, "target") == [token.removeprefix("▁") or "▁" for token in expected.tokens][:60]
        assert web.type_text(page, "") == ""
        assert page.locator("#pictures section:visible").count() == 0
        assert page.locator("#note").inner_text() == "Type a sentence."
        web.type_text(page, "<script>document.title='hacked'</script> שלום 🙂")
        assert page.title() == "Clearhead: a Transformer in your browser"
        page.locator("#text").fill("word " * 5000)
        page.locator("#note:not(:empty)").wait_for(timeout=60_000)
        assert "its end was cut" in page.locator("#note").inner_text()


@pytest.mark.slow
def test_missing_weights_are_one_line_and_can_be_loaded_again(tiny, tmp_path, opened):
    shutil.copytree(tiny / "page", tmp_path / "page")
    weights = tmp_path / "page" / "model" / "weights.bin"
    weights.rename(tmp_path / "aside")
    error = "Failed to load resource: the server responded with a status of 404 (File not found)"
    with web.served(tmp_path / "page") as address:
        page = opened(address, allowed=(error,), wait="#failure:not([hidden])")
        line = page.locator("#failure span").inner_text()
        assert re.fullmatch(
            rf"The model was not loaded: \./model/weights\.bin could not be loaded \(HTTP 404\)\. {AGAIN}", line
        )
        shutil.copy(tmp_path / "aside", weights)
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector(web.READY)
        assert page.locator("#failure").is_hidden()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1000, 2000])
def test_nothing_is_cut_off(tiny, opened, width, scheme):
    with web.served(tiny / "page") as address:
        page = opened(address, viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
        web.type_text(page, "Donaudampfschifffahrtsgesellschaftskapitän " * 3)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert web.parts_beyond(page) == []


@pytest.mark.slow
def test_incomplete_weights_are_refused(tiny, tmp_path, opened):
    shutil.copytree(tiny / "page", tmp_path / "page")
    weights = tmp_path / "page" / "model" / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-4000])
    with web.served(tmp_path / "page") as address:
        page = opened(address, wait="#failure:not([hidden])")
        line = page.locator("#failure span").inner_text()
        assert re.fullmatch(
            rf"The model was not loaded: model/weights\.bin could not be loaded: it has \d+ bytes .*\. {AGAIN}", line
        )


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace(path):
    path.write_text("<!doctype html><title>Welcome</title>", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("runtime.wasm.gz", cut),
        ("runtime.wasm.gz", replace),
        ("model/model.json", replace),
        ("model/tokenizer.json", cut),
        ("model/encoder.onnx", replace),
        ("model/decoder.onnx", cut),
    ],
)
def test_damaged_files_are_one_plain_line(tiny, tmp_path, opened, name, change):
    shutil.copytree(tiny / "page", tmp_path / "page")
    change(tmp_path / "page" / name)
    with web.served(tmp_path / "page") as address:
        page = opened(address, wait="#failure:not([hidden])")
        line = page.locator("#failure span").inner_text()
        reasons = (
            "its content is not, or not all of, what was exported|it is damaged, or the browser has too little memory"
        )
        pattern = rf"The model was not loaded: (\./)?{re.escape(name)} could not be loaded: ({reasons})\. {AGAIN}"
        assert re.fullmatch(pattern, line), line
        shutil.copy(tiny / "page" / name, tmp_path / "page" / name)
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector(web.READY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("delete globalThis.Worker", "this browser has no web workers, or they are turned off"),
        ("Worker = function () { throw new Error('refused'); }", "this browser refuses to start a web worker"),
    ],
)
def test_without_web_workers_there_is_one_line(short, opened, script, reason):
    with web.served(short) as address:
        page = opened(address, wait="#failure:not([hidden])", script=script)
        assert page.locator("#failure").inner_text().strip() == f"The model was not loaded: {reason}."


@pytest.mark.slow
def test_module_for_other_pages(tiny, tmp_path, tiny_pipeline, opened):
    """The script of the documentation: a module that loads the model and translates."""
    shutil.copytree(tiny / "page", tmp_path / "page")
    (
        tmp_path / "page" / "index.html"
    ).write_text("""<!doctype html><link rel="icon" href="data:,"><script type="module">
      import { load } from "./clearhead.js";
      const model = await load(".");
      const controller = new AbortController();
      const cancelled = model.translate("word ".repeat(300), { numBeams: 5, signal: controller.signal });
      controller.abort();
      const reason = await cancelled.catch((error) => error.name);
      const { text, attention } = await model.translate("Good morning!", { numBeams: 1 });
      document.title = JSON.stringify([model.kind, reason, text, attention.cross.shape.slice(0, 2)]);
      model.close();
      document.documentElement.dataset.ready = "yes";
    </script>""")
    with web.served(tmp_path / "page") as address:
        kind, reason, text, shape = json.loads(opened(address).title())
    assert (kind, reason, shape) == ("translator", "AbortError", [3, 2])
    assert text == tiny_pipeline.generate("Good morning!", num_beams=1)


@pytest.mark.slow
def test_encoder(tiny_bert, tmp_path, opened):
    web.export(tiny_bert, tmp_path / "page", texts=["hello world"])
    with web.served(tmp_path / "page") as address:
        page = opened(address)
        lines = ["hello world", "hello you", "the world"]
        page.locator("#texts").fill("\n".join(lines))
        page.wait_for_selector(web.READY)
        assert page.locator("#cosines tbody tr").count() == 3
        expected = TextEncoder.from_pretrained(tiny_bert, precision="float32").similarity(lines, lines)
        cosines = page.locator("#cosines td:not(:empty)").all_inner_texts()
        assert [float(one.replace("−", "-")) for one in cosines] == pytest.approx(expected.ravel().tolist(), abs=0.006)
        assert page.locator("#text-tokens li").count() == page.locator("#text-attention tbody tr").count() > 3
        page.locator("#vectors button").nth(1).click()
        assert page.locator("#text-title").inner_text() == "Attention of sentence 2"
        page.locator("#text-tokens button").nth(1).click()
        page.wait_for_selector(web.READY)
        assert all(row[1] == 0 for row in web.weights(page, "#text-attention"))
        changed = page.locator("#cosines td:not(:empty)").all_inner_texts()
        assert changed != cosines
        assert changed[8] == cosines[8] == "1.00"
        assert "is masked" in page.locator("#changes").inner_text()
        page.get_by_role("button", name="Back to the model").click()
        page.wait_for_selector(web.READY)
        assert page.locator("#cosines td:not(:empty)").all_inner_texts() == cosines
        page.locator("#texts").fill("")
        page.wait_for_selector(web.READY)
        assert page.locator("#encoder section:visible").count() == 0
        assert page.locator("#texts-note").inner_text() == "Type a sentence."


@pytest.mark.slow
def test_a_sentence_chosen_while_fewer_are_encoded(tiny_bert, tmp_path, opened):
    web.export(tiny_bert, tmp_path / "page", texts=["hello world"])
    with web.served(tmp_path / "page") as address:
        page = opened(address, script=web.HOLD)
        page.locator("#texts").fill("hello world\nhello you\nthe world")
        page.wait_for_selector(web.READY)
        page.evaluate("window.held = []")
        page.locator("#texts").fill("the world")
        page.wait_for_function("window.held.length > 0")
        page.locator("#vectors button").nth(2).click()
        page.locator("#text-tokens button").nth(1).click()  # a token of a text that is gone
        page.evaluate(web.RELEASE)
        page.wait_for_selector(web.READY)
        assert page.locator("#vectors li").count() == 1
        assert page.locator("#text-title").inner_text() == "Attention of sentence 1"
        assert page.locator("#changes").is_hidden()
        assert page.locator("#failure").is_hidden()


def test_models_that_a_page_cannot_hold_are_refused(qa_folder, tmp_path, monkeypatch):
    assert "has a head; a web page supports" in refused("export", qa_folder, tmp_path / "page", "--to", "web")
    assert not (tmp_path / "page").exists()
    monkeypatch.setattr("clearhead.export.web.export.MAX_MEGABYTES", 5)
    with pytest.raises(
        ValueError, match=r"the weights have 18 MB or more; a web page takes at most 5 MB\. Use a smaller"
    ):
        export_web("tatoeba-en-de", tmp_path / "page")


def test_request_for_what_is_no_file_in_the_folder_is_404(tmp_path, capfd):
    folder, secret = tmp_path / "page", tmp_path / "secret.txt"
    secret.write_text("secret")
    (folder / "inside").mkdir(parents=True)
    (folder / "index.html").write_text("a page")
    (folder / "link.txt").symlink_to(secret)
    (folder / "outside").symlink_to(tmp_path)
    (folder / "inside" / "index.html").symlink_to(secret)
    (folder / "own").symlink_to(folder / "index.html")
    os.mkfifo(folder / "pipe")
    unknown = ["%00", "%00/", "link.txt", "outside/", "outside/secret.txt", "inside/", "pipe", "missing"]
    unknown += ["a" * 300, "a/" * 3000]
    with web.served(folder) as address:
        for path, status in [*((path, "404") for path in unknown), ("", "200"), ("own", "200")]:
            host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(f"GET /{path} HTTP/1.0\r\n\r\n".encode())
                assert connection.recv(100).decode().split()[1] == status
    assert "Traceback" not in capfd.readouterr().err
