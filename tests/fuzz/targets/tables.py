"""Damaged and hostile data files: tables, lines of text, SQuAD files and folders of data sets."""

import functools
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutations
from fuzz.outcomes import Case, Target

ROWS = [
    {"text": f"the {word} bridge, \"closed\"", "label": label, "score": score, "source": word, "target": word.upper()}
    | {"context": f"{word} storm", "question": "what?", "answer": word, "answer_start": 0}
    for word, label, score in [("old", "good", 0.5), ("new", "bad", 1.0), ("été", "good", 3.25), ("日本", "bad", 4.0)] * 5
]  # fmt: skip
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "a",
            "paragraphs": [
                {
                    "context": "The old bridge was closed.",
                    "qas": [
                        {"id": "1", "question": "What?", "answers": [{"text": "bridge", "answer_start": 8}]},
                        {"id": "2", "question": "Who?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


def read_texts(path: Path, random: Random) -> object:
    """Read one column as texts, and keep others."""
    from clearhead.data.corpus import Corpus

    table = path.suffix in (".csv", ".tsv", ".jsonl", ".parquet", ".arrow") or path.is_dir()
    keep = random.choice([[], ["label"], ["score", "source"]]) if table else []
    errors = random.choice([None, "strict", "replace"])
    corpus = Corpus([path], column=random.choice([None, "text", "target"]) if table else None, errors=errors, keep=keep)
    texts = list(corpus)
    if texts:
        corpus.location(len(texts) - 1)
    return texts, corpus.take_kept(len(texts)), corpus.describe()


def read_rows(path: Path, random: Random) -> object:
    """Read rows as a training task does."""
    from clearhead.data.records import Records

    squad = ["question", "context", "answer", "answer_start"]
    fields = squad if path.suffix == ".json" else random.choice([["text", "label"], ["source", "target"], squad])
    optional = random.choice([[], ["score"]])
    encoding = random.choice(["utf-8", "utf-8", "latin-1", "cp1252"])
    records = Records(path, fields=fields, optional=optional, encoding=encoding)
    return list(records), records.describe()


def read_pairs(path: Path, random: Random) -> object:
    from clearhead.metrics.similarity import read_pairs

    return read_pairs(path)


def read_documents(path: Path, random: Random) -> object:
    from clearhead.data.documents import read_documents

    return read_documents(path)


def read_questions(path: Path, random: Random) -> object:
    from clearhead.data.squad import read_predictions, read_questions

    return random.choice([read_questions, read_predictions])(path)


TABLES = (
    "a.csv",
    "a.tsv",
    "a.jsonl",
    "a.parquet",
    "a.arrow",
    "file.arrow",
    "stream.arrow",
    "a.csv.gz",
    "a.jsonl.gz",
    "saved",
)
USES: dict[str, list[Callable[[Path, Random], object]]] = {
    **{name: [read_texts, read_rows] for name in TABLES},
    "a.txt": [read_texts],
    "pairs.csv": [read_pairs],
    "documents.jsonl": [read_documents, read_texts],
    "squad.json": [read_questions, read_rows],
    "predictions.json": [read_questions],
}


def prepare(folder: Path) -> None:
    """Write a file of each format."""
    import pyarrow
    import pyarrow.parquet

    names = list(ROWS[0])
    quoted = ["\t".join(str(row[name]).replace("\t", " ") for name in names) for row in ROWS]
    (folder / "a.tsv").write_text("\n".join(["\t".join(names), *quoted]) + "\n", encoding="utf-8")
    cells = (",".join('"' + str(row[name]).replace('"', '""') + '"' for name in names) for row in ROWS)
    (folder / "a.csv").write_text("\n".join([",".join(names), *cells]) + "\n", encoding="utf-8")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    (folder / "a.jsonl").write_text(lines, encoding="utf-8")
    (folder / "documents.jsonl").write_text(lines, encoding="utf-8")
    (folder / "a.txt").write_text("".join(f"{row['text']}\n" for row in ROWS), encoding="utf-8")
    (folder / "pairs.csv").write_text("".join(f"{row['source']},{row['target']},{row['score']}\n" for row in ROWS))
    for name in ("a.csv", "a.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    (folder / "squad.json").write_text(json.dumps(SQUAD))
    (folder / "predictions.json").write_text('{"1": "bridge", "2": ""}')
    table = pyarrow.Table.from_pylist([row | {"nested": [{"a": 1}], "pair": {"en": row["text"]}} for row in ROWS])
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=8)
    for name, writer in (("a.arrow", pyarrow.ipc.new_file), ("stream.arrow", pyarrow.ipc.new_stream)):
        with pyarrow.OSFile(str(folder / name), "wb") as file, writer(file, table.schema) as out:
            out.write_table(table, max_chunksize=8)
    shutil.copy(folder / "a.arrow", folder / "file.arrow")
    (folder / "saved").mkdir()
    shutil.copy(folder / "stream.arrow", folder / "saved" / "data-00000-of-00001.arrow")
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "a", "_format_type": None}
    (folder / "saved" / "state.json").write_text(json.dumps(state))
    label = {"names": ["good", "bad"], "_type": "ClassLabel"}
    info = {"features": {"label": label, "text": {"dtype": "string", "_type": "Value"}}}
    (folder / "saved" / "dataset_info.json").write_text(json.dumps(info))


def make(originals: Path, random: Random, workspace: Path) -> Case:
    """Return a case: a changed copy of a file, and how it is read."""
    name = random.choice(sorted(USES))
    path = workspace / name
    if (originals / name).is_dir():
        shutil.copytree(originals / name, path)
        inner = random.choice(sorted(path.iterdir()))
    else:
        inner = Path(shutil.copy(originals / name, path))
    what = _change(inner, random)
    use, draws = random.choice(USES[name]), Random(random.random())
    return Case(f"{name}, {use.__name__}: {inner.name}: {what}", lambda: use(path, draws), [str(path)])


def _change(path: Path, random: Random) -> str:
    if random.random() < 0.05:
        return mutations.change_file(path, random, sorted(path.parent.iterdir()), mutations.WITH_END)
    data = path.read_bytes()
    if path.suffix == ".gz" and random.random() < 0.5:
        changed, what = mutations.change_bytes(gzip.decompress(data), random)
        path.write_bytes(gzip.compress(changed))
        return f"in gzip: {what}"
    if path.suffix == ".json" and random.random() < 0.8:
        changed_data, what = mutations.change_value(json.loads(data), random)
        path.write_bytes(mutations.json_text(changed_data, random))
        return what
    if path.suffix == ".jsonl" and random.random() < 0.6:
        lines = data.split(b"\n")
        number = random.randrange(len(lines) - 1)
        changed_data, what = mutations.change_value(json.loads(lines[number]), random)
        lines[number] = mutations.json_text(changed_data, random)
        path.write_bytes(b"\n".join(lines))
        return f"line {number + 1}: {what}"
    if path.suffix in (".parquet", ".arrow") and random.random() < 0.5:
        return _change_table(path, random)
    if path.suffix in (".csv", ".tsv") and random.random() < 0.5:
        pieces = [
            b'"',
            b",",
            b"\t",
            b"\r",
            b"\n",
            b"\0",
            b'""',
            b",,,,,,,",
            b"\xff",
            "\u2028".encode(),
            b"\x1a",
            b"nan",
            b"'",
        ]
        for _ in range(random.choice([1, 5])):
            start = random.randrange(len(data))
            data = data[:start] + random.choice(pieces) + data[start + random.choice([0, 1]) :]
        path.write_bytes(data)
        return "separators and quotes"
    changed, what = mutations.change_bytes(data, random)
    path.write_bytes(changed)
    return what


def _change_table(path: Path, random: Random) -> str:
    """Replace a column by one of another type, or the metadata."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(ROWS)
    name = random.choice(list(ROWS[0]))
    kind = random.choice(sorted(_columns()))
    table = table.set_column(table.column_names.index(name), name, _columns()[kind])
    if random.random() < 0.2:
        table = table.replace_schema_metadata(
            {b"huggingface": random.choice([b"", b"[]", b"{", b"\xff", b'{"info": 3}'])}
        )
    if random.random() < 0.2:
        table = table.rename_columns(
            [random.choice([column, column, "text", "", "a.b", "é"]) for column in table.column_names]
        )
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
    return f"column {name} of {kind}"


@functools.cache
def _columns() -> dict[str, Any]:
    """Return columns of many types."""
    import decimal

    import pyarrow as pa

    count = len(ROWS)
    binary = pa.array([b"\xff\xfe", b"a", b"", None] * (count // 4), pa.binary())
    return {
        "nulls": pa.nulls(count),
        "null strings": pa.nulls(count, pa.string()),
        "broken UTF-8": pa.Array.from_buffers(pa.string(), count, binary.buffers()),
        "bytes": binary,
        "large strings": pa.array(["x"] * count, pa.large_string()),
        "views": pa.array(["x"] * count, pa.string_view()) if hasattr(pa, "string_view") else pa.nulls(count),
        "categories": pa.array(["a", "b"] * (count // 2)).dictionary_encode(),
        "empty texts": pa.array([""] * count),
        "integers": pa.array([2**62, -1] * (count // 2)),
        "unsigned": pa.array([2**64 - 1, 0] * (count // 2), pa.uint64()),
        "floats": pa.array([float("nan"), float("inf"), -0.0, 1e300] * (count // 4)),
        "halves": pa.array([1.5] * count, pa.float16()) if hasattr(pa, "float16") else pa.nulls(count),
        "decimals": pa.array([decimal.Decimal("1.50")] * count),
        "Booleans": pa.array([True, None] * (count // 2)),
        "times": pa.array([2**62] * count, pa.timestamp("ns")),
        "dates": pa.array([-(2**31)] * count, pa.date32()),
        "durations": pa.array([2**62] * count, pa.duration("s")),
        "lists": pa.array([["a"], None] * (count // 2)),
        "structs": pa.array([{"text": "a"}, None] * (count // 2)),
        "maps": pa.array([[("a", 1)], []] * (count // 2), pa.map_(pa.string(), pa.int64())),
        "deep lists": pa.array([[[[[[]]]]]] * count),
        "answers": pa.array([{"text": ["a"], "answer_start": [0]}, {"text": [], "answer_start": []}] * (count // 2)),
    }


TARGET = Target(prepare, make)
