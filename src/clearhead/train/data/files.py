"""Open the data files of a recipe."""

from collections.abc import Sequence

from clearhead.data.records import Records
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
