"""Messages of a run: sizes, speed, time left, samples and the kept weights."""

import io
import logging
import re
import sys
from pathlib import Path

import pytest
from support import forks
from support.data.training import outcome, same, tiny, write_tiny

from clearhead.cli.training.train import print_result, progress
from clearhead.train.data.loaders import sample_predictions
from clearhead.train.loop import speed
from clearhead.train.loop.callback import STEP_LOGGER
from clearhead.train.recipe.load import read_recipe
from clearhead.train.tasks.registry import create_task
from clearhead.train.trainer import TrainingResult, train

ROOT = Path(__file__).parents[3]
TINY = ROOT / "recipes" / "tiny"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_piped_run_logs_sizes_estimate_steps_and_samples(folder):
    recipe = write_tiny(folder, "piped", training__log_every=5, validation__every=6)
    status, log = forks.run("train", recipe, log=folder / "piped.txt")
    assert status == 0, log
    lines = log.splitlines()
    assert all(line.startswith("clearhead: ") for line in lines)
    lines = [line.removeprefix("clearhead: ") for line in lines]
    start = lines[lines.index(next(line for line in lines if line.startswith("validation: "))) :]
    assert re.fullmatch(r"validation: 8 examples, \d+ tokens", start[0])
    assert re.fullmatch(r"training: 48 examples, \d,\d{3} tokens", start[1])
    assert re.fullmatch(r"model: [\d,]+ parameters, 1 \+ 1 layers, width 16, vocabulary of \d+", start[2])
    assert start[3] == "run: 12 steps on cpu in float32 with 1 thread"
    assert start[4] == "optimizer: peak learning rate 0.003, inverse-square-root schedule, 4 warmup steps"
    steps = [line for line in lines if re.match(r"step \d+ of 12  ", line)]
    assert [int(line.split()[1]) for line in steps] == [1, 5, 10, 12]
    assert re.fullmatch(r"step 1 of 12  loss \d\.\d{4}  learning rate 0.00075", steps[0])
    pace = r"[\d,]+ tokens/s  \d+ s left"
    assert re.fullmatch(rf"step 5 of 12  loss \d\.\d{{4}}  learning rate 0.00268  {pace}", steps[1])
    assert re.fullmatch(r"step 12 of 12  loss \d\.\d{4}  learning rate 0.00173  [\d,]+ tokens/s", steps[3])
    (estimate,) = [line for line in lines if line.startswith("estimate: ")]
    assert re.fullmatch(r"estimate: \d+ s left at [\d,]+ tokens/s, plus validations", estimate)
    validations = [number for number, line in enumerate(lines) if "validation loss" in line]
    assert len(validations) == 2
    for number in validations:
        assert [line.split()[0] for line in lines[number + 1 : number + 10]] == ["source", "output", "expected"] * 3


@pytest.mark.slow
def test_fsdp_in_one_process_is_reported(folder):
    recipe = write_tiny(
        folder, "one-process", training__steps=6, training__fsdp=True, regularize__gradient_clipping=0.5
    )
    status, log = forks.run("train", recipe, "-q", log=folder / "one-process.txt")
    assert status == 0, log
    assert "training.fsdp shards only over several processes, which torchrun starts; this run has one" in log


@pytest.mark.slow
def test_quiet_run_logs_nothing(folder):
    recipe = write_tiny(folder, "quiet", training__steps=6)
    assert forks.run("train", recipe, "-q", log=folder / "quiet.txt") == (0, "")


def test_bar_has_the_speed_and_no_step_lines(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "100")
    log = logging.getLogger("clearhead.train")
    before = log.level, log.propagate, list(log.handlers)
    try:
        with progress(quiet=False) as on_step:
            logging.getLogger(STEP_LOGGER).info("step 5 of 10  loss 1.5")
            logging.getLogger("clearhead.train.loop.callback").info("step 5  validation loss 2.5")
            on_step(5, 10, "loss 1.5000  12,345 tokens/s  42 s left")
    finally:
        log.level, log.propagate, log.handlers = before
        logging.getLogger(STEP_LOGGER).setLevel(logging.NOTSET)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown.getvalue())
    assert "5/10 loss 1.5000  12,345 tokens/s  42 s left" in text
    assert "validation loss 2.5" in text
    assert "step 5 of 10" not in text


@pytest.mark.slow
def test_bar_gets_the_loss_the_speed_and_the_time_left(folder):
    messages = []
    train(tiny(folder, "bar", training__steps=4), on_step=lambda step, total, message: messages.append(message))
    assert re.fullmatch(r"loss \d\.\d{4}", messages[0])
    assert re.fullmatch(r"loss \d\.\d{4}  [\d,]+ tokens/s  \d+ s left", messages[1])
    assert re.fullmatch(r"loss \d\.\d{4}  [\d,]+ tokens/s", messages[3])


def test_speed_excludes_pauses_and_the_time_left_includes_them(monkeypatch):
    clock = iter([0.0, 9.0, 9.0, 10.0, 10.0, 14.0, 15.0, 15.0, 15.0, 15.0])
    monkeypatch.setattr(speed.time, "perf_counter", lambda: next(clock))
    meter = speed.SpeedMeter()  # 0 s
    meter.finish_step(1, 100)  # 9 s: slow, and not counted
    assert (meter.tokens_per_second(), meter.seconds_left(4)) == (None, None)
    meter.finish_step(2, 100)  # 10 s
    with meter.pause():  # from 10 s to 14 s
        pass
    meter.finish_step(3, 300)  # 15 s
    assert meter.tokens_per_second() == (100 + 300) / 2
    assert meter.seconds_left(5) == (15 - 9) / 2 * 2
    assert meter.row_speed() == 500 / 11


def lines_of(name, folder, *changes):
    """Return the samples of a tiny recipe with an untrained model."""
    recipe = read_recipe(TINY / f"{name}.yaml", [f"output={folder}", *changes])
    task = create_task(recipe, folder)
    lines = sample_predictions(task)
    assert task.model.training
    assert lines == sample_predictions(task)
    return lines


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("classification", r"  predicted (praise|complaint), expected (praise|complaint): \w.+"),
        ("span-answers", r"  predicted \w.*, expected \w+: W\w+ .*\?"),
        ("sentence-embeddings", r"  cosine -?[01]\.\d\d, with other texts -?[01]\.\d\d: \w.* \| \w.*"),
        ("reranking", r"  score 0\.\d\d, given [01]\.00: \w.*\? \| \w.*"),
        ("masked-language-model", r"  predicted \S+( / \S+)*, expected \S+( / \S+)*: .*___.*"),
    ],
)
def test_each_task_shows_three_predictions(tmp_path, monkeypatch, name, pattern):
    monkeypatch.chdir(ROOT)
    lines = lines_of(name, tmp_path)
    assert len(lines) == 3
    for line in lines:
        assert re.fullmatch(pattern, line)


def test_samples_show_the_score_of_a_pair(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    data = "recipes/tiny/data/scored-"
    changes = (f"data.train={data}train.csv", f"data.validation={data}valid.csv", "objective.loss=regression")
    changes += ("data.columns=null",)
    lines = lines_of("sentence-embeddings", tmp_path, *changes)
    first = Path(f"{data}valid.csv").read_text(encoding="utf-8").splitlines()[1].split(",")
    assert re.fullmatch(rf"  cosine -?[01]\.\d\d, given {float(first[2]) / 5:.2f}: {first[0]} \| {first[1]}", lines[0])
    assert len(lines) == 3


@pytest.mark.slow
def test_samples_leave_the_training_unchanged(folder, whole, caplog):
    # `whole` logged samples; a run without messages computes none
    with caplog.at_level("WARNING", "clearhead.train"):
        train(tiny(folder, "silent"))
    same(outcome(folder / "silent"), whole)


RESULT = {"folder": Path("run"), "step": 12, "finished": True, "stopped_early": False}


@pytest.mark.parametrize(
    ("weights", "steps", "scores", "line"),
    [
        ("best", [9], {"loss": 1.25, "macro_f1": 80.0}, "best weights: step 9 of 12  loss 1.2500  macro f1 80.00"),
        ("last", [12], {}, "last weights: step 12"),
        ("average", [8, 10, 12], {"loss": 1.0}, "average weights: steps 8, 10 and 12 of 12  loss 1.0000"),
        ("last", [], {}, "step 12, no weights yet"),
    ],
)
def test_last_line_names_the_kept_weights(capsys, weights, steps, scores, line):
    print_result(TrainingResult(weights=weights, weights_of=steps, scores=scores, **RESULT))
    assert capsys.readouterr().out == f"run  {line}\n"
