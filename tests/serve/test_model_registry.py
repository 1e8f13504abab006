"""What models are called, and what they are offered for."""

import json
import shutil

import pytest

from clearhead.serve.model_registry import asked, load
from clearhead.serve.settings import Settings


def names(*models, **settings):
    return [(one.name, one.place, one.uses) for one in asked(Settings(models=models, **settings))]


def test_a_folder_is_called_by_its_last_part_and_a_hub_id_by_itself(tmp_path, monkeypatch):
    folder = tmp_path / "with=sign" / "mine"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert names(str(folder)) == [("mine", str(folder), None)]
    assert names(".") == [("mine", ".", None)]
    assert names(f"other={folder}", "org/name") == [("other", str(folder), None), ("org/name", "org/name", None)]
    assert names(str(folder), uses=["mine=answer,translate"])[0][2] == ("translate", "answer")


@pytest.mark.parametrize(
    ("models", "uses", "said"),
    [
        (["a=x", "a=y"], [], "two models are called 'a'; write --model NAME=MODEL"),
        (["a=x"], ["b=answer"], "no model is called 'b', whose uses are told; these are: a"),
        (["a=x"], ["a=dance"], "NAME=USE,USE is wanted, of translate, summarize, answer; got 'a=dance'"),
        (["a=x"], ["a"], "NAME=USE,USE is wanted"),
    ],
)
def test_what_contradicts_itself_is_refused(models, uses, said):
    with pytest.raises(ValueError, match=said):
        names(*models, uses=uses)


@pytest.mark.parametrize(
    ("tasks", "told", "uses"),
    [
        ({}, [], ["translate"]),
        ({"summarization": {"max_length": 20}}, [], ["summarize"]),
        ({"summarization": {}, "translation_en_to_de": {}}, [], ["translate", "summarize"]),
        ({"summarization": {}}, ["m=answer"], ["answer"]),
    ],
)
def test_an_encoder_decoder_is_offered_for_what_it_says_or_the_operator(folders, tmp_path, tasks, told, uses):
    folder = tmp_path / "m"
    shutil.copytree(folders / "marian", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "task_specific_params": tasks}), encoding="utf-8")
    settings = Settings(models=[str(folder)], uses=told, precision="float32", device="cpu")
    served = load(asked(settings)[0], settings, lambda part, tokens: None)
    assert list(served.uses) == [*uses, "view"]
    # one model, whatever it is offered for
    assert len({id(use.made.model) for use in served.uses.values()}) == 1


def test_an_encoder_has_no_choice(folders):
    settings = Settings(models=[str(folders / "bert")], uses=["bert=answer"])
    with pytest.raises(ValueError, match="its uses cannot be chosen: it is no encoder–decoder"):
        load(asked(settings)[0], settings, lambda part, tokens: None)
