"""Damaged and hostile ONNX graphs: a translation with `--runtime onnx`, and `verify --against` a graph."""

import json
import shutil
from pathlib import Path
from random import Random

import numpy as np
import onnx

from fuzz import mutations
from fuzz.outcomes import Case, Target

TRANSLATOR, ENCODER, INDEX = "translator", "encoder", "index"
TEXT = "the old bridge was closed"
SIZES = (0, 1, 1, 1, 2, 7, 16, 32)
TYPES = ("float32", "float32", "float32", "float16", "float64", "int64", "bool")


def prepare(folder: Path) -> None:
    """Export an encoder–decoder and an encoder, and write an index."""
    from support.data.corpora import sentences
    from support.models import folders
    from support.models.tiny import make_bert

    from clearhead import Index, TextEncoder
    from clearhead.export.onnx import export

    bert, marian = make_bert(folder / "bert"), folder / "marian"
    marian.mkdir()
    folders.marian(marian)
    export(marian, folder / TRANSLATOR, texts=[TEXT])
    export(bert, folder / ENCODER, texts=[TEXT])
    encoder = TextEncoder.from_pretrained(bert, precision="float32", device="cpu")
    Index.build(encoder, [text for text in sentences(9) if text.strip()], folder / INDEX)


def make(originals: Path, random: Random, workspace: Path) -> Case:
    """Return a case: a copy of a folder with graphs, with one or two changes."""
    name = random.choice([TRANSLATOR, TRANSLATOR, ENCODER])
    folder = workspace / name
    shutil.copytree(originals / name, folder)
    changes = [_change(folder, originals, random) for _ in range(random.choice([1, 1, 1, 2]))]
    use = _translate if name == TRANSLATOR else lambda folder: _compare(folder, originals / INDEX)
    return Case(f"{name}: {'; '.join(changes)}", lambda: use(folder), [str(folder), "regularize."])


def _change(folder: Path, originals: Path, random: Random) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o400)
    graphs = [path for path in files if path.suffix == ".onnx"]
    of_json = [path for path in files if path.suffix == ".json"]
    kind = random.choice(["json", "json", "graph", "output", "output", "bytes", "file"])
    if kind == "json" and of_json:
        path = random.choice([*of_json, *(path for path in of_json if path.name == "export.json")])
        try:
            data, what = mutations.change_value(json.loads(path.read_bytes()), random)
        except (ValueError, RecursionError):  # an earlier change
            return "nothing"
        path.write_bytes(mutations.json_text(data, random))
    elif kind == "graph" and graphs:
        path = random.choice(graphs)
        other = random.choice(sorted([*(originals / TRANSLATOR).glob("*.onnx"), *(originals / ENCODER).glob("*.onnx")]))
        shutil.copyfile(other, path)
        what = f"replaced by {other.parent.name}/{other.name}"
    elif kind == "output" and graphs:
        path = random.choice(graphs)
        what = _change_output(path, random)
    elif kind == "file" and files:
        path = random.choice(files)
        what = mutations.change_file(path, random, files, mutations.WITH_END + mutations.WITHOUT_END)
    elif files:
        path = random.choice(graphs or files)
        changed, what = mutations.change_bytes(path.read_bytes(), random)
        path.write_bytes(changed)
    else:
        return "nothing"
    return f"{path.relative_to(folder)}: {what}"


def _change_output(path: Path, random: Random) -> str:
    """Make an output of a graph a constant of another shape or type."""
    try:
        outputs = onnx.load(path).graph.output
    except Exception:  # an earlier change; its errors have no common base class
        return "nothing"
    if not outputs:
        return "nothing"
    output = random.choice(outputs)
    shape = tuple(random.choice(SIZES) for _ in range(random.choice([0, 1, 2, 3, 3, 4, 4])))
    values = np.full(shape, random.choice([0.0, 0.5, 3e38, np.nan]))
    with np.errstate(all="ignore"):
        values = values.astype(random.choice(TYPES))
    mutations.make_constant(path, output.name, values)
    return f"{output.name} is {values.dtype} of shape {shape}"


def _translate(folder: Path) -> object:
    from clearhead import TextToText

    return TextToText.from_pretrained(folder, runtime="onnx").generate([TEXT, ""], beam_size=2, max_new_tokens=3)


def _compare(folder: Path, index: Path) -> object:
    """Compare a graph with an index; what is wrong with a vector is in the result."""
    from clearhead.retrieval.against.comparison import compare

    comparison = compare(index, str(folder / "model.onnx"))
    if not any(distance is not None for distance in comparison.distances):
        raise ValueError(comparison.summary)


TARGET = Target(prepare, make)
