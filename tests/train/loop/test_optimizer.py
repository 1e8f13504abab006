"""Muon: its update, which weights it trains, its state, and recipes that it does not suit."""

import copy
import shutil
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import forks
from support.data.training import KILLED, outcome, same, write_tiny
from support.data.training_data import small_seq2seq

from clearhead.train.loop.optimizer import MuonAndAdamW, create_optimizer, matrix_blocks, orthogonalize
from clearhead.train.recipe.load import read_recipe
from clearhead.train.recipe.sections import OptimizerSection

MUON = OptimizerSection(name="muon", learning_rate=0.01)


def step(model, optimizer, seed):
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=5),
    st.integers(0, 2**16),
    st.floats(-6, 6),
)
def test_orthogonalized_matrices_have_singular_values_near_1_and_the_same_directions(shapes, seed, scale):
    torch.manual_seed(seed)
    frames = []
    for rows, columns in shapes:
        u, _, v = torch.linalg.svd(torch.randn(rows, columns, dtype=torch.float64), full_matrices=False)
        frames.append((u, torch.rand(min(rows, columns), dtype=torch.float64) + 0.5, v))
    matrices = [10.0**scale * (u * s) @ v for u, s, v in frames]
    for (u, _, v), result in zip(frames, orthogonalize(matrices), strict=True):
        inner = u.T @ result @ v.T
        values = inner.diag()
        assert ((values > 0.6) & (values < 1.3)).all()
        torch.testing.assert_close(inner, values.diag(), rtol=0, atol=1e-6)


def test_bfloat16_gives_the_same_directions():
    torch.manual_seed(0)
    matrices = [torch.randn(32, 48), torch.randn(16, 16)]
    for exact, rounded in zip(orthogonalize(matrices), orthogonalize(matrices, torch.bfloat16), strict=True):
        assert rounded.dtype == torch.float32
        torch.testing.assert_close(rounded, exact, rtol=0, atol=0.03)


def test_update_equals_torch_muon():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(6, 4))
    other = torch.nn.Parameter(weight.detach().clone())
    own = MuonAndAdamW({weight: [6]}, [], matrix_lr=0.1, matrix_weight_decay=0.3)
    theirs = torch.optim.Muon([other], lr=0.1, weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for number in range(3):
        torch.manual_seed(number)
        weight.grad = torch.randn(6, 4)
        other.grad = weight.grad.clone()
        own.step()
        theirs.step()
    # theirs iterates in bfloat16, and averages the gradient into the momentum, which changes only the scale
    torch.testing.assert_close(weight, other, rtol=0, atol=0.01)


def test_projections_are_orthogonalized_one_by_one():
    model = small_seq2seq()
    blocks = dict(matrix_blocks(model))
    attention = model.decoder.layers[0].attention
    width = attention.out.weight.shape[0]
    assert blocks[attention.qkv.weight] == [width, width, width]
    assert blocks[model.decoder.layers[0].cross_attention.kv.weight] == [width, width]
    before = attention.qkv.weight.detach().clone()
    step(model, create_optimizer(model, MUON, 0.0), seed=1)
    change = attention.qkv.weight.detach() - before
    expected = torch.cat(orthogonalize(list(attention.qkv.weight.grad.split(width))))
    torch.testing.assert_close(change, -0.01 * 0.2 * width**0.5 * expected, rtol=1e-3, atol=1e-6)


def test_only_matrices_of_the_layers_are_muon_s():
    model = small_seq2seq()
    names = {name for name, parameter in model.named_parameters() if parameter in dict(matrix_blocks(model))}
    expected = {name for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2}
    assert names == expected
    adam = copy.deepcopy(model)
    step(model, create_optimizer(model, MUON, 0.1), seed=1)
    step(adam, create_optimizer(adam, OptimizerSection(learning_rate=0.01), 0.1), seed=1)
    theirs = dict(adam.named_parameters())
    assert {name for name, p in model.named_parameters() if not torch.equal(p, theirs[name])} == names


def test_state_is_saved_and_restored_exactly():
    model = small_seq2seq()
    optimizer = create_optimizer(model, MUON, 0.1)
    step(model, optimizer, seed=1)
    other = copy.deepcopy(model)
    restored = create_optimizer(other, MUON, 0.1)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in (2, 3):
        step(model, optimizer, seed)
        step(other, restored, seed)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_a_model_without_matrices_is_refused():
    model = small_seq2seq()
    for parameter in dict(matrix_blocks(model)):
        parameter.requires_grad_(False)
    with pytest.raises(
        ValueError, match=r"optimizer.name is muon, but no layer has a trained weight matrix; choose adamw"
    ):
        create_optimizer(model, MUON, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["optimizer.name=adamw", "optimizer.matrix_learning_rate=0.1"],
            "matrix_learning_rate is Muon's, but name is adamw",
        ),
        (["optimizer.name=muon", "training.fsdp=true"], "incompatible with optimizer.name muon"),
        (["optimizer.name=moun"], "optimizer.name"),
    ],
)
def test_recipes_that_do_not_suit_muon(changes, message):
    with pytest.raises(ValueError, match=message):
        read_recipe("recipes/tiny/translation.yaml", changes)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_resume_after_two_sigkills(folder):
    def run(name, hooks):
        recipe = write_tiny(folder, name, optimizer__name="muon")
        shutil.rmtree(folder / name, ignore_errors=True)
        for number, hook in enumerate([*hooks, None]):
            resume = ["--resume"] if number else []
            status, log = forks.run("train", recipe, *resume, log=folder / f"{name}.txt", hook=hook)
            assert status == (KILLED if hook else 0), log
        return outcome(folder / name)

    same(run("muon-killed", [partial(forks.before_batch, 9), partial(forks.before_state, 9)]), run("muon", []))
