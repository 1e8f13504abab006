"""JSON files whose values are checked: hashes and types."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Seq2SeqConfig
from clearhead.io.json import dataclass_from_json, read_hashed_json, write_hashed_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_a_changed_value_is_found(tmp_path):
    path = tmp_path / "result.json"
    data = {"scores": {"loss": 1.5}, "names": ["a", "ä"], "seed": 1}
    write_hashed_json(path, data)
    assert read_hashed_json(path) == data
    whole = json.loads(path.read_text(encoding="utf-8"))
    for change in ({"seed": 2}, {"scores": None}, {"more": 1}, {"sha256": "0"}, {"sha256": None}):
        path.write_text(json.dumps(whole | change), encoding="utf-8")
        with pytest.raises(ValueError, match=r"result\.json is damaged"):
            read_hashed_json(path)
    del whole["sha256"]
    path.write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        read_hashed_json(path)


def test_a_config_survives_json():
    config = Seq2SeqConfig(vocab_size=100, eos_ids=(1, 2), head_dim=4, drop_prob=0.0)
    assert dataclass_from_json(Seq2SeqConfig, json.loads(json.dumps(asdict(config)))) == config


@given(st.sampled_from([*asdict(Seq2SeqConfig(vocab_size=9)), "other"]), VALUES)
def test_any_value_of_a_config_works_or_is_a_value_error(name, value):
    values = asdict(Seq2SeqConfig(vocab_size=9)) | {"eos_ids": [1]} | {name: value}
    try:
        made = dataclass_from_json(Seq2SeqConfig, values)
    except ValueError as error:
        message = str(error)
    else:
        message = ""
        found = getattr(made, name)
        assert found == (tuple(value) if name == "eos_ids" else type(found)(value) if found is not None else None)
    assert "\n" not in message
    assert len(message) < 500


def test_numbers_may_be_integers():
    made = dataclass_from_json(Seq2SeqConfig, {"vocab_size": 9, "drop_prob": 0, "embedding_drop_prob": 0, "max_len": 5})
    assert (type(made.drop_prob), type(made.embedding_drop_prob), type(made.max_len)) == (float, float, int)


def test_missing_keys_are_named():
    with pytest.raises(ValueError, match="vocab_size is missing"):
        dataclass_from_json(Seq2SeqConfig, {})
