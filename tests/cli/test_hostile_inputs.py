"""Options and inputs that are wrong: one line that names the file, the row and the fix; never a traceback."""


import json

import numpy as np
import pytest
from support.command import refused

from clearhead import TextEncoder


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("the old bridge\nwas closed\n")
    return tmp_path / "texts.txt"


def test_a_prompt_that_leaves_no_room_for_the_text(texts, tmp_path, tiny_bert):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    # [CLS], 22 or 21 words, [SEP]: the model takes 24 tokens
    for words, limit in ((22, None), (60, None), (6, 8)):
        prompt = "hello " * words
        options = [] if limit is None else ["--max-length", limit]
        message = refused("encode", texts, "-m", tiny_bert, "--prompt", prompt, *options)
        assert f"the prompt takes {words + 2} tokens" in message
        assert str(limit or 24) in message
        with pytest.raises(ValueError, match="shorter prompt"):
            encoder.encode(["a", "b"], prompt=prompt, max_length=limit)
    one, other = encoder.encode(["old", "bridge"], prompt="hello " * 21)
    assert not np.allclose(one, other)


def test_more_columns_than_the_vectors_have(texts, tmp_path, tiny_bert):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision="float32", device="cpu")
    for dim in (33, 10**6, 10**30):
        message = refused("encode", texts, "-m", tiny_bert, "-o", tmp_path / "v.npy", "--truncate-dim", dim)
        assert f"truncate_dim is {dim}" in message
        assert "32 columns" in message
        with pytest.raises(ValueError, match="32 columns"):
            encoder.encode(["a"], truncate_dim=dim)
        with pytest.raises(ValueError, match="32 columns"):
            encoder.width(dim)
    assert encoder.encode(["a"], truncate_dim=32).shape == (1, 32)
    assert encoder.width(32) == 32
    assert not (tmp_path / "v.npy").exists()


LABELS = {
    "a.tsv": "good film\tgood\nbad film\t{}\nold film\tbad\n",
    "a.csv": "text,label\ngood film,good\nbad film,{}\nold film,bad\n",
    "a.jsonl": '{{"text": "x", "label": "good"}}\n{{"text": "y", "label": "{}"}}\n{{"text": "y", "label": "bad"}}\n',
}


@pytest.mark.parametrize(("name", "row"), [("a.tsv", 2), ("a.csv", 3), ("a.jsonl", 2)])
@pytest.mark.parametrize("empty", ["", "  "])
def test_a_row_without_a_label(tmp_path, tiny_bert, name, row, empty):
    path = tmp_path / name
    path.write_text(LABELS[name].format(empty))
    columns = {"text": "text", "label": "label"} if name == "a.csv" else None
    told = {"task": "classification", "output": "run", "data": {"train": str(path), "columns": columns}}
    told |= {"model": {"start": str(tiny_bert)}, "training": {"steps": 1}}
    recipe = tmp_path / "recipe.yaml"
    for labels in (None, ["good", "bad"]):
        recipe.write_text(json.dumps(told | ({"objective": {"labels": labels}} if labels else {})))
        message = refused("train", recipe, "-q", cwd=tmp_path)
        assert f"{name}, line {row}: the label is empty" in message
    options = ["--text-column", "text", "--label-column", "label"] if name == "a.csv" else []
    message = refused("evaluate", "classification", path, "-m", tiny_bert, *options)
    assert f"{name}, line {row}: the label is empty" in message
