"""transformers generates with the defaults in a trained folder."""

import json

import pytest
import torch
import transformers
from support.data.training_data import recipe, write_data

from clearhead import TextToText
from clearhead.train.trainer import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def _generation_config(folder):
    return json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))


def test_transformers_truncates_sources_and_targets_as_we_do(data, tmp_path):
    spec = recipe(data, "text-to-text", tmp_path / "run", model={"max_len": 40}, training={"steps": 1})
    folder = train(spec).folder
    text = "red dog old tree " * 20  # more tokens than the model has positions; an untrained model does not stop
    ours = TextToText.from_pretrained(folder, precision="float32", device="cpu").generate([text])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    with torch.no_grad():
        ids = theirs.generate(**tokenizer([text], return_tensors="pt", truncation=True))
    assert ids.shape[1] == 40
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == ours


@pytest.mark.slow
def test_defaults_of_a_checkpoint_stay_unless_the_recipe_changes_them(data, tmp_path):
    objective = {"beam_size": 3, "length_penalty": 0.5}
    first = train(recipe(data, "text-to-text", tmp_path / "first", objective=objective, training={"steps": 1})).folder
    start = {"model": {"init_from": str(first)}, "training": {"steps": 1}}
    kept = _generation_config(train(recipe(data, "text-to-text", tmp_path / "kept", **start)).folder)
    assert (kept["num_beams"], kept["length_penalty"]) == (3, 0.5)
    start = start | {"training": {"steps": 1}, "objective": {"beam_size": 1}}
    changed = _generation_config(train(recipe(data, "text-to-text", tmp_path / "changed", **start)).folder)
    assert (changed["num_beams"], changed["length_penalty"]) == (1, 0.5)
