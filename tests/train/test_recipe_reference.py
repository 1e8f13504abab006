"""The page with every key of a recipe says what the code says."""

import importlib.util
from pathlib import Path

import pytest

from clearhead.train.recipe.recipe import OBJECTIVES, Recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_recipe_reference", ROOT / "docs/make_recipe_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes(maker):
    there = (ROOT / "docs/recipe.md").read_text(encoding="utf-8")
    assert there == maker.page(), "run python docs/make_recipe_reference.py"


def test_every_key_has_a_meaning_and_every_meaning_a_key(maker):
    kinds = [kind for _, kind in maker.sections(Recipe, "")] + list(OBJECTIVES.values())
    assert len(kinds) == 17
    for kind in kinds:
        _, meanings = maker.explained(kind)
        assert set(meanings) == set(kind.model_fields), kind.__name__
        assert all(meanings.values())


def test_bounds_and_alternatives_are_told(maker):
    page = maker.page()
    for row in (
        "| `layer_drop` | number ≥ 0 and < 1 | 0.0 |",
        "| `early_stopping` | a section or false | — |",
        "| `steps` | whole number ≥ 1 | — |",
        "| `betas` | [number ≥ 0 and < 1, number ≥ 0 and < 1] | [0.9, 0.98] |",
        "| `task` | `text-to-text`, `masked-language-model`",
    ):
        assert row in page
