"""A run that ends by a signal, a full disk or a NaN loss reports the reason and can be resumed."""

import os
import signal
import threading
from functools import partial

import pytest
from safetensors.torch import load_file
from support import forks
from support.data.training import outcome, same, write_tiny

from clearhead.checkpoints import load_seq2seq
from clearhead.train.data import dataloader
from clearhead.train.loop.checkpointing import is_finite, read_state

pytestmark = pytest.mark.slow

WRITTEN = "could not write the checkpoint ({}); the previous checkpoint is intact"


def ended(folder, name, *arguments, hook=None, **changes):
    """Run the tiny recipe with a hook; return the status, its messages and the run's folder."""
    status, log = forks.run(
        "train", write_tiny(folder, name, **changes), *arguments, log=folder / f"{name}.txt", hook=hook
    )
    return status, log.splitlines(), folder / name


def loading_message(run, caplog):
    """Return what loading the model of a run logs."""
    caplog.clear()
    load_seq2seq(run)
    return caplog.text


def step_of(run):
    """Return the step of a run's checkpoint."""
    state = read_state(run / "checkpoints" / "state.ckpt")
    return next(iter(state["callbacks"].values()))["step"]


@pytest.mark.parametrize(
    ("sent", "batch", "step"),
    # in the first and in the second batch of an update; the last stop is within the averaged checkpoints
    [
        (signal.SIGINT, 20, 11),
        (signal.SIGTERM, 20, 11),
        (signal.SIGINT, 1, 1),
        (signal.SIGTERM, 11, 6),
    ],
)
def test_signal_stops_after_the_step(folder, whole, sent, batch, step, caplog):
    name = f"signal-{sent}-{batch}"
    status, log, run = ended(folder, name, hook=partial(forks.send_signal_at_batch, batch, sent))
    assert (status, log[-1]) == (130, f"clearhead: stopped at step {step}; continue with --resume")
    assert "clearhead: stopping after this step" in log
    assert step_of(run) == step
    assert (run / "model.safetensors").exists()
    assert f"{run} is the model of an interrupted training run" in loading_message(run, caplog)
    status, log, run = ended(folder, name, "--resume")
    assert status == 0
    assert f"clearhead: resuming {run} after step {step} of 12" in log
    same(outcome(run), whole)
    assert not loading_message(run, caplog)


def terminate_while_collecting():
    """Send SIGTERM soon after the collection of an update's batches has begun, and shorten the wait for its end."""
    dataloader._STOP_SECONDS = 0.2
    collect = dataloader.TrainingDataLoader._update

    def begun(*arguments):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return collect(*arguments)

    dataloader.TrainingDataLoader._update = begun


def test_signal_stops_the_collection_of_a_long_update(folder):
    changes = {"training__gradient_accumulation_steps": 100_000, "training__steps": 1, "optimizer__warmup_steps": 0}
    assert dataloader._STOP_SECONDS == 10  # as docs/robustness.md says
    status, log, run = ended(folder, "collecting", hook=terminate_while_collecting, **changes)
    assert status == 130
    assert "clearhead: stopped while batches are collected; --resume continues from the last checkpoint" in log
    assert not list(run.rglob("*.part"))


def test_second_interrupt_exits_immediately(folder):
    status, log, run = ended(folder, "twice-interrupted", hook=partial(forks.interrupt_twice, 9))
    assert status == 130
    assert "Traceback" not in "\n".join(log)
    assert step_of(run) == 3


@pytest.mark.parametrize(
    ("hook", "file", "reason"),
    [
        (
            partial(forks.fill_disk_from_checkpoint, 6),
            "checkpoints/step-00000006.safetensors",
            WRITTEN.format("File too large"),
        ),
        (partial(forks.fill_disk_before_state, 6), "checkpoints/state.ckpt", WRITTEN.format("File too large")),
        (partial(forks.fill_disk_in_validation, 2), "curves.png", "File too large"),
    ],
    ids=["weights", "state", "curves"],
)
def test_full_disk_keeps_the_previous_checkpoint(folder, whole, hook, file, reason, request):
    name = f"full-{request.node.callspec.id}"
    status, log, run = ended(folder, name, "-q", hook=hook)  # a longer log would exceed the limit, too
    assert (status, log[-1]) == (1, f"clearhead: error: {run / file}: {reason}")
    assert [line for line in log if not line.startswith("clearhead: ")] == []
    assert step_of(run) == 3
    first = "step-00000003.safetensors"
    assert (run / "checkpoints" / first).read_bytes() == (folder / "whole-3" / "checkpoints" / first).read_bytes()
    status, log, run = ended(folder, name, "--resume")
    assert status == 0
    same(outcome(run), whole)


@pytest.fixture(autouse=True, scope="module")
def _three(folder):
    """Make the run with all its checkpoints, once: a process may run tests of this module in two turns."""
    assert (folder / "whole-3").exists() or ended(folder, "whole-3", training__keep_last=9)[0] == 0


def test_nan_loss_is_reported(folder, whole):
    status, log, run = ended(folder, "poisoned", hook=partial(forks.nan_loss_at_batch, 15))
    assert status == 1
    recipe = folder / "poisoned.yaml"
    assert log[-1].startswith(f"clearhead: error: {recipe}: the loss is nan at step 8, batch 15, with examples ")
    assert "optimizer.learning_rate" in log[-1]
    assert [line for line in log if not line.startswith("clearhead: ")] == []
    assert step_of(run) == 6
    assert is_finite(load_file(run / "checkpoints" / "step-00000006.safetensors").values())
    # the run resumes from the checkpoint before
    assert ended(folder, "poisoned", "--resume")[0] == 0
    same(outcome(run), whole)


def test_diverged_weights_are_not_saved(folder):
    status, log, run = ended(
        folder, "wild", optimizer__learning_rate=1e30, optimizer__warmup_steps=0, validation__every=1
    )
    assert status == 1
    start = f"clearhead: error: {folder / 'wild.yaml'}: "
    assert log[-1].startswith((f"{start}the ", f"{start}weights"))
    assert "at step " in log[-1]
    for path in (run / "checkpoints").glob("step-*"):
        assert is_finite(load_file(path).values())
