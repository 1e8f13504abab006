"""Every command that writes, with arguments that take a second, and the files that they read."""

import json

import torch
import yaml
from support.data.training import spec as training_recipe
from support.models import families, folders
from support.models.tiny import make_bert

from clearhead import Index, TextEncoder

READERS = {
    *("answer", "explore", "lint", "serve", "trace"),
    "evaluate similarity",
}
"""Commands that write to standard output alone."""

# command: (its arguments, the output that is locked); {0} is the test's folder, {1} the output
FILES = {
    "encode": ("{0}/texts.txt -m {0}/bert -o {1}.npy", "out.npy"),
    "encode --resume": ("{0}/texts.txt -m {0}/bert --resume -o {1}.jsonl", "out.jsonl"),
    "encode -o .parquet": ("{0}/texts.txt -m {0}/bert -o {1}.parquet", "out.parquet"),
    "classify": ("{0}/texts.txt -m {0}/classifier -o {1}.txt", "out.txt"),
    "rerank": ("{0}/texts.txt {0}/texts.txt -m {0}/reranker -o {1}.jsonl", "out.jsonl"),
    "index": ("{0}/texts.txt -m {0}/bert -o {1}", "out"),
    "index --overwrite": ("{0}/texts.txt -m {0}/bert --overwrite -o {1}", "out"),
    "index --resume": ("{0}/texts.txt -m {0}/bert --resume -o {1}", "out"),
    "index --append": ("{0}/texts.txt --append -o {0}/index", "index"),
    "index --append --resume": ("{0}/texts.txt --append --resume -o {0}/index", "index"),
    "search --approximate": ("{0}/index hello --approximate", "index"),
    "translate": ("{0}/texts.txt -m {0}/translator -o {1}.txt", "out.txt"),
    "summarize": ("{0}/texts.txt -m {0}/translator -o {1}.txt", "out.txt"),
    "view": ("hello -m {0}/bert -o {1}.html", "out.html"),
    "verify": ("{0}/bert -o {1}.json", "out.json"),
    "verify --write": ("{0}/bert --write", "bert/certificate.json"),
    "verify --against": ("--against {0}/other --index {0}/index", "index/comparisons.jsonl"),
    "convert": ("{0}/pickled", "pickled/model.safetensors"),
    "export": ("{0}/bert {1} --to transformers", "out"),
    "export --to onnx": ("{0}/bert {1} --to onnx --int8", "out"),
    "export --to sentence-transformers": ("{0}/bert {1} --to sentence-transformers", "out"),
    "export --to web": ("{0}/translator {1} --to web", "out"),
    "export --to ctranslate2": ("{0}/bert {1} --to ctranslate2", "out"),
    "quantize": ("{0}/bert {1}", "out"),
    "tokenizer train": ("{0}/texts.txt --vocab-size 300 -o {1}", "out"),
    "shortlist": ("{0}/translator {0}/texts.txt {0}/texts.txt", "translator"),
    "benchmark encode": ("-m {0}/bert --rounds 1 --number 8 --json {1}.json", "out.json"),
    "benchmark encode --plot": ("-m {0}/bert --rounds 1 --number 8 --plot {1}.png", "out.png"),
    "benchmark generate": ("-m {0}/translator --rounds 1 --json {1}.json", "out.json"),
    "benchmark train": ("{0}/texts.txt {0}/texts.txt --rounds 1 --json {1}.json", "out.json"),
    "evaluate translation": ("{0}/texts.txt -r {0}/texts.txt -m {0}/translator -o {1}.txt", "out.txt"),
    "evaluate summarization": ("{0}/texts.txt -r {0}/texts.txt -m {0}/translator -o {1}.txt", "out.txt"),
    "evaluate classification": ("{0}/labels.tsv -m {0}/classifier -o {1}.jsonl", "out.jsonl"),
    "evaluate answers": ("{0}/squad.json -m {0}/reader -o {1}.json", "out.json"),
}
FOLDERS = {
    "encode --engine ray": ("{0}/texts.txt -m {0}/bert --engine ray -o {1}", "out"),
    "train": ("{0}/recipe.yaml output={1}", "out"),
    "train --resume": ("{0}/recipe.yaml output={1} --resume", "out"),
    "distill": ("{0}/distillation.yaml output={1}", "out"),
    "distill --resume": ("{0}/distillation.yaml output={1} --resume", "out"),
    "ablate": ("{0}/recipe.yaml output={1} --without dropout", "out"),
    "ablate --resume": ("{0}/recipe.yaml output={1} --without dropout --resume", "out"),
}
_EXPORT = "export {0}/reader {1} --to transformers"
PREVIOUS = {
    **dict.fromkeys([name for name in FILES if name.startswith("export")], _EXPORT),
    "quantize": "quantize {0}/reader {1}",
    "tokenizer train": "tokenizer train {0}/other.txt --vocab-size 270 -o {1}",
    "index --overwrite": "index {0}/other.txt -m {0}/bert -o {1}",
    "shortlist": "shortlist {0}/translator {0}/other.txt {0}/other.txt",
}
"""Commands that write a folder which the other command then replaces. Each file replaces one with a line `old`."""


HEADS = [
    ("classifier", "SequenceClassification", 2),
    ("reranker", "SequenceClassification", 1),
    ("reader", "QuestionAnswering", 2),
]
"""Encoders with a head: name, kind of head and number of labels."""


def prepare(folder):
    """Write the models, texts, recipes and the index that the commands read."""
    make_bert(folder / "bert")
    for name, head, labels in HEADS:
        (folder / name).mkdir()
        families.make("bert", folder / name, f"For{head}", num_labels=labels)
    (folder / "translator").mkdir()
    folders.marian(folder / "translator", lively=True)
    for output in {output for _, output in FILES.values() if output.startswith("out.")}:
        (folder / output).write_text("old\n")
    (folder / "texts.txt").write_text("hello world\nthe old bridge\n", encoding="utf-8")
    (folder / "other.txt").write_text("you and me\n", encoding="utf-8")
    Index.build(TextEncoder.from_pretrained(folder / "bert"), ["hello"], folder / "index")
    TextEncoder.from_pretrained(folder / "bert").save_pretrained(folder / "other")  # for sentence-transformers
    (folder / "pickled").mkdir()
    torch.save({"weight": torch.ones(2)}, folder / "pickled" / "pytorch_model.bin")
    squad = {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "a", "answers": []}]}]}]}
    (folder / "squad.json").write_text(json.dumps({"version": "v2.0", **squad}))
    (folder / "labels.tsv").write_text("hello\tLABEL_0\nyou\tLABEL_1\n")
    recipe = training_recipe(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    recipe["regularize"]["distillation"] = {"teacher": str(folder / "translator"), "sequence_level": True}
    (folder / "distillation.yaml").write_text(yaml.safe_dump(recipe))


def words(name, folder, output):
    """Return the words of a command.

    Args:
        name: its name in `FILES` or `FOLDERS`.
        folder: the folder of the files that it reads.
        output: its output, without an extension.
    """
    arguments, _ = {**FILES, **FOLDERS}[name]
    return _fill(f"{name.partition(' -')[0]} {arguments}", folder, output)


def previous_words(name, folder, output):
    """Return the words of the command that writes the folder which the command `name` replaces, or none.

    Args:
        name, folder, output: as in `words`.
    """
    return _fill(PREVIOUS.get(name, ""), folder, output)


def _fill(line, folder, output):
    return [part.format(folder, output) for part in line.split()]
