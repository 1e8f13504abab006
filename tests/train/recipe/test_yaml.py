"""Recipes that are not YAML, or YAML that stands for too much."""

import pytest
import yaml
from support.command import refused
from support.data.training import write_tiny

from clearhead.train.recipe.load import read_recipe

RECIPE = yaml.safe_dump({"task": "text-to-text", "output": "run", "data": {"train": "a.tsv"}, "training": {"steps": 3}})


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["a: " + "[" * 5000 + "]" * 5000, "".join(f"{'  ' * level}a:\n" for level in range(2000))], ids=["[", "a:"]
)
def test_too_deeply_nested_yaml_is_a_one_line_error(tmp_path, text):
    path = tmp_path / "deep.yaml"
    path.write_text(text, encoding="utf-8")
    assert f"{path} is nested too deeply" in refused("train", path)
    path.write_text(RECIPE, encoding="utf-8")
    message = refused("train", path, "data.columns=" + "[" * 5000)
    assert "'data.columns=[[[" in message
    assert "nested too deeply" in message
    assert len(message) < 300


def test_values_that_yaml_cannot_build_are_a_one_line_error(tmp_path):
    path = tmp_path / "date.yaml"
    path.write_text("seed: 2020-13-45", encoding="utf-8")
    assert f"{path} is not YAML: month must be in 1..12" in refused("train", path)


@pytest.mark.parametrize("value", ["!!timestamp x", "!!bool x", '!!int ""', '!!int "+"', '!!float ""'])
def test_values_of_another_type_than_their_tag_are_a_one_line_error(tmp_path, value):
    path = tmp_path / "tag.yaml"
    path.write_text(f"seed: {value}", encoding="utf-8")
    with pytest.raises(ValueError, match=f"{path} is not YAML: the value after a tag"):
        read_recipe(path)
    path.write_text(RECIPE, encoding="utf-8")
    with pytest.raises(ValueError, match="'seed=.*': the value is not YAML"):
        read_recipe(path, [f"seed={value}"])


def nested_aliases(link):
    """Return mappings in which each has ten aliases of the one before: 10^9 values in all."""
    lines = [
        f"a{n}: &a{n} {{{', '.join(link.format(key=key, last=n - 1) for key in range(10))}}}" for n in range(1, 10)
    ]
    return "\n".join(["a0: &a0 {x: 1}", *lines])


@pytest.mark.parametrize(
    "text",
    [
        "task: &a {x: *a}",
        "&a\ndata: *a",
        "task: &a [*a]",
        nested_aliases("k{key}: *a{last}"),
        nested_aliases("k{key}: {{<<: *a{last}}}"),
    ],
    ids=["mapping", "document", "sequence", "nested", "merged"],
)
def test_aliases_of_too_many_values_are_a_one_line_error(tmp_path, text):
    path = tmp_path / "alias.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"{path} is not YAML: its aliases expand to more than 100,000 values"):
        read_recipe(path)


def test_an_alias_is_the_value_that_it_names(tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE.replace("steps: ", "steps: &n ") + "\nseed: *n", "utf-8")
    recipe = read_recipe(tmp_path / "r.yaml")
    assert recipe.seed == recipe.training.steps


@pytest.mark.parametrize("number", ["012", "0x10", "0b11", "1:30", "-0_7", "1:30.5"])
def test_numbers_that_yaml_reads_in_another_notation_are_refused(tmp_path, number):
    path = tmp_path / "octal.yaml"
    path.write_text(f"task: classification\ntraining: {{steps: {number}}}", encoding="utf-8")
    with pytest.raises(ValueError, match=f"{path} is not YAML: line 2 has the number {number}; write it in decimal"):
        read_recipe(path)
    with pytest.raises(ValueError, match="write it in decimal notation"):
        read_recipe(path, [f"training.steps={number}"])


@pytest.mark.parametrize(
    "text", ["seed: 1\nseed: 2", "training: {steps: 2}\ntraining: {steps: 3}", "data: {a: 1, a: 2}"]
)
def test_repeated_keys_are_a_one_line_error(tmp_path, text):
    path = tmp_path / "twice.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="which is repeated"):
        read_recipe(path)


@pytest.mark.parametrize(
    "content", ["a: " + "9" * 5000, "a: 2020-13-45", "{" * 3000, "a: !!python/object/new:os.system [ls]"]
)
def test_recipes_that_are_not_yaml(tmp_path, content):
    (tmp_path / "recipe.yaml").write_text(content)
    expected = "nested too deeply" if content.startswith("{") else "not YAML"
    message = refused("train", tmp_path / "recipe.yaml")
    assert f"recipe.yaml is {expected}" in message
    assert "sys." not in message
    if content.startswith("a: "):
        recipe = write_tiny(tmp_path)
        assert "the value is not YAML" in refused("train", recipe, "seed=" + content.removeprefix("a: "))
