"""Web exports for the tests: built pages, exported folders, and the page's scripts in Node.js."""

import json
import runpy
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from clearhead.export.web.page_files import STATIC
from clearhead.export.web.server import page_server
from clearhead.io.hub import resolve_model
from support.command import clearhead
from support.models.seq2seq import make

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
EOS, PAD, VOCABULARY = 0, 7999, 8000
SHORT = 8
"""Target tokens of the page with short outputs."""
READY = "html[data-ready=yes]:not([data-busy])"
"""The page shows the results of the last change."""
HOLD = """
window.held = null;
const own = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (...given) {
  held ? held.push(() => own.apply(this, given)) : own.apply(this, given);
};
"""
"""Script of a page: after `window.held = []`, the calls of the worker wait until RELEASE."""
RELEASE = "() => { const calls = held; window.held = null; for (const call of calls) call(); }"


@cache
def require_page():
    """Build the page's files if they are missing; skip the test where npm is missing."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed: apt-get install npm")
    if not (ROOT / "web" / "node_modules").is_dir() or not (STATIC / "page.js").is_file():
        problem = runpy.run_path(str(ROOT / "web" / "build.py"))["build"]()
        if problem is not None:
            pytest.skip(f"the page cannot be built: {problem}")


def node(script, data):
    """Run a script of this folder with JSON as its input, and return its output."""
    require_page()
    done = subprocess.run(
        ["node", str(HERE / script)], input=json.dumps(data), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tiny_translator(folder, **changes):
    """Write a tiny random translator with the tokenizer of the shipped one."""
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
    sizes = {"vocab_size": VOCABULARY, "decoder_vocab_size": VOCABULARY}
    tied = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}
    make("marian", folder, lively=True, **(ids | sizes | tied | {"activation_function": "relu"} | changes))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve_model("tatoeba-en-de") / name, folder)


def export(model, folder, *options, texts=("Good morning!", "The old bridge.")):
    """Export in a separate process: the type checks of the tests reject the dynamic sizes of a graph."""
    require_page()
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "texts.txt")
        file.write_text("\n".join(texts), encoding="utf-8")
        status, _, err = clearhead("export", model, folder, "--to", "web", "--texts", file, *options)
    assert status == 0, err
    return err


@contextmanager
def address_of(folder, place):
    """Yield the address of a folder on a "server" or on the "disk"."""
    if place == "disk":
        yield f"{folder.as_uri()}/"
    else:
        with served(folder) as address:
            yield address


def parts_beyond(page):
    """Return the elements that reach beyond the right edge of the window, outside of boxes that scroll."""
    return page.evaluate("""() => [...document.querySelectorAll("button, select, input, textarea, h2, p, svg, a, math")]
        .filter((one) => !one.closest(".scroll") && one.getClientRects().length
            && !one.classList.contains("unseen") && one.getBoundingClientRect().right > innerWidth + 1)
        .map((one) => one.outerHTML.slice(0, 80))""")


@contextmanager
def served(folder):
    """Serve a folder, and yield its address."""
    with page_server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def type_text(page, text):
    """Type a text into a translator's page, and return its output."""
    page.locator("#text").fill(text)
    page.wait_for_selector(READY)
    return page.locator("#output").inner_text()


def chips(page, name):
    """Return the tokens of the row "source" or "target"."""
    return page.locator(f"#{name} bdi").all_text_contents()


def weights(page, selector):
    """Return the numbers of a map."""
    return page.locator(f"{selector} tbody").evaluate(
        "body => [...body.rows].map((row) => [...row.cells].slice(1).map((cell) => Number(cell.dataset.weight)))"
    )


def bars(page):
    """Return {id: probability} of the next tokens."""
    return page.locator("#bars").evaluate(
        """bars => [...bars.querySelectorAll("button")].map((bar) =>
            [Number(bar.dataset.id), Number(bar.querySelector(".bar").style.getPropertyValue("--share"))])"""
    )
