"""What the fuzzers found in values of config.json: a message does not repeat a long value."""

import json

import pytest
from support.models import families

from clearhead.pipelines.auto import load_pipeline
from fuzz.test_findings import change

LONG = [[[["deep"] * 9] * 9] * 9] * 9


@pytest.mark.parametrize("family", ["bert", "camembert", "deberta-v2", "modernbert", "albert", "eurobert"])
def test_message_about_a_long_value_is_short(tmp_path, family):
    families.make(family, tmp_path)
    before = (tmp_path / "config.json").read_text()
    messages = {}
    for key in json.loads(before):
        change(tmp_path / "config.json", **{key: LONG})
        try:
            load_pipeline(tmp_path)
        except ValueError as error:
            messages[key] = str(error)
        (tmp_path / "config.json").write_text(before)
    assert len(messages) > 5
    for key, message in messages.items():
        assert str(tmp_path) in message, key
        assert len(message) < 2500, key
