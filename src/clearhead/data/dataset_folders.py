"""Find the files in the folders that Hugging Face `datasets` writes."""

import re
from collections.abc import Sequence
from pathlib import Path

from clearhead.io.json import read_json

_NUMBERED = re.compile(r"\d+|part[-_.]?\d+([-_.].*)?")
"""Names of files that only have a number, as other programs write them (part-00000): they are those of one split."""
_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]+)?")
"""Name of a file with a part of a split, without its suffix."""


def data_files(path: Path) -> list[Path]:
    """Return the files of a folder that Hugging Face `datasets` wrote, or the path itself if it is a file.

    - `Dataset.save_to_disk`: the .arrow files that state.json lists.
    - `DatasetDict.save_to_disk`: a folder for each split. One of several splits is chosen by its path.
    - .parquet files, in the folder or in its subfolder `data`, as on the Hugging Face Hub. FOLDER/SPLIT chooses the
      files of a split, such as ``data/train-00000-of-00002.parquet``.

    Args:
        path: a folder, a folder and the name of a split, or a file.

    Raises:
        ValueError: the folder contains several splits or no data, or a file is missing.

    >>> data_files(Path("train.tsv"))
    [PosixPath('train.tsv')]
    """
    if not path.is_dir():
        splits = {} if path.exists() else _parquet_splits(path.parent)
        return _complete(splits[path.name]) if path.name in splits else [path]
    if (path / "state.json").is_file():
        return _saved_files(path)
    if (path / "dataset_dict.json").is_file():
        names = read_json(path / "dataset_dict.json").get("splits")
        return data_files(path / _only_split(path, _checked_names(names, path / "dataset_dict.json")))
    splits = _parquet_splits(path)
    if not splits:
        raise ValueError(
            f"{path} is a folder; expected a text file, or a folder with .parquet files or from `save_to_disk` of the "
            "library datasets"
        )
    return _complete(splits[_only_split(path, list(splits))])


def _only_split(folder: Path, splits: Sequence[str]) -> str:
    if len(splits) != 1:
        raise ValueError(f"{folder} has the splits {', '.join(splits)}; choose one, such as {folder / splits[0]}")
    return splits[0]


def _saved_files(folder: Path) -> list[Path]:
    """Return the files of a folder that `Dataset.save_to_disk` wrote."""
    described = folder / "state.json"
    state = read_json(described)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ValueError(f"{folder} selects rows with an index file. Load and save it again with a newer datasets")
    listed = state.get("_data_files")
    files = listed if isinstance(listed, list) else []
    names = [file.get("filename") if isinstance(file, dict) else None for file in files]
    paths = [folder / name for name in _checked_names(names, described)]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise ValueError(f"{described} lists {path.name:.80}, which is not in the folder")
    return paths


def _checked_names(names: object, path: Path) -> list[str]:
    """Return a list of names from a JSON file of `datasets`."""
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} lists no files or splits; save the dataset again")
    for name in names:
        if not name.isprintable():
            raise ValueError(f"{path} lists the name {name!r:.80}; expected printable characters")
    return names


def _parquet_splits(folder: Path) -> dict[str, list[Path]]:
    """Return the .parquet files of each split in a folder or in its subfolder `data`."""
    for place in (folder, folder / "data"):
        splits: dict[str, list[Path]] = {}
        for path in sorted(place.glob("*.parquet")):
            name = _SHARD.fullmatch(path.stem)
            split = name["split"] if name else place.name if _NUMBERED.fullmatch(path.stem) else path.stem
            splits.setdefault(split, []).append(path)
        if splits:
            return splits
    return {}


def _complete(paths: list[Path]) -> list[Path]:
    """Return the files of a split.

    Raises:
        ValueError: one of the files that their names count is missing.
    """
    shards = [shard for path in paths if (shard := _SHARD.fullmatch(path.stem))]
    count = max((int(shard["count"]) for shard in shards), default=0)
    missing = sorted(set(range(count)) - {int(shard["number"]) for shard in shards})
    if missing:
        raise ValueError(
            f"{paths[0].parent} has {len(shards)} of the {count} .parquet files of {shards[0]['split']}; the first "
            f"missing one has the number {missing[0]:05d}"
        )
    return paths
