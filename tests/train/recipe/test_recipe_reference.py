"""The reference of recipe keys and the table of regularizers match the code."""

import importlib.util
import re
from pathlib import Path

import pytest

from clearhead.cli.training.ablate import ablate
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.regularizers import REGULARIZERS, ablations
from clearhead.train.tasks.registry import TASKS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_recipe_reference", ROOT / "docs/make_recipe_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_recipe_page_is_up_to_date(maker):
    page = (ROOT / "docs/recipe.md").read_text(encoding="utf-8")
    assert page == maker.page(), "run python docs/make_recipe_reference.py"


def test_every_recipe_key_is_documented(maker):
    schemas = [schema for _, schema in maker.sections(Recipe, "")] + [task.objective for task in TASKS.values()]
    assert len(schemas) >= 17
    for schema in schemas:
        _, meanings = maker.docstring_parts(schema)
        assert set(meanings) == set(schema.model_fields), schema.__name__
        assert all(meanings.values())


def test_bounds_and_alternatives_are_listed(maker):
    page = maker.page()
    for row in (
        "| `layer_drop` | number ≥ 0 and < 1 | 0.0 |",
        "| `early_stopping` | a section or false | — |",
        "| `steps` | integer ≥ 1 | — |",
        "| `betas` | [number ≥ 0 and < 1, number ≥ 0 and < 1] | [0.9, 0.98] |",
        "| `task` | `text-to-text`, `masked-language-model`",
    ):
        assert row in page


def test_training_page_has_the_table_of_regularizers(maker):
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    assert page == maker.with_regularizers(page), "run python docs/make_recipe_reference.py"
    assert all(f"| `{entry.name}` |" in page for entry in REGULARIZERS)


def test_help_of_ablate_lists_every_ablation():
    mentioned = set(re.findall(r"\w+", ablate.__doc__))
    assert set(ablations()) - mentioned == set(), "add the missing names to the docstring of cli/training/ablate.py"


@pytest.mark.parametrize("entry", REGULARIZERS, ids=lambda entry: entry.name)
def test_documented_file_of_a_regularizer_exists(entry):
    assert (ROOT / "src/clearhead" / entry.code).exists()
