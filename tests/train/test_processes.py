"""Training with several processes equals training with one."""

import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from support import forks
from support.command import refused, started
from support.data.training import KILLED, losses, metrics, outcome, same, tiny, weights, write_tiny

from clearhead.train.distributed.process_group import ProcessGroup
from clearhead.train.trainer import train

pytestmark = pytest.mark.usefixtures("one_thread")

WITHOUT_CHANCE = {
    "regularize__dropout": 0,
    "regularize__augmentation": False,
    "training__steps": 6,
    # the gradient of a key's bias is 0 up to rounding errors, which Adam would scale up
    "optimizer__eps": 1e-5,
}


def together(folder, name, *arguments, hooks=(None, None), **changes):
    """Train the tiny recipe in two processes; return the status and messages of each."""
    return forks.run_together(
        "train", write_tiny(folder, name, **changes), *arguments, log=folder / f"{name}.txt", hooks=hooks
    )


def alike(folder, one, other):
    """Check that two runs have the same losses and weights, up to rounding."""
    for first, second in zip(metrics(folder / one), metrics(folder / other), strict=True):
        assert first.keys() == second.keys()
        for name in first:
            assert bool(first[name]) == bool(second[name])
            if first[name]:
                assert float(first[name]) == pytest.approx(float(second[name]), rel=1e-4, abs=1e-4), name
    first, second = weights(folder / one), weights(folder / other)
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"training__gradient_accumulation_steps": 2, "regularize__gradient_clipping": 0.5},
        # the second process has no rows, which must not halve the penalty
        {"training__gradient_accumulation_steps": 1, "data__batch_size": 1, "regularize__l2_penalty": 0.1},
        {"training__fsdp": True, "training__gradient_accumulation_steps": 2, "regularize__gradient_clipping": 0.5},
        {"training__gradient_accumulation_steps": 1, "data__batch_size": 3},
        {"training__gradient_accumulation_steps": 3, "data__batch_size": 1},
    ],
    ids=["accumulated", "rows for one", "sharded", "uneven", "accumulated rows for one"],
)
def test_two_processes_equal_one(folder, changes, request):
    name = request.node.callspec.id.replace(" ", "-")
    train(tiny(folder, f"{name}-1", **WITHOUT_CHANCE, **changes))
    ends = together(folder, f"{name}-2", **WITHOUT_CHANCE, **changes)
    assert [status for status, _ in ends] == [0, 0], ends
    alike(folder, f"{name}-1", f"{name}-2")
    assert "validation loss" in ends[0][1]
    assert "clearhead" not in ends[1][1]
    assert (folder / f"{name}-2.txt-0.out").read_text().count(" weights: step") == 1
    assert (folder / f"{name}-2.txt-1.out").read_text() == ""
    assert len(list((folder / f"{name}-2" / "events").iterdir())) == 1


@pytest.mark.slow
def test_each_process_learns_from_the_top_tokens_of_its_rows(folder):
    teacher = str(train(tiny(folder, "teacher")).folder)
    changes = WITHOUT_CHANCE | {
        "tokenizer": {"path": teacher},
        "regularize__distillation": {"teacher": teacher, "top_tokens": 4, "temperature": 1.0, "weight": 1.0},
    }
    train(tiny(folder, "student-1", **changes))
    ends = together(folder, "student-2", **changes)
    assert [status for status, _ in ends] == [0, 0], ends
    alike(folder, "student-1", "student-2")


@pytest.mark.slow
def test_two_resumed_processes_are_bit_identical(folder):
    assert [status for status, _ in together(folder, "pair")] == [0, 0]
    hooks = [partial(forks.before_batch, 11), partial(forks.before_batch, 11)]
    ends = together(folder, "killed", hooks=hooks)
    assert [status for status, _ in ends] == [KILLED, KILLED], ends
    ends = together(folder, "killed", "--resume", hooks=[partial(forks.send_signal_at_batch, 20, signal.SIGTERM), None])
    # a signal to one process stops both, after the same step
    assert [status for status, _ in ends] == [130, 130], ends
    assert "stopped at step 11; continue with --resume" in ends[0][1]
    ends = together(folder, "killed", "--resume")
    assert [status for status, _ in ends] == [0, 0], ends
    same(outcome(folder / "killed"), outcome(folder / "pair"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [((2, False), (1, False)), ((1, False), (3, False)), ((2, True), (1, False)), ((1, False), (2, True))],
    ids=["fewer", "more", "from shards", "to shards"],
)
def test_checkpoint_resumes_with_any_number_of_processes(folder, first, then, request):
    name = request.node.callspec.id.replace(" ", "-")
    train(tiny(folder, f"{name}-whole", **WITHOUT_CHANCE))
    stop = [partial(forks.send_signal_at_batch, 5, signal.SIGTERM)] + [None] * (first[0] - 1)
    ends = together(folder, name, hooks=stop, training__fsdp=first[1], **WITHOUT_CHANCE)
    assert [status for status, _ in ends] == [130] * first[0], ends
    ends = together(folder, name, "--resume", hooks=[None] * then[0], training__fsdp=then[1], **WITHOUT_CHANCE)
    assert [status for status, _ in ends] == [0] * then[0], ends
    alike(folder, f"{name}-whole", name)


def test_regularizers_that_fsdp_does_not_support_are_refused(folder):
    for name, value in (("layer_drop", 0.1), ("l2_penalty", 0.1)):
        with pytest.raises(ValueError, match=f"training.fsdp: is incompatible with regularize.{name}"):
            train(tiny(folder, "never", training__fsdp=True, **{f"regularize__{name}": value}))


@pytest.mark.slow
def test_each_process_skips_its_own_layers(folder):
    changes = {"regularize__layer_drop": 0.5, "model__num_layers": 2, "model__decoder_num_layers": 2}
    ends = together(folder, "drop", training__steps=6, **changes)
    assert [status for status, _ in ends] == [0, 0], ends
    assert losses(folder / "drop")[-1] < losses(folder / "drop")[0]


@pytest.mark.slow
def test_torchrun_starts_the_command(folder):
    recipe = write_tiny(folder, "torchrun", **WITHOUT_CHANCE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--no-python"]
    command += [Path(sys.executable).with_name("clearhead"), "train", recipe]
    done = subprocess.run(command, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().count(" weights: step") == 1
    train(tiny(folder, "alone", **WITHOUT_CHANCE))
    alike(folder, "alone", "torchrun")


@pytest.mark.slow
def test_one_command_on_each_of_two_machines(folder):
    recipe = write_tiny(folder, "machines", **WITHOUT_CHANCE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port), "--no-python"]
    started = [
        subprocess.Popen(
            [*command, "--node-rank", rank, Path(sys.executable).with_name("clearhead"), "train", recipe],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    ends = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], ends
    assert [out.count(" weights: step") for out, _ in ends] == [1, 0]
    train(tiny(folder, "one", **WITHOUT_CHANCE))
    alike(folder, "one", "machines")


def test_backend_on_cpus_is_gloo(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [ProcessGroup(device).backend for device in ("cpu", "mps", "cuda")] == ["gloo", "gloo", "nccl"]


def test_rank_one_reports_that_rank_zero_has_exited(folder):
    (first, log), (second, other) = together(folder, "nowhere", data__train=str(folder / "nowhere.tsv"))
    assert (first, second) == (1, 1)
    assert re.search(r"^clearhead: error: \S+nowhere\.yaml: data: no such file: ", log, re.MULTILINE)
    assert "clearhead: error: the process of rank 0 has exited; its message explains why" in other
    assert "Traceback" not in other


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["abc", "-3", "1.0", "", "²"])
def test_variables_that_are_no_numbers_are_named(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"the environment variable {name} is {value!r}; expected a number"):
        ProcessGroup("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK"])
def test_command_names_a_variable_that_is_no_number(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "x")
    (tmp_path / "recipe.yaml").write_text("task: text-to-text\n")
    line = refused("train", tmp_path / "recipe.yaml", run=started)
    assert f"the environment variable {name} is 'x'" in line
