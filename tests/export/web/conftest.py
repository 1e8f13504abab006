"""Fixtures for tests of web exports: a tiny random translator, and the shipped one."""

import base64
import json
import shutil

import pytest
from support.once import once
from support.pages import web

from clearhead import TextToText


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder with a tiny translator, `model`, and its export, `page`."""

    def make(folder):
        (folder / "model").mkdir(parents=True)
        web.tiny_translator(folder / "model")
        web.export(folder / "model", folder / "page")

    return once(tmp_path_factory, "tiny-web", make)


@pytest.fixture(scope="session")
def tiny_pipeline(tiny):
    return TextToText.from_pretrained(tiny / "model", precision="float32", device="cpu")


@pytest.fixture(scope="session")
def short(tiny, tmp_path_factory):
    """The tiny page with short outputs, `web.SHORT` tokens: the random model would not stop."""

    def make(folder):
        shutil.copytree(tiny / "page", folder)
        path = folder / "model" / "model.json"
        description = json.loads(path.read_text(encoding="utf-8"))
        description["generation"]["max_length"] = web.SHORT + 1
        path.write_text(json.dumps(description), encoding="utf-8")
        code = base64.b64encode(path.read_bytes()).decode()
        (folder / "disk" / "model.json.js").write_text(f'clearheadFile("model.json", "{code}");', encoding="utf-8")

    return once(tmp_path_factory, "short-web", make)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    """Export of the shipped translator."""
    return once(tmp_path_factory, "shipped-web", lambda folder: web.export("tatoeba-en-de", folder))


@pytest.fixture
def opened(browser):
    """Open an address; fail if the console has a message or the page requests another host."""
    contexts, messages = [], []

    def open_page(address, name="index.html", *, browser=browser, allowed=(), wait=web.READY, script=None, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        if script is not None:
            page.add_init_script(script)
        page.on("console", lambda message: messages.append(message.text) if message.text not in allowed else None)
        page.on("pageerror", lambda error: messages.append(str(error)))
        own = (address, "blob:", "data:")
        page.on("request", lambda request: None if request.url.startswith(own) else messages.append(request.url))
        page.goto(f"{address}{name}")
        page.wait_for_selector(wait, timeout=120_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert messages == []
