"""Damaged and hostile indexes of `clearhead index`, and damaged files of an interrupted `clearhead encode`."""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from clearhead.io.reading import read_file
from clearhead.retrieval.canaries import CANARIES_FILE
from clearhead.retrieval.manifest import MANIFEST, PENDING
from fuzz import mutations
from fuzz.outcomes import Case, Target
from fuzz.targets import endpoints

DTYPES = ("int8", "float32", "bfloat16")
INTERRUPTED = "interrupted"
"""Index with an append that was interrupted after some documents."""
ENCODINGS = ("v.npy", "v.jsonl", "v.parquet")
"""Outputs of interrupted encodings, each in a folder with its name."""


def prepare(folder: Path) -> None:
    """Write a model, an index of each dtype with a graph of neighbors, and interrupted encodings."""
    from support.data.corpora import sentences
    from support.models.tiny import make_bert

    from clearhead import Index, TextEncoder

    encoder = TextEncoder.from_pretrained(make_bert(folder / "bert"), precision="float32", device="cpu")
    texts = [text for text in sentences(60) if text.strip()]
    for dtype in DTYPES:
        columns = {"id": list(range(len(texts)))}
        index = Index.build(encoder, texts, folder / dtype, columns=columns, dtype=dtype)
        index.search("the old bridge", approximate=True)
    Index.build(encoder, texts[:20], folder / INTERRUPTED)
    new = folder / "new.txt"
    new.write_text("".join(f"{text}\n" for text in texts[20:]), encoding="utf-8")
    with contextlib.suppress(InterruptedError):
        _append(folder / INTERRUPTED, encoder, new, stop_after=16)
    assert (folder / INTERRUPTED / PENDING).is_file()
    for name in ENCODINGS:
        (folder / name).mkdir()
        with contextlib.suppress(InterruptedError):
            _encode(encoder, new, folder / name / name, stop_after=16)
        _encode(encoder, new, folder / f"whole-{name}")


def _append(folder: Path, encoder: object, texts: Path, *, stop_after: int | None = None) -> object:
    """Append documents, or continue to; stop after a number of them."""
    from clearhead.data.corpus import Corpus
    from clearhead.retrieval.build import BuildOptions, append_to_index

    options = BuildOptions(resume=True, window_texts=8)
    return append_to_index(encoder, Corpus([texts]), folder, options, _stop(stop_after))


def _encode(encoder: object, texts: Path, output: Path, *, stop_after: int | None = None) -> object:
    """Encode texts, or continue to; stop after a number of them."""
    from clearhead.corpus.encode import encode_corpus
    from clearhead.data.corpus import Corpus

    return encode_corpus(encoder, Corpus([texts]), output, resume=True, window_texts=8, on_step=_stop(stop_after))


def _stop(number: int | None) -> Callable[[int, int, int], None]:
    """Return a function that is called after each batch, and that stops after a number of texts."""
    done = 0

    def stop(_bytes: int, _tokens: int, num_texts: int) -> None:
        nonlocal done
        done += num_texts
        if number is not None and done > number:
            raise InterruptedError

    return stop


def make(originals: Path, random: Random, workspace: Path) -> Case:
    """Return a case: a changed copy of an index, and what is done with it."""
    name = random.choice([*DTYPES, INTERRUPTED, random.choice(ENCODINGS)])
    if name in ENCODINGS:
        return _make_encoding(originals, random, workspace, name)
    folder = workspace / "index"
    shutil.copytree(originals / name, folder)
    changes = [_change(folder, random) for _ in range(random.choice([1, 1, 1, 2]))]
    kinds = ["search", "search", "hybrid", "approximate", "append", "append by command", "against", "export"]
    kind = "resume" if name == INTERRUPTED else random.choice(kinds)
    return Case(f"{name}, {kind}: {'; '.join(changes)}", lambda: _use(folder, originals, kind), [str(folder)])


def _make_encoding(originals: Path, random: Random, workspace: Path, name: str) -> Case:
    """Return a case: an interrupted encoding with changed files, which is resumed as it was, or refused."""
    from clearhead import TextEncoder

    folder = workspace / "encoding"
    shutil.copytree(originals / name, folder)
    path = random.choice(sorted(path for path in folder.iterdir() if path.name.endswith((".part", ".resume.json"))))
    intact = path.read_bytes()
    data, what = mutations.change_bytes(intact, random)
    if path.suffix == ".json" and random.random() < 0.4:
        changed, what = mutations.change_value(json.loads(intact), random)
        data = mutations.json_text(changed, random)
    elif path.suffix == ".json" and random.random() < 0.5:
        position = random.choice([match.start(1) for match in re.finditer(rb": \d*(\d)", intact)])
        data, what = bytearray(intact), f"the digit at byte {position}"
        data[position] = ord(str((int(chr(data[position])) + random.randrange(1, 10)) % 10))
    path.write_bytes(data)

    def run() -> None:
        encoder = TextEncoder.from_pretrained(originals / "bert", precision="float32", device="cpu")
        _encode(encoder, originals / "new.txt", folder / name)
        assert (folder / name).read_bytes() == (originals / f"whole-{name}").read_bytes()

    return Case(f"{name}: {path.name}: {what}", run, [str(folder)])


def _use(folder: Path, originals: Path, kind: str) -> object:
    from clearhead import Index

    model = originals / "bert"
    if kind == "against":
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(endpoints.CONTENT)
        return endpoints.compare_with(folder, head + endpoints.CONTENT, "model")
    if kind == "append by command":
        return _append_by_command(folder, model)
    index = Index.open(folder)
    if kind == "resume":
        index.load_encoder(model)
        return _append(folder, index.encoder, originals / "new.txt")
    if kind == "export":
        return index.export(folder.parent / "out.parquet")
    if kind == "append":
        index.load_encoder(model)
        return index.append(["another bridge"], columns={"id": [7]})
    return index.search(["the old bridge", "storm"], 3, hybrid=kind == "hybrid", approximate=kind == "approximate")


def _append_by_command(folder: Path, model: Path) -> object:
    """Append a document without an index that is open."""
    from clearhead.retrieval.build import BuildOptions, ListedTexts, append_to_index
    from clearhead.retrieval.identity import load_encoder
    from clearhead.retrieval.manifest import read_manifest

    encoder = load_encoder(folder, read_manifest(folder).encoder, model, None, "cpu")
    texts = ListedTexts(["another bridge"], {"id": [7]})
    return append_to_index(encoder, texts, folder, BuildOptions(), lambda *_: None)


def _change(folder: Path, random: Random) -> str:
    path = random.choice(sorted(path for path in folder.iterdir() if path.is_file()) or [folder / "index.json"])
    if not path.is_file():
        return "nothing"
    if random.random() < 0.05:
        return f"{path.name}: {mutations.change_file(path, random, sorted(folder.glob('*.*')))}"
    if path.name in (MANIFEST, PENDING, CANARIES_FILE) or random.random() < 0.5:
        if path.name != CANARIES_FILE:
            path = random.choice([folder / MANIFEST, *folder.glob(PENDING)])
        try:
            data, what = mutations.change_value(json.loads(read_file(path)), random)
        except (OSError, ValueError, RecursionError):  # an earlier change
            return "nothing"
        if isinstance(data, dict) and "sha256" in data and random.random() < 0.8:  # an attacker computes the hash again
            data.pop("sha256", None)
            text = json.dumps(data, sort_keys=True)
            data["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        path.write_bytes(mutations.json_text(data, random))
        return f"{path.name}: {what}"
    data, what = mutations.change_bytes(path.read_bytes(), random)
    path.write_bytes(data)
    if random.random() < 0.6:  # with the size and the hash of the changed file
        _describe(folder, path)
    return f"{path.name}: {what}"


def _describe(folder: Path, path: Path) -> None:
    """Write the size and the hash of a file into the description of the index."""
    try:
        data = json.loads(read_file(folder / "index.json"))
        content = path.read_bytes()
        data["files"][path.name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        del data["sha256"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):  # an earlier change
        return
    data["sha256"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    (folder / "index.json").write_text(json.dumps(data))


TARGET = Target(prepare, make)
