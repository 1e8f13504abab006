"""Model folders of every kind: each family, head, tokenizer and format, with what the commands do with them."""

import contextlib
import functools
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

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


def use_pickled(folder: Path) -> object:
    from clearhead.checkpoints.convert import convert

    convert(folder)
    return use_pipeline(folder)


def use_shortlist(folder: Path) -> object:
    from clearhead import TextToText

    model = TextToText.from_pretrained(folder, precision="float32", device="cpu", shortlist=True)
    return model.generate([TEXT, ""], max_new_tokens=3)


class FirstStepError(BaseException):
    """The first step is done."""


def resume_training(folder: Path) -> None:
    """Continue an interrupted run until its next step, as `clearhead train --resume` does."""
    from clearhead.train.recipe.load import read_recipe
    from clearhead.train.trainer import train

    def stop(*_: object) -> None:
        raise FirstStepError

    recipe = read_recipe(folder / "recipe.yaml", overrides=[f"output={folder}"])
    with contextlib.suppress(FirstStepError):
        train(recipe, resume=True, on_step=stop)


USES: dict[str, Callable[[Path], object]] = {
    "pipeline": use_pipeline,
    "int8": functools.partial(use_pipeline, precision="int8"),
    "sparse": use_sparse,
    "multi-vector": use_multi_vector,
    "pickled": use_pickled,
    "shortlist": use_shortlist,
    "training": resume_training,
}


def prepare(folder: Path) -> None:
    """Write a tiny model of every family, with every kind of head, tokenizer and module."""
    import transformers

    from support.models import families, folders, jina_bert

    uses = {}

    def add(name: str, write: Callable[[Path], object], use: str = "pipeline") -> None:
        (folder / name).mkdir(parents=True)
        write(folder / name)
        uses[name] = use

    heads = ("ForSequenceClassification", "ForQuestionAnswering")
    small = {"distilbert": {"n_layers": 1}, "albert": {"num_hidden_layers": 1, "num_hidden_groups": 1}}
    for family in families.FAMILIES:
        size = small.get(family, {"num_hidden_layers": 1})
        add(family, functools.partial(families.make, family, **size))
    for name, head in (("jina-bert", False), ("jina-bert-classification", True)):
        add(name, lambda path, head=head: jina_bert.make(path, head=head, num_hidden_layers=1))
    for family in ("bert", "modernbert"):  # one label makes a reranker
        write = functools.partial(families.make, family, kind=heads[0], num_labels=1)
        add(f"{family}-reranker", functools.partial(write, num_hidden_layers=1))
    for family, head in itertools.product(families.FAMILIES, heads):
        if hasattr(transformers, f"{families.NAMES[family]}{head}"):
            size = small.get(family, {"num_hidden_layers": 1})
            write = functools.partial(families.make, family, kind=head, **size)
            add(f"{family}-{head}", write)
    add("marian", folders.marian)
    two = {"vocab_size": 150, "decoder_vocab_size": 150, "share_encoder_decoder_embeddings": False}
    add("marian-two", functools.partial(folders.marian, separate=True, **two))
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
    for name, use in uses.items():  # a folder that is refused without a change would test nothing
        with tempfile.TemporaryDirectory(dir=folder) as copies:
            USES[use](Path(shutil.copytree(folder / name, Path(copies) / name)))


def _add_saved(add: Callable[..., None], folder: Path) -> None:
    """Add the folders that this library and others write: with modules, in shards, pickled, in 8 bits, of a training."""
    from safetensors.torch import load_file, save_file

    from clearhead import SparseEncoder, TextEncoder
    from clearhead.kernels.native import library
    from support.data.corpora import sentences
    from support.models import families

    texts = sentences(40)

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
    add("pickled", functools.partial(_pickled, folder), "pickled")
    add("shortlist", functools.partial(_shortlist, folder), "shortlist")
    add("training", functools.partial(_training, folder), "training")
    if library.supported():
        for name in ("bert", "marian"):
            write = functools.partial(_quantize, folder / name, texts)
            add(f"{name}-int8", write, "int8")


def _quantize(source: Path, texts: list[str], path: Path) -> None:
    from clearhead.export.int8 import quantize

    path.rmdir()  # it must not exist
    quantize(source, path, texts=texts)


def _pickled(folder: Path, path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    shutil.copytree(folder / "bert", path, dirs_exist_ok=True)
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def _shortlist(folder: Path, path: Path) -> None:
    from clearhead import TextToText
    from clearhead.generation.shortlist.learn import learn_shortlist, tokenize_pairs
    from clearhead.generation.shortlist.shortlist import FILE, write_shortlist
    from support.data.corpora import sentences

    texts = sentences(40)
    shutil.copytree(folder / "marian", path, dirs_exist_ok=True)
    model = TextToText.from_pretrained(path, precision="float32", device="cpu")
    sources, targets = tokenize_pairs(zip(texts, texts, strict=True), model.tokenizer, model.max_length)
    learned = learn_shortlist(sources, targets, model.model.config)
    write_shortlist(path / FILE, learned, model.tokenizer, model.model.config)


def _training(folder: Path, path: Path) -> None:
    from support.data.training import tiny, trained_until

    (folder / "training-data").mkdir()
    trained_until(tiny(folder / "training-data", training__save_every=2), lambda step: step == 5)
    shutil.copytree(folder / "training-data" / "run", path, dirs_exist_ok=True)
