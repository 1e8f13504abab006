"""Open the data files of a recipe."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from clearhead.data.records import Records, matching_files
from clearhead.train.recipe.errors import named
from clearhead.train.recipe.sections import DataSection, Files


def open_records(data: DataSection, files: Files, fields: Sequence[str]) -> Records:
    """Return the rows of files.

    Args:
        data: the section of the recipe, with columns and encoding.
        files: those of `data.train` or `data.validation`.
        fields: names of the fields.

    Raises:
        RecipeError: files or columns that do not fit.
    """
    with named("data"):
        return Records(files, fields=fields, columns=data.columns, encoding=data.encoding)


def recipe_files(data: DataSection) -> Iterator[Path]:
    """Yield all files of a recipe; patterns give their matches.

    Args:
        data: the section of the recipe.

    Raises:
        RecipeError: no file matches a pattern.
    """
    for files in (data.train, data.validation or []):
        for listed in files.values() if isinstance(files, dict) else (files,):
            for path in (listed,) if isinstance(listed, str) else listed:
                with named("data"):
                    yield from matching_files(path)
