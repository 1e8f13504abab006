"""Errors in a recipe or its data are reported in one line, before anything is computed."""

import os
import re
import subprocess
from dataclasses import replace
from typing import get_args

import pytest
import yaml
from support.command import COMMAND, refused, started
from support.data.training_data import recipe, write_data

from clearhead.train.recipe.load import parse_recipe, read_recipe
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.renamed import RENAMED_KEYS
from clearhead.train.tasks.predictions import TokenPredictions
from clearhead.train.tasks.registry import TASKS
from clearhead.train.trainer import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def changed(**changes):
    """Return a recipe as in YAML, with keys set (section__key) or removed (...)."""
    spec = {"task": "text-to-text", "output": "run", "data": {"train": "a.tsv"}, "training": {"steps": 3}}
    if changes.get("task") is ...:
        del spec["task"], changes["task"]
    for key, value in changes.items():
        *sections, last = key.split("__")
        inner = spec
        for section in sections:
            inner = inner.setdefault(section, {})
        inner.pop(last, None) if value is ... else inner.update({last: value})
    return spec


TEACHER = {"teacher": "a", "hidden_weight": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"taks": "x"}, "unknown key taks; did you mean 'task'?"),
        ({"learning_rate": 1}, "unknown key learning_rate; did you mean 'optimizer.learning_rate'?"),
        ({"model": None}, "model is null: expected a mapping"),
        ({"validation__metrics": "bleu"}, "validation.metrics is 'bleu': expected a list, such as [a, b]"),
        (
            {"model__init_from": "a", "model__d_model": 8, "model__num_heads": 2},
            "model.d_model, model.num_heads: determined by the checkpoint in model.init_from; remove these keys, or "
            "replace the section on the command line: 'model={init_from: a}'",
        ),
        (
            {"task": "classification", "regularize__distillation": {"teacher": "t", "sequence_level": True}},
            "sequence_level: requires a task that generates text, not classification",
        ),
        ({"data__trian": "x"}, "unknown key data.trian; did you mean 'train'?"),
        ({"regularize__droput": 0.1}, "unknown key regularize.droput; did you mean 'dropout'?"),
        ({"regularize__dropout": {"residul": 0.1}}, "unknown key regularize.dropout.residul; did you mean 'residual'?"),
        ({"regularize__distillation": {"temprature": 1}}, "distillation.temprature; did you mean 'temperature'?"),
        ({"objective": {"prefx": "a"}}, "unknown key objective.prefx; did you mean 'prefix'?"),
        ({"task": ...}, "task is required"),
        ({"data__train": ...}, "data.train is required"),
        ({"data__train": ["a", 3]}, "data.train.1 is 3: expected a string"),
        ({"data__max_length": "long"}, "data.max_length is 'long': expected an integer"),
        ({"training__steps": 1.5}, "training.steps is 1.5: expected an integer"),
        ({"regularize__layer_norm": "maybe"}, "regularize.layer_norm is 'maybe': expected true or false"),
        ({"regularize__r_drop": True}, "regularize.r_drop: expected a value, got true"),
        ({"regularize__early_stopping": True}, "regularize.early_stopping: expected a value, got true"),
        ({"regularize__weight_decay": float("nan")}, "regularize.weight_decay is nan: it should be a finite number"),
        ({"regularize__label_smoothing": 1.0}, "regularize.label_smoothing is 1.0: it should be less than 1"),
        ({"seed": -1}, "seed is -1"),
        ({"training__epochs": 2}, "training: steps and epochs are both set; exactly one is required"),
        ({"validation__metrics": ["bleu"]}, "validation.metrics: require data.validation"),
        ({"validation__monitor": "bleu"}, "validation.monitor: requires data.validation"),
        ({"training__final_weights": "best"}, "training.final_weights: best requires data.validation"),
        ({"regularize__early_stopping": {}}, "regularize.early_stopping: requires data.validation"),
        ({"regularize__r_drop": 1, "regularize__dropout": False}, "regularize.r_drop: compares two passes"),
        ({"model__init_from": "a", "model__init_encoder_from": "b"}, "model: init_from initializes the whole model"),
        (
            {"model__init_from": "a", "model__d_model": 8},
            "model.d_model: determined by the checkpoint in model.init_from",
        ),
        ({"model__init_from": "a", "tokenizer__path": "b"}, "tokenizer: the checkpoint in model.init_from has its own"),
        (
            {"task": "classification", "model__init_encoder_from": "b"},
            "model.init_encoder_from: requires an encoder–decoder",
        ),
        (
            {"task": "classification", "model__decoder_num_layers": 2},
            "model.decoder_num_layers: requires an encoder–decoder",
        ),
        (
            {"task": "classification", "regularize__distillation": TEACHER},
            "hidden_weight: requires a task that predicts tokens",
        ),
        (
            {"task": "masked-language-model", "regularize__augmentation": {"token_replacement": 0.1}},
            "use objective.mask_rate instead",
        ),
        (
            {"task": "classification", "regularize__augmentation": {"bidirectional": 0.3}},
            "augmentation.bidirectional: reverses pairs of source and target, which classification does not have",
        ),
        (
            {"task": "text-to-text", "objective__prefix": "x: ", "regularize__augmentation": {"bidirectional": 0.3}},
            "augmentation.bidirectional: reverses pairs, which a prefix or languages in the objective do not allow",
        ),
        (
            {"task": "span-answers", "regularize__augmentation": {"local_shuffle": 2}},
            "local_shuffle: moves the tokens of the answer",
        ),
        (
            {"task": "sentence-embeddings", "regularize__r_drop": 1.0},
            "r_drop: requires a task that predicts classes or tokens",
        ),
        ({"task": "sentence-embeddings", "objective": {"score_range": [1, 1]}}, "score_range must increase"),
        (
            {"task": "reranking", "regularize__augmentation": {"token_swapping": 0.1}},
            "token_swapping: mixes query and document",
        ),
        (
            {"task": "reranking", "regularize__label_smoothing": 0.1},
            "label_smoothing: requires a task that predicts classes or tokens",
        ),
    ],
)
def test_wrong_recipe_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse_recipe(changed(**changes), "r.yaml")
    assert str(error.value).startswith("r.yaml: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "section",
    [{"label_smoothing": 0.1}, {"r_drop": 1.0}, {"distillation": {"teacher": "t", "hidden_weight": 1.0}}],
)
def test_kind_of_predictions_decides_which_regularizers_a_new_task_allows(section, monkeypatch):
    toy = replace(TASKS["sentence-embeddings"], name="toy")
    monkeypatch.setitem(TASKS, "toy", toy)
    data = changed(task="toy", **{f"regularize__{key}": value for key, value in section.items()})
    with pytest.raises(ValueError, match=r"requires a task that predicts .*tokens, not toy"):
        parse_recipe(data, "r.yaml")
    monkeypatch.setitem(TASKS, "toy", replace(toy, predicts=TokenPredictions))
    assert parse_recipe(data, "r.yaml").task == "toy"


def test_task_that_generates_allows_sequence_level_distillation(monkeypatch):
    data = changed(task="toy", regularize__distillation={"teacher": "t", "sequence_level": True})
    monkeypatch.setitem(TASKS, "toy", replace(TASKS["classification"], name="toy", generates=True))
    assert parse_recipe(data, "r.yaml").regularize.distillation.sequence_level


def test_init_from_changes_the_defaults_of_the_optimizer():
    scratch = parse_recipe(changed(), "r.yaml").optimizer
    assert (scratch.learning_rate, scratch.betas, scratch.eps, scratch.schedule) == (
        *(5e-4, (0.9, 0.98), 1e-9),
        "inverse-square-root",
    )
    tuned = parse_recipe(changed(model__init_from="a"), "r.yaml").optimizer
    assert (tuned.learning_rate, tuned.betas, tuned.eps, tuned.schedule) == (5e-5, (0.9, 0.999), 1e-8, "linear")
    chosen = parse_recipe(changed(model__init_from="a", optimizer__learning_rate=5e-4), "r.yaml").optimizer
    assert (chosen.learning_rate, chosen.schedule) == (5e-4, "linear")
    half = parse_recipe(changed(model__init_encoder_from="a"), "r.yaml").optimizer
    assert half == scratch  # the new half needs a high rate


def test_override_with_a_pattern_is_text(tmp_path):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(changed()), encoding="utf-8")
    assert read_recipe(tmp_path / "r.yaml", ["data.train=*.tsv"]).data.train == "*.tsv"


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_renamed_key_is_refused_with_its_new_name(tmp_path, old, new):
    *sections, last = old.split(".")
    message = re.escape(f"r.yaml: {old} was renamed to {new}")
    with pytest.raises(ValueError, match=message):
        parse_recipe(changed(**{"__".join([*sections, last]): 1}), "r.yaml")
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(changed()), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_recipe(tmp_path / "r.yaml", [f"{old}=1"])
    section = Recipe
    for name in new.split("."):
        field = section.model_fields[name].annotation
        section = next((kind for kind in (field, *get_args(field)) if hasattr(kind, "model_fields")), None)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", "expected key=value"),
        ("=3", "expected key=value"),
        ("training.stps=3", "unknown key training.stps; did you mean 'steps'?"),
        ("task.x=3", "task is 'text-to-text' in the recipe, not a section"),
        ("training.steps=[1,", "the value is not YAML"),
    ],
)
def test_wrong_override_is_refused(tmp_path, override, message):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(changed()), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        read_recipe(tmp_path / "r.yaml", [override])


def test_overrides_are_yaml(tmp_path):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(changed()), encoding="utf-8")
    spec = read_recipe(
        tmp_path / "r.yaml",
        [
            "training.steps=null",
            "training.epochs=2",
            "regularize.dropout.residual=0.3",
            "objective.prefix='a=b: '",
            "optimizer.betas=[0.9, 0.99]",
        ],
    )
    assert (spec.training.steps, spec.training.epochs, spec.regularize.dropout.residual) == (None, 2, 0.3)
    assert (spec.objective.prefix, spec.optimizer.betas) == ("a=b: ", (0.9, 0.99))


WRONG_DATA = [
    ("text-to-text", {"source": "one\ntwo\n", "target": "eins\n"}, {}, "has 1 lines, but"),
    ("text-to-text", {"source": "one\n\n", "target": "eins\nzwei\n"}, {"strict": True}, "source, line 2: no tokens"),
    (
        "text-to-text",
        {"source": "one\n" + "red " * 99 + "\n", "target": "a\nb\n"},
        {"strict": True, "batch_tokens": 50},
        "source, line 2: longer than data.batch_tokens=50",
    ),
    (
        "text-to-text",
        {"source": "a\na\n", "target": "a\n" + "b " * 99 + "\n"},
        {"strict": True, "max_target_length": 9},
        "source, line 2: the target has",
    ),
    ("text-to-text", {"source": "\n \n", "target": "a\nb\n"}, {}, "no examples are left to train on (2: no tokens)"),
    (
        "span-answers",
        "who\tred dog\tdog\t3\n",
        {},
        "line 1: the context does not contain the answer 'dog' at character 3",
    ),
    ("span-answers", "who\tred\tred\t0\n \tred\tred\t0\n", {"strict": True}, "rows.tsv, line 2: no tokens"),
    (
        "span-answers",
        "who\tred\tred\t0\n" + "who " * 60 + "\tred\tred\t0\n",
        {"strict": True, "max_length": 20},
        "rows.tsv, line 2: the question of pair 0 has",
    ),
    ("sentence-embeddings", "a\tb\t7\n", {}, "line 1: the score 7.0 is outside objective.score_range, 0.0 to 5.0"),
    ("sentence-embeddings", "a\tb\thigh\n", {}, "line 1: the score is 'high'; expected a number"),
    ("reranking", "a\tb\tyes\n", {}, "line 1: the label is 'yes'; expected a number"),
    ("reranking", "a\tb\t2\n", {}, "line 1: the label is 2; binary cross-entropy needs labels from 0 to 1"),
    ("reranking", "a\tb\t1\na\t \t1\n", {"strict": True}, "rows.tsv, line 2: no tokens"),
]


@pytest.mark.parametrize(("task", "texts", "spec", "message"), WRONG_DATA)
def test_wrong_data_is_refused_with_its_location(data, tmp_path, task, texts, spec, message):
    if isinstance(texts, dict):
        files = {field: str(tmp_path / field) for field in texts}
        for field, text in texts.items():
            (tmp_path / field).write_text(text, encoding="utf-8")
    else:
        files = str(tmp_path / "rows.tsv")
        (tmp_path / "rows.tsv").write_text(texts, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        train(recipe(data, task, tmp_path / "run", data={"train": files} | spec))


@pytest.mark.slow
def test_unusable_questions_are_skipped_and_counted(data, tmp_path, caplog):
    caplog.set_level("INFO", logger="clearhead.train")
    file = tmp_path / "rows.tsv"
    file.write_text("red\tred dog\tdog\t4\n \tred\tred\t0\nred\t \t\t-1\n" + "red " * 60 + "\tred\tred\t0\n", "utf-8")
    spec = {"train": str(file), "validation": str(file), "max_length": 20}
    assert train(recipe(data, "span-answers", tmp_path / "run", data=spec)).finished
    assert re.search(r"training: 1 examples, \d+ tokens; skipped: 2: no tokens, 1: question too long", caplog.text)


def test_data_with_one_label_is_refused(data, tmp_path):
    (tmp_path / "train.tsv").write_text("a fine day\tgood\na long day\tgood\n")
    settings = recipe(data, "classification", tmp_path / "run", data={"train": str(tmp_path / "train.tsv")})
    with pytest.raises(ValueError, match=r"train\.tsv: all texts have the label 'good'; classification needs two"):
        train(settings)


def test_unknown_label_is_refused(data, tmp_path):
    (tmp_path / "held.tsv").write_text("red dog\tshrt\n", encoding="utf-8")
    spec = recipe(data, "classification", tmp_path / "run", data={"validation": str(tmp_path / "held.tsv")})
    with pytest.raises(ValueError, match=r"line 1: unknown label 'shrt'; did you mean 'short'\?"):
        train(spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"validation": {"monitor": "blue", "metrics": ["bleu"]}},
            "validation.monitor is 'blue', which is not computed; did you mean 'bleu'?",
        ),
        ({"model": {"architecture": "maran"}}, "model.architecture is 'maran'; did you mean 'marian'?"),
        ({"model": {"architecture": "bert"}}, "'bert', which this task cannot train; available: bart, "),
        (
            {"training": {"device": "gpu9"}},
            "device 'gpu9' cannot be used: expected auto, cpu, cuda, cuda:1, mps or another",
        ),
    ],
)
def test_unknown_values_are_refused_before_the_data_is_read(data, tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(recipe(data, "text-to-text", tmp_path / "run", held_out=True, **changes))
    assert not (tmp_path / "run" / "data").exists()


def test_output_that_is_a_file_is_refused(data, tmp_path):
    (tmp_path / "run").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="output is .*run, a file; expected a folder"):
        train(recipe(data, "text-to-text", tmp_path / "run"))
    assert (tmp_path / "run").read_text(encoding="utf-8") == "mine"


def _written(files, folder, **sections):
    path = folder / "recipe.yaml"
    spec = recipe(files, "text-to-text", folder / "run", **sections)
    path.write_text(yaml.safe_dump(spec.model_dump(mode="json")), encoding="utf-8")
    return path


def test_command_prints_one_line_for_a_recipe_error(data, tmp_path):
    (tmp_path / "broken.yaml").write_text("a: [1,\n b: 2", encoding="utf-8")
    assert "is not YAML" in refused("train", tmp_path / "broken.yaml")
    assert "did you mean 'steps'?" in refused("train", _written(data, tmp_path), "training.stps=3")


@pytest.mark.slow
def test_skipped_and_truncated_examples_are_counted(data, tmp_path):
    rows = {"source": "one\n\n" + "red " * 99 + "\ntwo\n", "target": "eins\nzwei\nrot\n" + "b " * 99 + "\n"}
    files = {field: str(tmp_path / field) for field in rows}
    for field, text in rows.items():
        (tmp_path / field).write_text(text, encoding="utf-8")
    status, _, err = started(
        "train", _written(data, tmp_path, data={"train": files, "max_length": 20, "max_target_length": 20})
    )
    assert status == 0, err
    skipped = "skipped: 1: no tokens, 1: target too long; truncated: 1"
    assert re.search(rf"training: 2 examples, \d+ tokens; {skipped}", err)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["lightning", "matplotlib", "tensorboard", "yaml"])
def test_error_names_missing_library_and_extra(data, tmp_path, missing):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{missing!r}] = None\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [COMMAND, "train", str(_written(data, tmp_path))]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith('pip install "clearhead[train]"\n'), done.stderr
