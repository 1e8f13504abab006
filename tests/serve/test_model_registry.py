"""Names and tasks of the models that the server loads."""

import json
import shutil

import pytest

from clearhead.serve.model_registry import load_model, model_specs
from clearhead.serve.settings import Settings


def names(*models, **settings):
    return [(spec.name, spec.source, spec.tasks) for spec in model_specs(Settings(models=models, **settings))]


def test_model_name_is_the_folder_name_or_hub_id(tmp_path, monkeypatch):
    folder = tmp_path / "with=sign" / "mine"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert names(str(folder)) == [("mine", str(folder), None)]
    assert names(".") == [("mine", ".", None)]
    assert names(f"other={folder}", "org/name") == [("other", str(folder), None), ("org/name", "org/name", None)]
    assert names(str(folder), tasks=["mine=answer,translate"])[0][2] == ("translate", "answer")


@pytest.mark.parametrize(
    ("models", "tasks", "message"),
    [
        (["=x"], [], "--model expects MODEL or NAME=MODEL; got '=x'"),
        (["a="], [], "--model expects MODEL or NAME=MODEL; got 'a='"),
        (["a=x", "a=y"], [], "two models are named 'a'; write --model NAME=MODEL"),
        (["a=x"], ["b=answer"], "--task names the model 'b', which is not loaded; loaded: a"),
        (
            ["a=x"],
            ["a=dance"],
            "--task expects NAME=TASK,TASK with tasks from translate, summarize, answer; got 'a=dance'",
        ),
        (["a=x"], ["a"], "--task expects NAME=TASK,TASK"),
    ],
)
def test_contradictory_settings_are_rejected(models, tasks, message):
    with pytest.raises(ValueError, match=message):
        names(*models, tasks=tasks)


@pytest.mark.parametrize(
    ("described", "chosen", "tasks"),
    [
        ({}, [], ["translate"]),
        ({"summarization": {"max_length": 20}}, [], ["summarize"]),
        ({"summarization": {}, "translation_en_to_de": {}}, [], ["translate", "summarize"]),
        ({"summarization": {}}, ["m=answer"], ["answer"]),
    ],
)
def test_tasks_of_an_encoder_decoder(folders, tmp_path, described, chosen, tasks):
    folder = tmp_path / "m"
    shutil.copytree(folders / "marian", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "task_specific_params": described}), encoding="utf-8")
    settings = Settings(models=[str(folder)], tasks=chosen, precision="float32", device="cpu")
    model = load_model(model_specs(settings)[0], settings, lambda part, tokens: None)
    assert list(model.handlers) == [*tasks, "view"]
    # all handlers share the weights
    assert len({id(handler.pipeline.model) for handler in model.handlers.values()}) == 1


def test_tasks_of_an_encoder_cannot_be_chosen(folders):
    settings = Settings(models=[str(folders / "bert")], tasks=["bert=answer"])
    with pytest.raises(ValueError, match="--task is only for encoder–decoders"):
        load_model(model_specs(settings)[0], settings, lambda part, tokens: None)
