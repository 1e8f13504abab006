"""Updates, checkpoints, selection of the best weights, early stopping and the metrics log."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.data.training import losses, metrics, tiny, weights
from torch import nn

from clearhead.train import trainer as running
from clearhead.train.loop.checkpointing import CheckpointManager
from clearhead.train.loop.metrics_logger import MetricsLogger, read_metrics
from clearhead.train.regularizers.early_stopping import is_better
from clearhead.train.trainer import train

pytestmark = pytest.mark.usefixtures("one_thread")

WITHOUT_CHANCE = {"regularize__dropout": 0, "regularize__augmentation": False, "optimizer__eps": 1e-5}


def steps(run):
    return [int(path.stem.removeprefix("step-")) for path in sorted((run / "checkpoints").glob("step-*"))]


def validated(monkeypatch, scores):
    """Replace validation with a sequence of losses."""
    results = iter(scores)
    monkeypatch.setattr(running, "build_validator", lambda *rest: lambda: {"loss": next(results)})


@pytest.mark.slow
def test_accumulated_batches_equal_one_large_batch(folder):
    changes = {**WITHOUT_CHANCE, "data__validation": None, "regularize__early_stopping": False, "training__epochs": 3}
    changes |= {"training__steps": None, "training__final_weights": "last", "data__batch_tokens": 10_000}
    train(tiny(folder, "large", **changes, training__gradient_accumulation_steps=1))
    train(tiny(folder, "small", **changes, training__gradient_accumulation_steps=8, data__batch_size=6))
    assert len(losses(folder / "large")) == len(losses(folder / "small")) == 3
    assert losses(folder / "small") == pytest.approx(losses(folder / "large"), rel=1e-5)
    one, other = weights(folder / "large"), weights(folder / "small")
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_bfloat16_keeps_weights_and_updates_in_float32(folder, monkeypatch):
    kinds, computed = set(), set()
    real = running.TrainingModule.configure_gradient_clipping

    def observed(module, optimizer, *rest, **options):
        for group in optimizer.param_groups:
            kinds.update(part.dtype for p in group["params"] if p.grad is not None for part in (p, p.grad))
        kinds.update(part.dtype for state in optimizer.state.values() for part in state.values() if part.dim())
        real(module, optimizer, *rest, **options)

    monkeypatch.setattr(running.TrainingModule, "configure_gradient_clipping", observed)
    original = nn.functional.linear
    monkeypatch.setattr(nn.functional, "linear", lambda *args: (r := original(*args), computed.add(r.dtype))[0])
    train(tiny(folder, "bfloat16", training__precision="bfloat16", training__steps=4))
    assert kinds == {torch.float32}
    assert torch.bfloat16 in computed
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in weights(folder / "bfloat16").values())


@pytest.mark.slow
@pytest.mark.parametrize("greatest", [0.01, 0.5, False])
def test_norm_of_an_update_is_clipped(folder, monkeypatch, greatest):
    norms = []

    def grads(optimizer):
        tensors = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))

    real = running.TrainingModule.configure_gradient_clipping

    def clipped(module, optimizer, *rest, **options):
        before = grads(optimizer)
        real(module, optimizer, *rest, **options)
        assert module.gradient_norm == pytest.approx(before, rel=1e-4)
        norms.append((before, grads(optimizer)))

    monkeypatch.setattr(running.TrainingModule, "configure_gradient_clipping", clipped)
    name = f"clipped-{greatest}"
    train(tiny(folder, name, regularize__gradient_clipping=greatest, training__steps=4))
    assert len(norms) == 4
    for before, after in norms:
        assert before > 0.5
        assert after == pytest.approx(min(before, greatest or math.inf), rel=1e-3)
    assert [float(row["gradient_norm"]) for row in metrics(folder / name) if row["loss"]] == pytest.approx(
        [before for before, _ in norms], rel=1e-4
    )


@pytest.mark.slow
def test_best_and_the_last_weights_are_kept(folder, monkeypatch):
    validated(monkeypatch, [5.0, 4.0, 3.0, 3.5, 3.4, 3.9, 9.0])
    changes = {
        "validation__every": 1,
        "training__steps": 6,
        "training__keep_last": 2,
        "training__final_weights": "best",
    }
    trained = train(tiny(folder, "best", **changes))
    assert steps(folder / "best") == [3, 5, 6]
    best = load_file(folder / "best" / "checkpoints" / "step-00000003.safetensors")
    model = weights(folder / "best")
    assert torch.equal(model["model.encoder.layers.0.fc1.weight"], best["encoder.layers.0.feedforward.inner.weight"])
    assert (trained.weights, trained.weights_of, trained.step) == ("best", [3], 6)
    assert trained.scores == {"loss": 9.0}  # computed again with the weights in the folder


@pytest.mark.slow
def test_best_checkpoint_of_a_metric_to_maximize(folder):
    changes = {"validation__metrics": ["chrf"], "validation__monitor": "chrf", "validation__max_new_tokens": 5}
    train(tiny(folder, "chrf", training__steps=6, training__final_weights="best", **changes))
    validated = {int(row["step"]): float(row["chrf"]) for row in metrics(folder / "chrf") if row["chrf"]}
    highest = max(validated.values())
    assert min(step for step, value in validated.items() if value == highest) in steps(folder / "chrf")
    with pytest.raises(ValueError, match="validation.monitor is 'chrv', which is not computed; did you mean 'chrf'"):
        train(tiny(folder, "chrv", **(changes | {"validation__monitor": "chrv"})))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "patience", "min_delta", "stop"),
    [
        ([5.0, 4.0, 4.0, 4.0, 3.0, 2.0], 2, 0.0, 4),
        ([5.0, 4.0, 4.0, 3.9, 4.0, 4.0, 4.0], 3, 0.0, 7),
        # each improves by less than min_delta, so 5.0 stays the value to beat until the improvements add up
        ([5.0, 4.96, 4.93, 4.91, 4.85, 4.8, 4.79, 4.78, 4.76], 4, 0.1, 9),
        ([5.0, 4.96, 4.93, 4.91, 4.85], 3, 0.1, 4),
        ([math.nan, 5.0, math.nan, math.nan], 2, 0.0, 4),
    ],
)
def test_early_stopping_counts_validations_without_improvement(
    folder, monkeypatch, request, scores, patience, min_delta, stop
):
    validated(monkeypatch, scores)
    stopping = {"patience": patience, "min_delta": min_delta}
    changes = {"validation__every": 1, "regularize__early_stopping": stopping, "training__final_weights": "last"}
    trained = train(tiny(folder, f"early-{len(scores)}-{patience}-{min_delta}", training__steps=20, **changes))
    assert (trained.step, trained.stopped_early, trained.finished) == (stop, True, True)


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 1))
def test_improvement_by_direction_of_the_metric(new, old, delta):
    assert is_better("loss", new, old, delta) == (new < old - delta)
    assert is_better("bleu", new, old, delta) == (new > old + delta)
    assert is_better("bleu", new, math.nan)
    assert not is_better("bleu", math.nan, old)
    assert not is_better("loss", math.nan, math.nan)


@pytest.mark.slow
@given(st.integers(1, 4), st.integers(1, 4), st.sets(st.integers(1, 12)), st.none() | st.integers(1, 12))
def test_checkpoints_keep_the_last_the_best_and_the_temporary_step(tmp_path_factory, keep, width, best, stop):
    run = tmp_path_factory.mktemp("checkpoints")
    checkpoints = CheckpointManager(run, keep)
    models = {}
    for step in range(1, 13):
        models[step] = nn.Linear(width, 2)
        temporary = step == stop
        checkpoints.save(models[step], step, best=step in best and not temporary, temporary=temporary)
        (run / "checkpoints" / ".state.ckpt.abc.part").write_bytes(b"half")
        (run / ".metrics.csv.abc.part").write_bytes(b"half")
        checkpoints.prune()
    regular = [step for step in range(1, 13) if step != stop]
    expected = {*regular[-keep:], *([stop] if stop else []), *([max(best - {stop})] if best - {stop} else [])}
    assert steps(run) == sorted(expected)
    assert list(run.rglob(".*.part")) == []
    assert checkpoints.last == regular[-keep:]
    assert checkpoints.latest() == [12]
    mean = nn.Linear(width, 2)
    checkpoints.load(mean, checkpoints.last)
    every = torch.stack([models[step].weight.detach().double() for step in checkpoints.last])
    torch.testing.assert_close(mean.weight.detach(), every.mean(0).float(), rtol=0, atol=0)


@pytest.mark.slow
def test_resumed_metrics_log_equals_an_uninterrupted_one(tmp_path):
    values = {"epoch": 0, "loss": 0.1 + 0.2, "learning_rate": 1e-9, "gradient_norm": 1e300, "tokens_per_second": 3.0}

    def write(path, numbers, begun):
        path.mkdir(exist_ok=True)
        metrics_logger = MetricsLogger(path, ["bleu"], begun)
        for step in numbers:
            metrics_logger.log(step, values)
            metrics_logger.log(step, {"validation_loss": 1 / 3, "bleu": float(step)})
        return metrics_logger

    write(tmp_path / "whole", range(1, 7), 0).close()
    write(tmp_path / "parts", range(1, 6), 0)  # killed: never closed
    with (tmp_path / "parts" / "metrics.csv").open("a") as file:
        file.write("6,0,0.1")  # in the middle of a line
    write(tmp_path / "parts", range(4, 7), 3).close()
    written = (tmp_path / "parts" / "metrics.csv").read_bytes()
    assert written == (tmp_path / "whole" / "metrics.csv").read_bytes()
    cut = written[: written.rindex(b"6.0") + 1]  # of 6.0 the 6: a number, but not the one that was written
    (tmp_path / "parts" / "metrics.csv").write_bytes(cut)
    assert len(read_metrics(tmp_path / "parts" / "metrics.csv")) == 11


@pytest.mark.parametrize("damage", [None, b"", b"step,loss\r\n1,9.0\r\n", b"\xff", b"step\r\nx\r\n"])
def test_rows_of_a_resumed_run_do_not_depend_on_the_file(tmp_path, damage):
    metrics_logger = MetricsLogger(tmp_path, [], 0)
    values = {"epoch": 0, "loss": 0.1 + 0.2, "learning_rate": 1e-9, "gradient_norm": 1.0, "tokens_per_second": 3.0}
    for step in (1, 2, 3):
        metrics_logger.log(step, values)
        metrics_logger.log(step, {"validation_loss": 1 / step})
    path, rows, complete = tmp_path / "metrics.csv", metrics_logger.rows_without_speed(), metrics_logger.rows
    if damage is not None:
        path.write_bytes(damage)
    resumed = MetricsLogger(tmp_path, [], 2, rows)
    assert resumed.rows_without_speed() == rows[:4]
    assert damage is not None or resumed.rows == complete[:4]  # with the speed
