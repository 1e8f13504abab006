"""One notebook per teaching document: each runs from top to bottom and is stored without outputs."""

import importlib.util
import json
import tomllib
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))

PRINTED = {
    "01_encoder_parts": ["(2, 10, 512) -> (2, 10, 512)", "[B=2, H=8, Lq=10, Lk=10]"],
    "02_encoder_equations": ["after block 3: (1, 6, 8)"],
    "03_encoder_decoder": ["buffer (5000, 512)", "1.3737", "-0.0936", "feed-forward (2, 10, 512)"],
    "04_full_size_and_regularization": ["(30, 200, 512) -> (30, 200, 512)", "[B=30, H=8, Lq=200, Lk=200]"],
    "05_the_whole": ["[B=2, L=10, D=512]", "vectors (3, 384)"],
}


def test_every_guide_has_a_notebook():
    assert [path.stem for path in PATHS] == list(PRINTED)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    notebook = nbformat.read(str(path), as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert "except ImportError" in code[0].source
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in code for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    for expected in PRINTED[path.stem]:
        assert expected in printed
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_opens_in_colab(path):
    spec = importlib.util.spec_from_file_location("set_address", NOTEBOOKS / "set_address.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = path.read_text(encoding="utf-8")
    assert f"({module.link()}{path.name})" in text
    assert module.carried(text) == text
    first = next(cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    address = tomllib.loads((NOTEBOOKS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert f'package = "clearhead @ git+{address["Repository"]}"\n' in "".join(first["source"])
    assert '"install", package, "matplotlib"]' in "".join(first["source"])
