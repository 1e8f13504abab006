"""Damaged and hostile model folders of all families."""

import functools
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutations
from fuzz.outcomes import Case, Target

TEXT = "the old bridge was closed"
LANGUAGES = {"m2m": ("en", "de"), "nllb": ("eng_Latn", "deu_Latn")}
LANGUAGES |= dict.fromkeys(("mbart", "mbart50"), ("en_XX", "de_DE"))
"""Source and target language of the folders that require them."""
LISTED = "folders.json"
"""File that lists the folders and how each is used."""


def use_pipeline(folder: Path, precision: str = "float32") -> object:
    """Load a folder as `clearhead view` and the commands do, and compute one result."""
    from clearhead import QuestionAnswerer, Reranker, TextClassifier, TextToText
    from clearhead.pipelines.auto import load_pipeline

    model = load_pipeline(folder, precision=precision)
    if isinstance(model, TextToText):
        source, target = LANGUAGES.get(folder.name, (None, None))
        return model.generate([TEXT, ""], max_new_tokens=3, source_lang=source, target_lang=target)
    if isinstance(model, TextClassifier):
        return model.classify([TEXT])
    if isinstance(model, Reranker):
        return model.rank("bridge", [TEXT, "storm"])
    if isinstance(model, QuestionAnswerer):
        return model.answers([("closed", TEXT)])
    return model.encode([TEXT, ""])


def use_sparse(folder: Path) -> object:
    from clearhead import SparseEncoder

    encoder = SparseEncoder.from_pretrained(folder, precision="float32", device="cpu")
    return encoder.decode(encoder.encode(TEXT))


def use_multi_vector(folder: Path) -> object:
    from clearhead import MultiVectorEncoder

    encoder = MultiVectorEncoder.from_pretrained(folder, precision="float32", device="cpu")
    return encoder.rank(TEXT, ["storm", TEXT])


USES: dict[str, Callable[[Path], object]] = {
    "pipeline": use_pipeline,
    "int8": functools.partial(use_pipeline, precision="int8"),
    "sparse": use_sparse,
    "multi-vector": use_multi_vector,
}


def prepare(folder: Path) -> None:
    """Write a tiny model of every family, with every kind of head, tokenizer and module."""
    from support.models import families, folders, jina_bert

    uses = {}

    def add(name: str, write: Callable[[Path], object], use: str = "pipeline") -> None:
        (folder / name).mkdir(parents=True)
        write(folder / name)
        uses[name] = use

    small = {"distilbert": {"n_layers": 1}}
    for family in families.FAMILIES:
        size = small.get(family, {"num_hidden_layers": 1})
        add(family, lambda path, family=family, size=size: families.make(family, path, **size))
    add("jina-bert", lambda path: jina_bert.make(path, num_hidden_layers=1))
    for head, name in (("ForSequenceClassification", "classifier"), ("ForQuestionAnswering", "reader")):
        add(name, lambda path, head=head: families.make("bert", path, head, num_hidden_layers=1))
    add("reranker", lambda path: families.make("roberta", path, "ForSequenceClassification", num_labels=1))
    add("marian", folders.marian)
    add("marian-two", lambda path: folders.marian(path, separate=True, share_encoder_decoder_embeddings=False))
    add("m2m", folders.m2m100)
    add("bart", folders.bart)
    for family in ("t5", "pegasus", "mbart", "mbart50", "nllb"):
        add(family, lambda path, family=family: folders.plain(family, path))
    for kind in ("t5 v1.1", "mt5"):
        add(kind, lambda path, kind=kind: folders.plain("t5", path, kind))
    _add_saved(add, folder)
    for path in (path for name in uses for path in (folder / name).rglob("generation_config.json")):
        data = json.loads(path.read_text())
        path.write_text(
            json.dumps(data | {"max_length": 20, "num_beams": 2, "length_penalty": 1.0, "do_sample": False})
        )
    (folder / LISTED).write_text(json.dumps(uses))


def _add_saved(add: Callable[..., None], folder: Path) -> None:
    """Add the folders that this library writes: with modules, in shards, in 8 bits."""
    from safetensors.torch import load_file, save_file
    from support.models import families

    from clearhead import SparseEncoder, TextEncoder
    from clearhead.kernels.native import library

    def sparse(path: Path) -> None:
        families.make("bert", path, "ForMaskedLM", num_hidden_layers=1)
        SparseEncoder.from_pretrained(path, precision="float32", device="cpu").save_pretrained(path)

    def multi_vector(path: Path) -> None:
        import sentence_transformers

        families.make("bert", path, num_hidden_layers=1)
        encoder = sentence_transformers.MultiVectorEncoder(str(path), device="cpu", prompts={"query": "query "})
        encoder.save_pretrained(str(path))

    def sharded(path: Path) -> None:
        shutil.copytree(folder / "bert", path, dirs_exist_ok=True)
        tensors = load_file(path / "model.safetensors")
        (path / "model.safetensors").unlink()
        half = sorted(tensors)[: len(tensors) // 2]
        index = {name: f"part-{1 + (name in half)}.safetensors" for name in tensors}
        for file in set(index.values()):
            save_file({name: tensors[name] for name in tensors if index[name] == file}, path / file)
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))

    def saved(path: Path) -> None:
        TextEncoder.from_pretrained(folder / "bert", precision="float32", device="cpu").save_pretrained(path)

    add("sentence-transformers", saved)
    add("sparse", sparse, "sparse")
    add("multi-vector", multi_vector, "multi-vector")
    add("sharded", sharded)
    if library.supported():
        from support.data.corpora import sentences

        from clearhead.export.int8 import quantize

        add("int8", lambda path: (path.rmdir(), quantize(folder / "bert", path, texts=sentences(40))), "int8")


def make(originals: Path, random: Random, workspace: Path) -> Case:
    """Return a case: a copy of a model folder with one to three changes."""
    uses = _uses(originals)
    name = random.choice(sorted(uses))
    folder = workspace / name.replace(" ", "-")
    shutil.copytree(originals / name, folder)
    changes = [_change(folder, random) for _ in range(random.choice([1, 1, 1, 1, 2, 3]))]
    names = [str(folder), "generation_config.json"]  # the size of a search is checked when its text is known
    return Case(f"{name}: {'; '.join(changes)}", lambda: USES[uses[name]](folder), names)


@functools.cache
def _uses(originals: Path) -> dict[str, str]:
    return json.loads((originals / LISTED).read_text())


def _change(folder: Path, random: Random) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o400)
    if not files:
        return "nothing"
    of_json = [path for path in files if path.suffix == ".json"]
    weights = [path for path in files if path.suffix == ".safetensors"]
    kind = random.choice(["json"] * 6 + ["tensors"] * 3 + ["header", "bytes", "bytes", "file"])
    if kind == "json" and of_json:
        path = _choose_json(of_json, random)
        try:
            data, what = mutations.change_value(json.loads(path.read_bytes()), random)
        except (ValueError, RecursionError):  # an earlier change
            return "nothing"
        path.write_bytes(mutations.json_text(data, random))
    elif kind == "tensors" and weights:
        path = random.choice(weights)
        what = _change_tensors(path, random)
    elif kind == "header" and weights:
        path = random.choice(weights)
        what = _change_header(path, random)
    elif kind == "file":
        path = random.choice(files)
        what = mutations.change_file(path, random, files)
    else:
        path = random.choice(files)
        changed, what = mutations.change_bytes(path.read_bytes(), random)
        path.write_bytes(changed)
    return f"{path.relative_to(folder)}: {what}"


def _choose_json(files: list[Path], random: Random) -> Path:
    config = [path for path in files if path.name == "config.json"]
    return random.choice(config) if config and random.random() < 0.4 else random.choice(files)


def _change_tensors(path: Path, random: Random) -> str:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    try:
        tensors: dict[str, Any] = load_file(path)
    except (SafetensorError, OSError, KeyError, ValueError):  # an earlier change
        return "nothing"
    if not tensors:
        return "nothing"
    name, other = random.choice(sorted(tensors)), random.choice(sorted(tensors))
    tensor = tensors[name]
    kind = random.choice(["swap", "value", "value", "dtype", "shape", "shape", "delete", "add", "rename"])
    what = f"{kind} {name}"
    if kind == "swap":
        tensors[name], tensors[other] = tensors[other], tensor
        what += f" and {other}"
    elif kind == "value":
        value = random.choice([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45, 0.0, 1e4])
        flat = tensor.clone().reshape(-1)
        if flat.numel() and flat.is_floating_point():
            places = slice(None) if random.random() < 0.3 else random.randrange(flat.numel())
            flat[places] = value
        tensors[name] = flat.reshape(tensor.shape)
        what += f" {value}"
    elif kind == "dtype":
        dtype = random.choice(
            [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.complex64, torch.uint16]
        )  # fmt: skip
        tensors[name] = tensor.to(dtype)
        what += f" {dtype}"
    elif kind == "shape":
        shape = random.choice(["transposed", "flat", "extra", "empty", "scalar", "nested", "longer"])
        tensors[name] = {
            "transposed": lambda: tensor.movedim(0, -1).contiguous() if tensor.ndim else tensor,
            "flat": lambda: tensor.reshape(-1),
            "extra": lambda: torch.cat([tensor, tensor]) if tensor.ndim else tensor,
            "empty": lambda: tensor.new_zeros(0),
            "scalar": lambda: tensor.new_zeros(()),
            "nested": lambda: tensor[None],
            "longer": lambda: tensor.reshape(-1)[:-1].clone() if tensor.ndim else tensor,
        }[shape]()
        what += f" {shape}"
    elif kind == "delete":
        del tensors[name]
    elif kind == "add":
        tensors[random.choice([f"{name}.x", "x", f"model.{name}", f"bert.{name}", ""])] = tensor.clone()
    else:
        tensors[random.choice([name.upper(), f"x{name}", name.replace("0", "1"), "a\nb", name[:-1]])] = tensors.pop(
            name
        )
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, path)
    return what


def _change_header(path: Path, random: Random) -> str:
    """Change the JSON header of a safetensors file: dtypes, shapes and positions of tensors."""
    data = path.read_bytes()
    if len(data) < 8:
        return "nothing"
    (size,) = struct.unpack("<Q", data[:8])
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError):  # an earlier change
        return "nothing"
    header, what = mutations.change_value(header, random)
    text = mutations.json_text(header, random)
    if random.random() < 0.1:
        size = random.choice([0, 2**40, 2**63, 2**64 - 1, len(text) + 1])
        path.write_bytes(struct.pack("<Q", size) + text + data[8 + size :])
        return f"header of {size} bytes"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + struct.unpack("<Q", data[:8])[0] :])
    return f"header: {what}"


TARGET = Target(prepare, make)
