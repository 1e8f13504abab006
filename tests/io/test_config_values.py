"""What was found in values of config.json and generation_config.json: messages name the file, and are short."""

import json

import pytest
from fuzz.test_findings import change, refused
from support.models import families, folders

from clearhead.pipelines.auto import load_pipeline

LONG = [[[["deep"] * 9] * 9] * 9] * 9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("family", ["bert", "camembert", "deberta-v2", "modernbert", "albert", "eurobert", "marian"])
def test_message_about_a_long_value_is_short(tmp_path, family, name):
    folders.marian(tmp_path) if family == "marian" else families.make(family, tmp_path)
    if not (tmp_path / name).exists():
        return
    before = (tmp_path / name).read_text()
    messages = {}
    for key in json.loads(before):
        change(tmp_path / name, **{key: LONG})
        try:
            load_pipeline(tmp_path)
        except ValueError as error:
            messages[key] = str(error)
        (tmp_path / name).write_text(before)
    assert messages
    for key, message in messages.items():
        assert str(tmp_path) in message, key
        assert len(message) < 2500, key


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_beams": 10**6}, "num_beams is 1000000; expected at most the"),
        ({"min_length": 10**6, "max_length": 10**6}, "outputs must have at least 999999 new tokens and at most"),
        ({"max_length": 1}, "nothing can be generated"),
    ],
)
def test_search_that_the_model_cannot_make_is_refused_with_the_file(tmp_path, values, message):
    folders.marian(tmp_path)
    change(tmp_path / "generation_config.json", **values)
    refused(lambda: load_pipeline(tmp_path), tmp_path / "generation_config.json", message)
