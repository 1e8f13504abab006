"""`view`, traces and the records of `watch` in notebooks."""

import re
import subprocess
import sys

import nbclient
import nbformat
import numpy as np
import pytest
import torch
from PIL import Image
from support.models import families
from support.pages.page import TEXT

from clearhead import EncoderConfig, EncoderModel, TextClassifier, TextEncoder, Trace, trace, view, watch
from clearhead.inspection.attention.table import _png

pytestmark = pytest.mark.slow

CELLS = [
    'from clearhead import view\nview("tatoeba-en-de", "The <b>old</b> bridge & \\"more\\".", beam_size=2)',
    "import torch\nfrom clearhead import EncoderLayer, trace\ntrace(EncoderLayer(8, 16, 2, 0.1), torch.zeros(1, 3, 8), values=True)",
    "from clearhead import EncoderConfig, EncoderModel, watch\n"
    "model = EncoderModel(EncoderConfig(vocab_size=9, d_model=8, num_heads=2, num_layers=2)).eval()\n"
    "with watch(model) as attention:\n    model(torch.tensor([[4, 5, 6]]))\nattention",
]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A notebook with a page, a trace and a watch, executed and converted to HTML."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    executed = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(executed, timeout=240, kernel_name="python3").execute()
    nbformat.write(executed, str(folder / "page.ipynb"))
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--template", "basic", str(folder / "page.ipynb")]
    subprocess.run(command, check=True, capture_output=True)
    return executed, folder / "page.html"


def test_notebook_shows_page_trace_and_watch(notebook, browser):
    executed, path = notebook
    assert all("text/html" in cell.outputs[-1].data for cell in executed.cells)
    assert executed.cells[0].outputs[-1].data["text/plain"].startswith("Page('tatoeba-en-de', 'The <b>old</b> bridge")
    page, messages = browser.new_page(viewport={"width": 1000, "height": 900}), []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=yes]").wait_for()
    assert frame.locator("h1").inner_text() == 'The <b>old</b> bridge & "more".'
    assert frame.locator(".node").count() > 4
    frame.locator("nav a", has_text="Beams").click()  # the frame keeps its page
    assert frame.locator("#beams-title").is_visible()
    assert frame.locator("html[data-ready=yes]").count() == 1
    assert page.url == path.as_uri()
    assert page.locator("table", has_text=" steps").locator("tbody tr").count() > 8
    pictures = page.locator("img[alt^='encoder ']")
    assert pictures.count() == 4
    assert pictures.evaluate_all("all => all.map((one) => one.naturalWidth)") == [3] * 4
    page.close()
    assert messages == []


def test_frame_cannot_reach_the_notebook():
    page = view("all-MiniLM-L6-v2", "</iframe><script>alert(1)</script>\"'")
    html = page._repr_html_()
    (attributes,) = re.findall(r"^<iframe ([^>]*)></iframe>$", html)
    assert 'sandbox="allow-scripts"' in attributes
    assert "allow-same-origin" not in attributes
    assert attributes.count('"') == 8  # title, sandbox, srcdoc and style


def test_view_takes_name_or_pipeline(tmp_path):
    encoder = TextEncoder.from_pretrained(precision="float32", device="cpu")
    assert view(encoder, TEXT).data == view("all-MiniLM-L6-v2", TEXT).data
    families.make("bert", tmp_path, "ForSequenceClassification")
    classifier = TextClassifier.from_pretrained(tmp_path, precision="float32", device="cpu")
    assert view(classifier, "hello").data["labels"] == view(tmp_path, "hello").data["labels"]
    page = view(encoder, [TEXT, "Bread."])
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.html
    assert re.fullmatch(
        r"Page\('all-MiniLM-L6-v2', 'My grandmother bakes bread every Sunday…', \d\.\d MB\)", repr(page)
    )
    with pytest.raises(ValueError, match="does not exist"):
        page.save(tmp_path / "none" / "page.html")


def test_options_of_generation_are_refused_for_encoders():
    message = "all-MiniLM-L6-v2 does not generate text. Omit beam_size and target_lang."
    with pytest.raises(ValueError, match=message):
        view("all-MiniLM-L6-v2", TEXT, beam_size=2, target_lang="de")
    with pytest.raises(ValueError, match="has no attention map encoder"):
        view("all-MiniLM-L6-v2", TEXT, full_maps=[("encoder", 9, 0)])
    with pytest.raises(ValueError, match="The text is empty"):
        view("tatoeba-en-de", " ")


def test_trace_is_an_escaped_table():
    model = EncoderModel(EncoderConfig(vocab_size=9, d_model=8, num_heads=2, num_layers=1)).eval()
    steps = trace(model, torch.tensor([[1, 2]])).steps
    html = Trace((*steps, steps[0].__class__("<b>", "a & b", "x < y", (("L", 2),), "float32", 0)), None)._repr_html_()
    assert "<b>" not in html
    assert "a &amp; b" in html
    assert html.count("<tr>") == len(steps) + 2
    assert "mean" not in html


def test_watch_shows_first_text_of_a_packed_batch_and_limits():
    encoder = TextEncoder.from_pretrained(precision="float32", device="cpu")
    with watch(encoder) as attention:
        encoder.encode([TEXT, "Bread."])
    html = attention._repr_html_()
    assert html.count("<img ") == 6 * 12
    assert "encoder 5.11: 11 × 11, to " in html
    assert "rows are queries, columns are keys.<" in html
    config = EncoderConfig(vocab_size=9, d_model=36, num_heads=18, num_layers=26, ffn_hidden=8)
    with watch(EncoderModel(config).eval()) as attention:
        pass
    assert "Nothing was recorded" in attention._repr_html_()
    model = EncoderModel(config).eval()
    with watch(model) as many:
        model(torch.tensor([[1] * 70]))
    assert many._repr_html_().count("<img ") == 24 * 16
    assert "the first 24 of 26 layers and the first 16 of 18 heads of a layer" in many._repr_html_()


def test_png_has_the_colors_of_the_cells(tmp_path):
    (tmp_path / "a.png").write_bytes(_png(np.array([[0, 255, 0], [128, 0, 255]], np.uint8)))
    picture = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))
    assert picture.shape == (2, 3, 3)
    assert picture[0].tolist() == [[251, 250, 247], [16, 66, 150], [251, 250, 247]]
    assert 16 < picture[1, 0, 0] < 251
