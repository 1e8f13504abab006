"""Recipes of the repository: each is valid, trains with the real command, and its model loads."""

import csv
import importlib.util
import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.command import clearhead
from support.once import once

from clearhead import QuestionAnswerer, Reranker, TextClassifier, TextEncoder, TextToText
from clearhead.train.distillation import distill
from clearhead.train.recipe.load import flatten, read_recipe
from clearhead.train.tasks.registry import TASKS
from clearhead.train.trainer import train

ROOT = Path(__file__).parents[3]
TINY = ROOT / "recipes" / "tiny"
RECIPES = sorted(path.name for path in (ROOT / "recipes").glob("*.yaml"))
OF_DATA_SETS = sorted(path.name for path in (ROOT / "recipes" / "datasets").glob("*.yaml"))
OPENED_BY = {
    "translation": TextToText,
    "summarization": TextToText,
    "generative-answers": QuestionAnswerer,
    "span-answers": QuestionAnswerer,
    "classification": TextClassifier,
    "sentence-embeddings": TextEncoder,
    "reranking": Reranker,
    "masked-language-model": TextEncoder,
    "distillation": TextToText,
}
SHORT = (
    "training.steps=2",
    "training.epochs=null",
    "optimizer.warmup_steps=1",
    "validation.every=2",
    "validation.max_examples=4",
)


def run(verb, name, *arguments, folder):
    """Run a tiny recipe with the command, from the repository root as in its comment; return the output."""
    status, out, err = clearhead(verb, TINY / f"{name}.yaml", f"output={folder}", *arguments, cwd=ROOT)
    assert status == 0, err
    assert re.match(rf"{folder}  (best|last|average) weights: steps? ", out)
    return out


def opened(verb, *arguments, stdin=""):
    status, out, err = clearhead(*verb.split(), *arguments, stdin=stdin.encode(), cwd=ROOT)
    assert status == 0, err
    return out


def test_every_task_has_a_recipe_and_a_tiny_recipe():
    assert sorted(f"{name}.yaml" for name in OPENED_BY) == RECIPES
    assert sorted(path.name for path in TINY.glob("*.yaml")) == RECIPES
    assert {read_recipe(ROOT / "recipes" / name).task for name in RECIPES} == set(TASKS)
    rows = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").splitlines()
    for task in TASKS:
        assert any(row.startswith(f"| `{task}` | `") for row in rows), f"add {task} to the table of docs/training.md"


@pytest.mark.parametrize(
    ("folder", "name"),
    [(folder, name) for folder in ("recipes", "recipes/tiny") for name in RECIPES]
    + [("recipes/datasets", name) for name in OF_DATA_SETS],
)
def test_recipe_is_read_and_stays_within_the_checkout(folder, name):
    path = ROOT / folder / name
    recipe = read_recipe(path)
    assert recipe.output == f"runs/{'tiny-' if folder.endswith('tiny') else ''}{name.removesuffix('.yaml')}"
    for key, value in flatten(recipe).items():
        assert not str(value).startswith(("/", "~", "..")), key
    assert read_recipe(path, ["seed=7"]) == recipe.model_copy(update={"seed": 7})


def test_files_of_a_tiny_recipe_exist():
    for name in RECIPES:
        for key, value in flatten(read_recipe(TINY / name)).items():
            if key.startswith(("data.train", "data.validation")):
                assert (ROOT / value).is_file(), f"{name}: {key}"


def test_tiny_data_equals_the_output_of_its_grammars():
    spec = importlib.util.spec_from_file_location("make_data", TINY / "make_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files = module.files()
    assert {path.name for path in (TINY / "data").iterdir()} == set(files)
    for name, text in files.items():
        assert (TINY / "data" / name).read_text(encoding="utf-8") == text, name


def test_held_out_data_is_not_trained_on():
    for kind in ("{}.en", "reports-{}.jsonl", "reviews-{}.tsv", "pairs-{}.csv", "scored-{}.csv"):
        train, valid = (
            (TINY / "data" / kind.format(part)).read_text(encoding="utf-8").splitlines()[kind != "{}.en" :]
            for part in ("train", "valid")
        )
        assert valid
        assert not set(train) & set(valid), kind


@pytest.mark.slow
def test_tiny_run_and_resume_by_command(tmp_path):
    short = ("training.steps=4", "validation.every=2", "validation.max_examples=2", "training.log_every=1")
    run("train", "translation", *short, folder=tmp_path / "run")
    whole = (tmp_path / "run" / "model.safetensors").read_bytes()
    out = run("train", "translation", *short, "--resume", folder=tmp_path / "run")
    assert "average weights: steps 2 and 4 of 4  loss" in out
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "2", "3", "4", "4"]


@pytest.mark.slow
def test_warm_up_longer_than_the_training_is_shortened(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(ROOT)
    changes = ["training.epochs=2", "optimizer.warmup_steps=500", f"output={tmp_path / 'run'}", "training.log_every=1"]
    train(read_recipe(TINY / "classification.yaml", changes))
    assert "optimizer.warmup_steps is 500, but the run has 26 steps: the warmup is shortened to 2" in caplog.text
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rates = [float(row["learning_rate"]) for row in csv.DictReader(file) if row["learning_rate"]]
    assert rates[:3] == pytest.approx([0.0015, 0.003, 0.003 * 24 / 25], rel=1e-3)  # then linear decay


def test_shortened_warm_up_is_reported_before_data_is_read(tmp_path, caplog):
    changes = ["training.steps=20", "training.epochs=null", "optimizer.warmup_steps=500", f"output={tmp_path / 'run'}"]
    with pytest.raises(ValueError, match="no such file"):
        train(read_recipe(TINY / "classification.yaml", [*changes, "data.train=nowhere.tsv"]))
    assert "the run has 20 steps: the warmup is shortened to 2" in caplog.text


@pytest.fixture
def runs(tmp_path_factory):
    """Folder of a tiny recipe after two steps."""

    def folder(name):
        return once(tmp_path_factory, f"begun-{name}", lambda output: fill(name, output))

    def fill(name, output):
        taught = ("regularize.distillation.teacher", "tokenizer.path") if name == "distillation" else ()
        changes = [f"{key}={folder('translation')}" for key in taught]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            recipe = read_recipe(TINY / f"{name}.yaml", [*SHORT, f"output={output}", *changes])
            trained = (distill if name == "distillation" else train)(recipe)
        assert (trained.finished, trained.step) == (True, 2)

    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", OPENED_BY)
def test_tiny_run_writes_a_model_that_opens(runs, name):
    result = json.loads((runs(name) / "training.json").read_text(encoding="utf-8"))
    assert result["step"] == 2
    assert result["scores"]["loss"] > 0
    OPENED_BY[name].from_pretrained(str(runs(name)), device="cpu")


def test_padding_row_of_a_new_translator_stays_zero(runs):
    """CTranslate2 requires this row: it starts with zeros, Marian with the padding token."""
    config = json.loads((runs("translation") / "config.json").read_text())
    weights = load_file(runs("translation") / "model.safetensors")["model.shared.weight"]
    assert (weights.abs().amax(dim=1) == 0).nonzero().tolist() == [[config["pad_token_id"]]]
    assert config["pad_token_id"] == len(weights) - 1


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "summarization" else pytest.mark.slow) for name in OPENED_BY]
)
def test_large_recipe_runs_on_small_data(runs, name, tmp_path, monkeypatch):
    """Run a large recipe, except for its data, checkpoint and number of steps."""
    monkeypatch.chdir(ROOT)
    tiny = flatten(read_recipe(TINY / f"{name}.yaml"))
    changes = [f"{key}={value}" for key, value in tiny.items() if key.startswith(("data.train", "data.validation"))]
    if name == "summarization":
        changes += ["data.columns.target=headline", f"model.init_encoder_from={runs('classification')}"]
    if name == "generative-answers":
        changes += [f"model.init_from={runs('generative-answers')}"]
    if name in ("span-answers", "classification", "sentence-embeddings", "reranking"):
        changes += [f"model.init_from={runs('classification')}"]
    if name == "distillation":
        changes += [f"{key}={runs('translation')}" for key in ("regularize.distillation.teacher", "tokenizer.path")]
    short = [*SHORT, "data.batch_tokens=512", "training.gradient_accumulation_steps=1", "training.save_every=2"]
    recipe = read_recipe(ROOT / "recipes" / f"{name}.yaml", [*changes, *short, f"output={tmp_path / 'run'}"])
    assert (distill if name == "distillation" else train)(recipe).step == 2
    OPENED_BY[name].from_pretrained(str(tmp_path / "run"), device="cpu")


# scores in the comments of recipes/tiny
EXPECTED = {
    "translation": ("bleu", 95),
    "summarization": ("rouge_l", 95),
    "generative-answers": ("exact_match", 80),
    "span-answers": ("exact_match", 70),
    "classification": ("accuracy", 90),
    "sentence-embeddings": ("loss", -0.1),
    "reranking": ("reciprocal_rank", 0.9),
    "masked-language-model": ("loss", -1.8),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_recipe_comment_states_the_expected_score(name):
    score = f"{abs(EXPECTED[name][1]):g}"
    comment = " ".join(
        line[1:] for line in (TINY / f"{name}.yaml").read_text(encoding="utf-8").splitlines() if line[:1] == "#"
    )
    assert ("near 0" if name == "sentence-embeddings" else f"r {score}") in comment


@pytest.fixture
def learned(tmp_path_factory):
    """Folder of a complete tiny recipe, trained with the command."""

    def folder(name):
        return once(tmp_path_factory, f"learned-{name}", lambda folder: run("train", name, "--quiet", folder=folder))

    return folder


def scores(folder):
    return json.loads((folder / "training.json").read_text(encoding="utf-8"))["scores"]


def translates(folder):
    sentence = "Today the old dog sees a red apple.\n"
    german = opened("translate", "--model", folder, stdin=sentence)
    assert german == "Heute sieht der alte Hund einen roten Apfel.\n"


def summarizes(folder):
    report = "The storm came to Oslo on Friday. The market had to be closed.\n"
    assert opened("summarize", "-", "--model", folder, stdin=report) == "Storm closes market in Oslo.\n"


def answers(folder):
    context = "Anna painted the boat in Oslo on Monday. Buses were late.\n"
    question = ("--question", "Who painted the boat?", "--context", "-")
    assert opened("answer", "--model", folder, *question, stdin=context) == "Anna\n"
    output = opened("evaluate answers", TINY / "data/questions-valid.json", "--model", folder, "--json")
    assert json.loads(output)["exact_match"] > 70


def classifies(folder):
    output = opened("classify", "-", "--model", folder, stdin="The soup was not very fresh.\n")
    assert output.startswith("complaint")


def compares(folder):
    output = opened("evaluate similarity", TINY / "data/scored-valid.csv", "--model", folder, "--json")
    assert json.loads(output)["spearman"] > 0.85


def ranks(folder):
    sentences = (TINY / "data/judged-valid.csv", "--column", "document", "--model", folder, "--top-k", "3")
    (line,) = opened("rerank", "What happened in Oslo?", *sentences).splitlines()
    assert all("Oslo" in one["text"] for one in json.loads(line)["results"])


def encodes(folder):
    assert opened("encode", TINY / "data/valid.en", "--model", folder).count("\n") == 50


USES = {
    "translation": translates,
    "summarization": summarizes,
    "generative-answers": answers,
    "span-answers": answers,
    "classification": classifies,
    "sentence-embeddings": compares,
    "reranking": ranks,
    "masked-language-model": encodes,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_tiny_recipe_reaches_its_documented_score_and_runs(learned, name):
    measure, least = EXPECTED[name]
    score = scores(learned(name))[measure]
    assert (-score if measure == "loss" else score) > least
    USES[name](learned(name))


@pytest.mark.slow
def test_a_student_learns_from_its_teacher(learned, tmp_path):
    taught = [f"{key}={learned('translation')}" for key in ("regularize.distillation.teacher", "tokenizer.path")]
    run("distill", "distillation", "--quiet", *taught, folder=tmp_path / "student")
    assert scores(tmp_path / "student")["bleu"] > 85


@pytest.mark.slow
def test_regression_variant_learns_scores(tmp_path):
    changes = [
        *("objective.loss=regression", "validation.monitor=spearman", "data.columns.score=score"),
        *("data.train=recipes/tiny/data/scored-train.csv", "data.validation=recipes/tiny/data/scored-valid.csv"),
    ]
    run("train", "sentence-embeddings", "--quiet", *changes, folder=tmp_path / "run")
    assert scores(tmp_path / "run")["spearman"] > 0.8
