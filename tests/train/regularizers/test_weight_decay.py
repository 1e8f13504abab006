"""Weight decay and the L2 penalty."""

import copy

import torch
from support.data.training_data import batch_of, module_of, small_seq2seq

from clearhead.equations import losses
from clearhead.layers.norm import LayerNorm, RMSNorm
from clearhead.train.data.dataloader import MicroBatch
from clearhead.train.loop.optimizer import create_optimizer
from clearhead.train.recipe.sections import OptimizerSection
from clearhead.train.regularizers.weight_decay import decayed_parameters


def _one_step(model, decay, penalty, steps=1, rate=0.1):
    optimizer = create_optimizer(model, OptimizerSection(learning_rate=rate), decay)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = sum(parameter.sum() * 0.0 for parameter in model.parameters())
        if penalty:
            loss = loss + losses.l2_penalty(decayed_parameters(model), penalty)
        loss.backward()
        optimizer.step()


def test_weight_decay_shrinks_matrices_and_leaves_biases_and_norms():
    model = small_seq2seq(layer_drop=0.0)
    before = copy.deepcopy(dict(model.named_parameters()))
    _one_step(model, decay=0.02, penalty=0.0)
    norms = {
        id(p) for module in model.modules() if isinstance(module, LayerNorm | RMSNorm) for p in module.parameters()
    }
    kinds = set()
    for name, parameter in model.named_parameters():
        excluded = id(parameter) in norms or name.endswith("bias")
        kinds.add(excluded)
        torch.testing.assert_close(parameter, before[name] * (1.0 if excluded else 1 - 0.1 * 0.02), rtol=1e-6, atol=0)
    assert kinds == {True, False}


def test_gradient_of_the_penalty_is_lambda_w(data):
    gradients = []
    for penalty in (0.0, 0.3):
        module, examples = module_of(data, l2_penalty=penalty)
        part = MicroBatch(
            batch_of(module, examples), num_tokens=100, loss_divisor=100, index=0, step=1, epoch=0, rows=()
        )
        module.training_step(part, 0).backward()
        gradients.append({name: parameter.grad for name, parameter in module.model.named_parameters()})
    for name, parameter in module.model.named_parameters():
        weight = 0.3 * parameter.detach() if parameter.ndim > 1 else torch.zeros_like(parameter)
        torch.testing.assert_close(gradients[1][name] - gradients[0][name], weight, rtol=1e-3, atol=1e-6)


def test_adam_normalizes_the_penalty_but_not_the_decay():
    decayed, punished = small_seq2seq(), small_seq2seq()
    punished.load_state_dict(decayed.state_dict())
    before = [matrix.detach().clone() for matrix in decayed_parameters(decayed)]
    _one_step(decayed, decay=1e-3, penalty=0.0)
    _one_step(punished, decay=0.0, penalty=1e-3)
    for matrix, penalized, old in zip(decayed_parameters(decayed), decayed_parameters(punished), before, strict=True):
        torch.testing.assert_close(matrix, old * (1 - 0.1 * 1e-3))
        large = old.abs() > 1e-3  # ε counts where the gradient λ w is small
        torch.testing.assert_close(penalized[large], (old - 0.1 * old.sign())[large], rtol=0, atol=1e-3)


def test_plain_gradient_descent_makes_penalty_and_decay_equal():
    torch.manual_seed(0)
    start, data = torch.randn(4, 3), torch.randn(8, 4)
    rate, strength = 0.1, 0.2
    punished = start.clone().requires_grad_()
    decayed = start.clone().requires_grad_()
    for _ in range(5):
        (gradient,) = torch.autograd.grad(
            (data @ punished).square().mean() + losses.l2_penalty([punished], strength), punished
        )
        punished = (punished - rate * gradient).detach().requires_grad_()
        (gradient,) = torch.autograd.grad((data @ decayed).square().mean(), decayed)
        decayed = (decayed * (1 - rate * strength) - rate * gradient).detach().requires_grad_()
    torch.testing.assert_close(punished, decayed)
