"""Folders in the layouts of the library `datasets`, made by hand."""

import json

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"names": ["bad", "good"], "_type": "ClassLabel"},
}
ROWS = [("a fine film", 1), ("a dull film", 0), ("a film", 1)]


def table(rows, *, described=True):
    metadata = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()} if described else None
    schema = pyarrow.schema([("text", pyarrow.string()), ("label", pyarrow.int64())], metadata)
    return pyarrow.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]}, schema)


def write_stream(path, content):
    with pyarrow.ipc.new_stream(str(path), content.schema) as writer:
        writer.write_table(content, max_chunksize=1)


def save_to_disk(folder, rows=ROWS, *, shards=1, described=True):
    """Write a folder as `Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{shards:05d}.arrow" for number in range(shards)]
    step = -(-len(rows) // shards)
    for number, name in enumerate(names):
        write_stream(folder / name, table(rows[number * step : (number + 1) * step], described=described))
    (folder / "dataset_info.json").write_text(json.dumps({"citation": "", "features": FEATURES}))
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0a1b",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def save_dict(folder, *splits, rows=ROWS):
    """Write a folder as `DatasetDict.save_to_disk` does."""
    for split in splits:
        save_to_disk(folder / split, rows)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def shards(folder, split, count, rows=ROWS):
    """Write .parquet files as a repository on the Hub contains them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        name = f"{split}-{number:05d}-of-{count:05d}.parquet"
        pyarrow.parquet.write_table(table(rows[number::count]), folder / name)
