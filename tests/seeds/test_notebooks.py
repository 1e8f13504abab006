"""The notebooks run from top to bottom, and their stored outputs are those of a fresh run."""

import base64
import importlib.util
import io
import json
import re
import tomllib
from pathlib import Path

import nbformat
import pytest
from PIL import Image
from support.pages import notebook_outputs

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
MAX_BYTES = 300_000
MAX_WIDTH = 900
"""Widest stored picture in pixels."""

PRINTED = {
    "01_encoder_parts": ["(2, 10, 512) -> (2, 10, 512)", "[B=2, H=8, Lq=10, Lk=10]"],
    "02_encoder_equations": ["after block 3: (1, 6, 8)"],
    "03_encoder_decoder": ["buffer (5000, 512)", "1.3737", "-0.0936", "feed-forward (2, 10, 512)"],
    "04_full_size_and_regularization": ["(30, 200, 512) -> (30, 200, 512)", "[B=30, H=8, Lq=200, Lk=200]"],
    "05_the_whole": ["[B=2, L=10, D=512]", "vectors (3, 384)"],
}

every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def tool(name):
    """Return a module of the notebooks' folder."""
    spec = importlib.util.spec_from_file_location(name, NOTEBOOKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs_of(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def pictures_of(notebook):
    return [output.data["image/png"] for output in outputs_of(notebook) if "image/png" in output.get("data", {})]


def test_every_guide_has_a_notebook():
    assert [path.stem for path in PATHS] == list(PRINTED)


@every_notebook
def test_notebook_is_stored_with_outputs(path):
    notebook = nbformat.read(str(path), as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = outputs_of(notebook)
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    streams = [output for output in outputs if output.output_type == "stream"]
    assert {output.name for output in streams} == {"stdout"}
    printed = "".join(output.text for output in streams)
    for expected in PRINTED[path.stem]:
        assert expected in printed
    pictures = [Image.open(io.BytesIO(base64.b64decode(picture))) for picture in pictures_of(notebook)]
    assert len(pictures) >= 2
    assert max(picture.width for picture in pictures) <= MAX_WIDTH


@every_notebook
def test_notebook_file_depends_on_no_machine(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MAX_BYTES
    notebook = nbformat.reads(text, as_version=4)
    assert notebook.metadata == tool("execute").METADATA
    assert all(not cell.metadata for cell in notebook.cells)
    printed = "".join(output.get("text", "") for output in outputs_of(notebook))
    assert not re.search(r"/(home|root|Users|tmp|work)/|[A-Z]:\\|site-packages|0x[0-9a-f]{6,}", printed)


@every_notebook
def test_sections_explain_before_and_after(path):
    cells = nbformat.read(str(path), as_version=4).cells
    title = cells[0].source
    for heading in ("**You will learn**", "**You need**", "**Time**"):
        assert heading in title
    for number, cell in enumerate(cells):
        if cell.get("outputs"):
            assert cells[number + 1].cell_type == "markdown", f"no text follows the output of cell {cell.id}"


@pytest.mark.slow
@every_notebook
def test_notebook_runs_and_gives_the_stored_outputs(path):
    before = nbformat.read(str(path), as_version=4)
    fresh = tool("execute").run(path)
    assert not [output for output in outputs_of(fresh) if output.get("name") == "stderr"]
    found = notebook_outputs.differences(before, fresh)
    assert not found, (
        f"the outputs stored in notebooks/{path.name} are out of date; run `make notebooks`\n" + "\n".join(found)
    )


@every_notebook
def test_notebook_opens_in_colab(path):
    address = tool("set_address")
    text = path.read_text(encoding="utf-8")
    assert f"({address.colab_url()}{path.name})" in text
    assert address.with_address(text) == text
    first = next(cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    urls = tomllib.loads((NOTEBOOKS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert f'package = "clearhead @ git+{urls["Repository"]}"\n' in "".join(first["source"])
    assert '"install", package, "matplotlib"]' in "".join(first["source"])


def stored(text, *, picture=None):
    """Return a notebook of one cell that printed a text and showed a picture."""
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    if picture is not None:
        outputs.append(nbformat.v4.new_output("display_data", data={"image/png": picture}))
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", id="one", outputs=outputs)])


def png(color, size=(200, 100)):
    """Return a base64-encoded picture: white, with a colored left half."""
    image = Image.new("RGB", size, "white")
    image.paste(color, (0, 0, size[0] // 2, size[1]))
    file = io.BytesIO()
    image.save(file, format="png")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("loss 0.513 after 2.1 s", "loss  0.514 after 7 s", True),
        ("difference 2e-07", "difference 6e-07", True),
        ("[-0.001, 0.500]", "[ 0.000, 0.501]", True),
        ("loss 0.513", "loss 0.613", False),
        ("(2, 10, 512)", "(2, 12, 512)", False),
        ("18,914,304 parameters", "18,914,305 parameters", False),
        ("Meine Mutter", "Meine Großmutter", False),
        ("one line", "one line\nand another", False),
    ],
)
def test_texts_are_compared_up_to_times_and_last_digits(first, second, equal):
    assert (notebook_outputs.differences(stored(first), stored(second)) == []) is equal


def test_pictures_are_compared_by_size_and_look():
    before = stored("", picture=png("navy"))
    assert notebook_outputs.differences(before, stored("", picture=png("navy", (201, 100)))) == []
    (found,) = notebook_outputs.differences(before, stored("", picture=png("white")))
    assert "cell one: the pictures differ" in found
    (found,) = notebook_outputs.differences(before, stored("", picture=png("navy", (300, 100))))
    assert "pixels" in found
    assert notebook_outputs.differences(before, stored("")) == ["cell one: stored 2 outputs, fresh 1"]
