"""A run that is killed at any moment and resumed is bit-identical to an uninterrupted one."""

import os
import random
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load, save
from support import forks
from support.data.training import KILLED, metrics, outcome, same, tiny, trained_until, weights, write_tiny
from torch.utils._pytree import tree_flatten

from clearhead.train.loop.checkpointing import AtomicCheckpointIO, read_state
from clearhead.train.trainer import train

pytestmark = pytest.mark.usefixtures("one_thread")


def interrupted(folder, hooks, name):
    """Run the tiny recipe with one hook per interruption, then to its end; return the run's folder."""
    recipe = write_tiny(folder, name)
    run = folder / name
    shutil.rmtree(run, ignore_errors=True)
    for hook in hooks:
        resume = ["--resume"] if (run / "checkpoints" / "state.ckpt").exists() else []
        status, log = forks.run("train", recipe, *resume, log=folder / f"{name}.txt", hook=hook)
        assert status == KILLED, log
    status, log = forks.run("train", recipe, "--resume", log=folder / f"{name}.txt")
    assert status == 0, log
    return run


@pytest.mark.slow
def test_resume_after_two_sigkills(folder, whole):
    # in the middle of an epoch, and between the two files of a checkpoint
    hooks = [partial(forks.before_batch, 9), partial(forks.before_state, 9)]
    same(outcome(interrupted(folder, hooks, "twice")), whole)


def test_interrupted_run_has_all_checkpoints_and_one_loss_per_step(whole):
    assert [name for name in whole if name.startswith("step-")] == [f"step-{n:08d}.safetensors" for n in (6, 9, 12)]
    assert [row["step"] for row in whole["metrics.csv"] if row["loss"]] == [str(step) for step in range(1, 13)]
    assert [row["step"] for row in whole["metrics.csv"] if row["validation_loss"]] == ["3", "6", "9", "12"]


@pytest.mark.slow
def test_resume_after_sigkill_during_a_checkpoint_and_after_the_last_step(folder, whole):
    same(outcome(interrupted(folder, [partial(forks.kill_during_state, 6), forks.kill_before_model], "state")), whole)


def test_equal_states_have_equal_bytes(tmp_path):
    """Pickle writes one string object twice as a string and a reference, and two equal ones as two strings."""
    shared = (1.5, "step")
    one = {"optimizer": {"step": 1, "betas": [shared, shared]}, "loops": {"step": 2}}
    two = {"optimizer": {"".join("step"): 1, "betas": [shared, (1.5, "".join("step"))]}, "loops": {"".join("step"): 2}}
    for name, state in (("one", one), ("two", two)):
        AtomicCheckpointIO().save_checkpoint(state, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "hooks",
    [
        [
            forks.kill_in_dataset,
            partial(forks.before_batch, 2),
            partial(forks.before_batch, 7),
        ],  # nothing saved yet: starts again
        [
            partial(forks.kill_during_state, 3),
            partial(forks.kill_during_state, 6),
            partial(forks.kill_during_state, 12),
        ],
        [partial(forks.before_state, 3), partial(forks.before_state, 12)],
        [partial(forks.after_checkpoint, 3), partial(forks.after_checkpoint, 12)],
        [
            partial(forks.kill_in_validation, 1),
            partial(forks.kill_in_validation, 2),
            partial(forks.kill_in_validation, 1),
        ],
        [partial(forks.before_batch, number) for number in (8, 13, 18, 23)],
    ],
    ids=["store", "states", "between", "tidying", "validations", "batches"],
)
def test_resume_after_sigkill_at_any_point(folder, whole, hooks, request):
    same(outcome(interrupted(folder, hooks, request.node.callspec.id)), whole)


@pytest.mark.slow
def test_resume_after_ten_random_sigkills(folder, whole):
    draws = random.Random(5)
    recipe = write_tiny(folder, "random")
    kills = 0
    while kills < 10:
        resume = ["--resume"] if (folder / "random" / "checkpoints" / "state.ckpt").exists() else []
        hook = partial(forks.kill_after, draws.uniform(0.05, 1.2))
        status, log = forks.run("train", recipe, *resume, log=folder / "random.txt", hook=hook)
        assert status in (0, KILLED), log
        kills += status == KILLED
        if status == 0:
            break
    resume = ["--resume"] if (folder / "random" / "checkpoints" / "state.ckpt").exists() else []
    status, log = forks.run("train", recipe, *resume, log=folder / "random.txt")
    assert status == 0, log
    same(outcome(folder / "random"), whole)


def test_finished_run_is_reported_and_unchanged(folder, whole):
    status, log = forks.run("train", folder / "whole.yaml", "--resume", log=folder / "again.txt")
    assert status == 0
    assert f"the run in {folder / 'whole'} is finished: step 12\n" in log
    same(outcome(folder / "whole"), whole)


@pytest.mark.slow
def test_weights_depend_only_on_the_seed(folder, whole):
    # in this process, with a new tokenizer and new datasets
    train(tiny(folder, "again"))
    same(outcome(folder / "again"), whole)
    train(tiny(folder, "other", seed=2))
    one, other = weights(folder / "again"), weights(folder / "other")
    assert one.keys() == other.keys()
    assert not any(torch.equal(one[name], other[name]) for name in one if one[name].std() > 0)


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 3])
def test_early_stopping_resumes_with_its_best_value(folder, at):
    # with this learning rate no validation improves on the first by a tenth
    changes = {
        "regularize__early_stopping": {"patience": 3, "min_delta": 0.1},
        "optimizer__learning_rate": 1e-6,
        "validation__every": 1,
        "training__save_every": 1,
    }
    recipe = tiny(folder, f"patience-{at}", **changes)
    trained_until(recipe, lambda step: step == at)
    trained = train(recipe, resume=True)
    assert (trained.step, trained.stopped_early, trained.finished) == (4, True, True)
    again = train(recipe, resume=True)
    assert (again.step, again.stopped_early, again.finished) == (4, True, True)
    assert [row["step"] for row in metrics(folder / f"patience-{at}") if row["loss"]] == ["1", "2", "3", "4"]


@pytest.fixture
def begun(folder, tmp_path):
    """Folder with a run after six steps, and its arguments."""
    checkpoints = folder / "begun"
    if not checkpoints.exists():
        trained_until(tiny(folder, "begun"), lambda step: step == 7)
    shutil.copytree(checkpoints, tmp_path / "run")
    for name in ("train.tsv", "valid.tsv"):
        shutil.copy(folder / name, tmp_path)
    # a run's folder may move: the recipe only contains the path of the data
    return tmp_path


def resumed(begun, folder, **changes):
    data = {"data__train": str(folder / "train.tsv"), "data__validation": str(folder / "valid.tsv")}
    return train(tiny(begun, **(data | changes)), resume=True)


@pytest.mark.slow
def test_moved_run_resumes(begun, folder, whole):
    resumed(begun, folder)
    same(outcome(begun / "run"), whole)


def test_another_recipe_is_refused_and_nothing_changes(begun, folder):
    before = {path: path.stat().st_mtime_ns for path in (begun / "run").rglob("*")}
    with pytest.raises(ValueError, match="has another recipe and cannot be resumed") as refusal:
        resumed(begun, folder, training__steps=13, tokenizer__vocab_size=330, regularize__augmentation=False)
    log = str(refusal.value)
    assert "training.steps: 12 became 13" in log
    assert "tokenizer.vocab_size: 340 became 330" in log
    assert "regularize.augmentation.token_masking: 0.1 became None" in log
    assert "output" not in log
    assert {path: path.stat().st_mtime_ns for path in (begun / "run").rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "valid"])
def test_other_data_is_refused_but_moved_data_is_not(folder, tmp_path, name):
    for file_name in ("train.tsv", "valid.tsv"):
        shutil.copy(folder / file_name, tmp_path)
    recipe = tiny(tmp_path)
    trained_until(recipe, lambda step: step == 4)
    file = tmp_path / f"{name}.tsv"
    text, times = file.read_text(), file.stat()
    file.write_text(text.replace("house", "hoUse", 1))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time as before
    with pytest.raises(ValueError, match="the data of the run in .*/run, or its tokenizer, changed"):
        train(recipe, resume=True)
    file.write_text(text)  # another time of change, the same examples
    assert train(recipe, resume=True).finished


@pytest.mark.slow
def test_another_number_of_threads_is_refused(begun, folder):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(ValueError, match=rf"used {threads} threads, and now there are {threads + 1}: .*"):
            resumed(begun, folder)
    finally:
        torch.set_num_threads(threads)
    assert resumed(begun, folder).finished


@pytest.mark.slow
def test_checkpoint_of_the_previous_version_is_resumed(begun, folder, whole):
    path = begun / "run" / "checkpoints" / "state.ckpt"
    state = read_state(path)
    del state["clearhead"]["threads"]  # clearhead 0.1.0 did not write it
    torch.save(state, path)
    resumed(begun, folder)
    same(outcome(begun / "run"), whole)


def test_folder_with_a_run_is_not_overwritten(begun, folder):
    with pytest.raises(
        ValueError, match="run already contains a run; use --resume to continue it, or choose another output"
    ):
        train(tiny(begun))


@pytest.mark.slow
def test_resume_without_a_checkpoint_starts_a_run(folder, whole, caplog):
    with caplog.at_level("INFO", "clearhead.train"):
        train(tiny(folder, "nothing"), resume=True)
    assert f"{folder / 'nothing'} has no checkpoint to resume from: this is a new run" in caplog.text
    same(outcome(folder / "nothing"), whole)


@pytest.mark.parametrize("name", ["config.json", "recipe.yaml"])
def test_resume_without_a_checkpoint_overwrites_nothing(tmp_path, name):
    file = tmp_path / "run" / name
    file.parent.mkdir()
    file.write_text("mine")
    with pytest.raises(ValueError, match="is kept"):
        train(tiny(tmp_path), resume=True)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", r"run already contains a model \(config.json\), which is kept"),
        ("model.safetensors", r"run already contains a model \(model.safetensors\), which is kept"),
        ("recipe.yaml", "run/recipe.yaml was not written by a run and is kept"),
        ("data/tokenizer/notes.txt", "run/data/tokenizer exists and was not written by a run"),
    ],
)
def test_other_files_are_not_overwritten(tmp_path, name, message):
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ValueError, match=message):
        train(tiny(tmp_path))
    assert file.read_text() == "mine"
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [file]


@pytest.mark.parametrize("name", ["metrics.csv", "versions.json", "data/mine.tsv"])
def test_data_in_the_output_is_refused(tmp_path, name):
    """The files of the run would replace it, if they have its name."""
    for part in ("train", "validation"):
        recipe = tiny(tmp_path)
        file = tmp_path / "run" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "train.tsv", file)
        data = recipe.data.model_copy(update={part: f"{str(file)[:-1]}[{file.name[-1]}]"})  # a pattern
        with pytest.raises(
            ValueError, match=f"{file} is an input inside the output {tmp_path}/run; give another output"
        ):
            train(recipe.model_copy(update={"data": data}))
        assert file.read_bytes() == (tmp_path / "train.tsv").read_bytes()
        shutil.rmtree(tmp_path / "run")


@pytest.mark.slow
def test_run_without_a_checkpoint_starts_again(tmp_path, folder, whole):
    recipe = tiny(folder, "early")
    trained_until(recipe, lambda step: step == 1)
    shutil.rmtree(folder / "early" / "checkpoints", ignore_errors=True)
    for name in ("config.json", "model.safetensors"):
        (folder / "early" / name).unlink(missing_ok=True)
    assert (folder / "early" / "recipe.yaml").is_file()
    train(recipe)
    same(outcome(folder / "early"), whole)


def test_broken_checkpoints_are_refused(begun, folder):
    path = begun / "run" / "checkpoints" / "state.ckpt"
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:100], b"", b"no zip file"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="state.ckpt is .*damaged"):
            resumed(begun, folder)
    path.write_bytes(whole)
    state = read_state(path)
    expected, structure = tree_flatten(state)
    for position in (*random.Random(1).sample(range(len(whole)), 60), whole.index(b"exp_avg_sq")):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :])
        try:  # the archive has a few bytes without a meaning, such as dates and padding
            values, other = tree_flatten(read_state(path))
        except ValueError:
            continue
        assert other == structure
        assert all(map(equal, values, expected)), position
    path.write_bytes(whole)
    torch.save(state | {"clearhead": state["clearhead"] | {"format": 99, "version": "7.0"}}, path)
    with pytest.raises(ValueError, match="has format 99, written by clearhead 7.0; clearhead .* requires format 1"):
        resumed(begun, folder)
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="is not a checkpoint of clearhead"):
        resumed(begun, folder)


def equal(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else repr(one) == repr(other)  # NaN, too


def broken_weights(path):
    """Yield damages of a file of weights, with the message of each."""
    whole = path.read_bytes()
    tensors = load(whole)  # not mapped from the file, which is about to be replaced
    name = next(iter(tensors))
    yield whole[: len(whole) // 2], "is truncated, or not a safetensors file"
    yield b"no weights at all", "is truncated, or not a safetensors file"
    yield b"", "is truncated, or not a safetensors file"
    yield save({key: tensor for key, tensor in tensors.items() if key != name}), f"has no tensor {name}"
    yield save(tensors | {name: torch.zeros(1)}), f"tensor {name} has shape (1,)"
    yield whole[:-200] + bytes([whole[-200] ^ 0x10]) + whole[-199:], "is damaged: its hash is not the one in state.ckpt"


def last_line(recipe, folder):
    """Resume a run that has to fail without a traceback; return the last line of standard error."""
    status, log = forks.run("train", recipe, "--resume", log=folder / "broken.txt")
    assert status == 1, log
    assert "Traceback" not in log
    assert log.splitlines()[-1].startswith("clearhead: error: ")
    return log.splitlines()[-1]


@pytest.mark.slow
def test_broken_weights_of_a_step_are_a_one_line_error(folder, whole):
    recipe = write_tiny(folder, "broken")
    run = shutil.copytree(folder / "whole", folder / "broken")
    path = run / "checkpoints" / "step-00000009.safetensors"
    for data, message in broken_weights(path):
        path.write_bytes(data)
        log = last_line(recipe, folder)
        assert f"{path} {message}" in log or f"{path}: {message}" in log
        assert "Restore the file from a copy, or train again with another output" in log
    path.unlink()
    assert str(path) in last_line(recipe, folder)
