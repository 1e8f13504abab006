"""The teachers' most probable tokens: their values, their reuse, and the training on them."""

import errno
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.data.training import outcome, same, trained_until
from support.data.training_data import batch_of, kl, logits_of, predict, ready, recipe, save_teacher, write_data
from torch.nn import functional

from clearhead.train.data import top_tokens
from clearhead.train.data.dataset import TokenizedDataset
from clearhead.train.data.loaders import build_datasets
from clearhead.train.data.top_tokens import build_top_tokens
from clearhead.train.distillation import distill
from clearhead.train.recipe.load import parse_recipe
from clearhead.train.regularizers.distillation import top_tokens_loss
from clearhead.train.trainer import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def teachers(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers")
    return [str(save_teacher(data, folder / str(seed), seed=seed)) for seed in (9, 10)]


@pytest.fixture(scope="module")
def student(data, teachers, tmp_path_factory):
    """A module that learns from two teachers, and the dataset of its recipe."""
    spec = recipe(data, "text-to-text", regularize={"distillation": {"teacher": teachers, "weight": 0.7}})
    module, _ = ready(spec, data / "run")
    return module, build_datasets(spec, module.task, tmp_path_factory.mktemp("run"))[0]


def stored(student, folder, num_tokens=4, batch_tokens=200):
    module, dataset = student
    return build_top_tokens(
        folder / "top-tokens",
        *(module.task, module._teachers, dataset),
        num_tokens=num_tokens,
        batch_tokens=batch_tokens,
        device=torch.device("cpu"),
    )


def average_of_teachers(module, batch):
    sides = [module.task.predict(teacher, batch, mask_padding=True) for teacher in module._teachers]
    return torch.stack([functional.softmax(logits_of(side).double(), dim=-1) for side in sides]).mean(dim=0)


@pytest.mark.parametrize(("window", "logits"), [(4096, 2**24), (5, 1500)])
def test_tokens_of_any_rows_are_the_most_probable_ones(student, tmp_path, monkeypatch, window, logits):
    monkeypatch.setattr(top_tokens, "_WINDOW", window)
    monkeypatch.setattr(top_tokens, "_LOGITS", logits)
    module, dataset = student
    tokens = stored(student, tmp_path)
    rows = random.Random(1).sample(range(len(dataset)), 11)
    expected = average_of_teachers(module, batch_of(module, [dataset[row] for row in rows])).topk(4)
    found = tokens.of_rows(rows)
    probs = expected.values / expected.values.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(found.probs_NK.double(), probs, rtol=1e-4, atol=1e-5)
    # two tokens may be equally probable
    apart = (probs[:, :-1] - probs[:, 1:] > 1e-4).all(dim=-1)
    assert apart.float().mean() > 0.5
    assert torch.equal(found.ids_NK[apart], expected.indices[apart])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_with_all_tokens_the_loss_is_that_of_distillation(student, tmp_path, smoothing, weight):
    module, dataset = student
    rows = list(range(9))
    batch = batch_of(module, [dataset[row] for row in rows])
    side = predict(module, batch)
    tokens = stored(student, tmp_path, len(side.output.tokens.weight)).of_rows(rows)
    own = functional.cross_entropy(logits_of(side).double(), side.targets_N, reduction="sum", label_smoothing=smoothing)
    divergence = kl(average_of_teachers(module, batch).clamp_min(1e-300).log(), logits_of(side))
    assert divergence > 1e-3
    loss = top_tokens_loss(side, tokens, smoothing, weight)
    torch.testing.assert_close(loss.double(), (1 - weight) * own + weight * divergence, rtol=1e-4, atol=1e-4)


@given(st.integers(1, 8))
def test_more_tokens_have_the_same_first_ones(student, tmp_path_factory, count):
    folder = tmp_path_factory.mktemp("more")
    fewer, more = (stored(student, folder, number).of_rows(range(5)) for number in (count, count + 1))
    ratio = more.probs_NK[:, :count] / more.probs_NK[:, :count].sum(dim=-1, keepdim=True)
    torch.testing.assert_close(fewer.probs_NK, ratio, rtol=1e-4, atol=1e-5)
    assert torch.equal(fewer.ids_NK, more.ids_NK[:, :count])


def test_stored_tokens_are_computed_again_only_if_something_changed(student, tmp_path, monkeypatch):
    module, _ = student
    computed = []
    predict_one = type(module.task).predict
    monkeypatch.setattr(
        type(module.task), "predict", lambda *args, **kw: computed.append(1) or predict_one(*args, **kw)
    )

    def runs():
        computed.clear()
        stored(student, tmp_path)
        return len(computed) > 0

    assert [runs(), runs()] == [True, False]
    stored(student, tmp_path, num_tokens=3)
    assert [runs(), runs()] == [True, False]
    (tmp_path / "top-tokens" / "probs.bin").write_bytes(b"damaged")
    assert [runs(), runs()] == [True, False]
    weight = next(module._teachers[1].parameters())
    with torch.no_grad():
        weight.neg_()
    assert [runs(), runs()] == [True, False]
    with torch.no_grad():
        weight.neg_()


def test_an_error_leaves_no_files(student, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(top_tokens, "_append", full)
    with pytest.raises(OSError, match="No space left on device"):
        stored(student, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_conflicts_name_the_key(data):
    base = recipe(data, "text-to-text").model_dump(mode="json")

    def refusal(distillation, base=base, **sections):
        settings = {"distillation": {"teacher": "a", "top_tokens": 4, "temperature": 1.0} | distillation}
        regularize = {"dropout": 0.1} | settings | sections.pop("regularize", {})
        with pytest.raises(ValueError, match=r"regularize\.distillation\.top_tokens: ") as error:
            parse_recipe(base | {"regularize": regularize} | sections, "recipe")
        return str(error.value)

    assert "requires a temperature of 1; got 2" in refusal({"temperature": 2.0})
    assert "stores no hidden states; set hidden_weight to 0" in refusal({"hidden_weight": 1.0})
    assert "set sequence_level to false" in refusal({"sequence_level": True})
    assert "remove objective.sampled_softmax" in refusal({}, objective={"sampled_softmax": 50})
    assert "set regularize.r_drop to 0" in refusal({}, regularize={"r_drop": 1.0})
    reversed_pairs = {"augmentation": {"bidirectional": 0.3}}
    assert "set regularize.augmentation.bidirectional to 0" in refusal({}, regularize=reversed_pairs)
    classes = recipe(data, "classification").model_dump(mode="json")
    assert "requires a task that generates text, not classification" in refusal({}, classes)


def with_top_tokens(data, teachers, folder, count=4):
    spec = {"teacher": teachers, "top_tokens": count, "temperature": 1.0}
    sections = {"regularize": {"distillation": spec}, "validation": {"every": 1}}
    return recipe(data, "text-to-text", folder / "student", held_out=True, **sections)


def test_more_tokens_than_the_vocabulary_has_are_refused(data, teachers, tmp_path):
    with pytest.raises(ValueError, match=r"top_tokens is 1000000, but the vocabulary has \d+ tokens"):
        train(with_top_tokens(data, teachers, tmp_path, 10**6))


def test_resumed_student_has_the_same_weights(data, teachers, tmp_path, caplog):
    whole = with_top_tokens(data, teachers, tmp_path / "whole")
    assert distill(whole).finished
    assert len(TokenizedDataset(tmp_path / "whole" / "student" / "data" / "training")) == 32
    cut = with_top_tokens(data, teachers, tmp_path / "cut")
    trained_until(cut, lambda step: step == 2)
    caplog.clear()
    with caplog.at_level("INFO"):
        assert train(cut, resume=True).finished
    assert "most probable tokens" not in caplog.text
    same(outcome(whole.output), outcome(cut.output))
