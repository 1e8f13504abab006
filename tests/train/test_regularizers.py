"""Effect of each regularizer on the model, the optimizer and the loss."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.training_data import batch_of, ready, recipe, write_data
from torch.nn import functional

from clearhead.equations import losses
from clearhead.kernels import linear
from clearhead.layers.norm import LayerNorm, RMSNorm
from clearhead.models.seq2seq import Seq2Seq
from clearhead.train.data.dataloader import MicroBatch, TrainingDataLoader
from clearhead.train.data.loaders import build_datasets, build_validator
from clearhead.train.data.sampler import TokenBatchSampler
from clearhead.train.recipe.sections import OptimizerSection
from clearhead.train.regularizers import REGULARIZERS, check_order
from clearhead.train.regularizers.distillation import distillation_loss
from clearhead.train.regularizers.weight_decay import create_optimizer, decayed_parameters
from clearhead.train.tasks.predictions import task_loss

PLACES = ("attention", "feed_forward", "residual", "embedding")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def module_of(data, task="text-to-text", *, model=None, **regularizers):
    return ready(recipe(data, task, regularize=regularizers, model=model or {}), data / "run")


def logits_of(prediction):
    return prediction.output(prediction.hidden_ND) if hasattr(prediction, "hidden_ND") else prediction.logits_NC


def predict(module, batch, mask_padding=True):
    return module.task.predict(module.model, batch, mask_padding=mask_padding)


def kl(one, other):
    """KL(softmax(one) ‖ softmax(other)), row by row and entry by entry."""
    log_p, log_q = torch.log_softmax(one.double(), -1), torch.log_softmax(other.double(), -1)
    return (log_p.exp() * (log_p - log_q)).sum()


# order


def test_regularizers_that_replace_the_loss_come_first_among_loss_hooks():
    names = [entry.name for entry in REGULARIZERS if entry.loss is not None]
    assert {entry.name for entry in REGULARIZERS if entry.replaces_loss} == {"label_smoothing", "r_drop"}
    assert names[:2] == ["label_smoothing", "r_drop"]
    with pytest.raises(ValueError, match="r_drop replaces the loss and drops the term of distillation; put it before"):
        check_order(REGULARIZERS[::-1])


# dropout


def _probes(model):
    """Return for each position of dropout the functions that run it alone."""
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    ids = torch.randint(5, 200, (2, 5))
    coder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    return {
        "attention": [
            lambda: coder.attention(x),
            lambda: decoder.attention(x),
            lambda: decoder.cross_attention(x, memory),
        ],
        "feed_forward": [lambda: coder.feedforward(x), lambda: decoder.feedforward(x)],
        "residual": [
            lambda: coder.attention_residual(x, torch.sin),
            lambda: coder.feedforward_residual(x, torch.sin),
            lambda: decoder.attention_residual(x, torch.sin),
            lambda: decoder.cross_attention_residual(x, torch.sin),
            lambda: decoder.feedforward_residual(x, torch.sin),
        ],
        "embedding": [lambda: model.source_embedding(ids), lambda: model.target_embedding(ids)],
    }


@pytest.mark.parametrize("position", PLACES)
@pytest.mark.parametrize("layout", ["marian", "bart", "t5"])
def test_dropout_applies_only_at_its_position(data, position, layout):
    module, _ = module_of(data, model={"architecture": layout}, dropout={position: 0.5})
    for name, probes in _probes(module.model).items():
        for probe in probes:
            assert torch.equal(probe(), probe()) == (name != position), name


@pytest.mark.parametrize(
    "task", ["text-to-text", "masked-language-model", "classification", "span-answers", "sentence-embeddings"]
)
def test_without_dropout_two_passes_are_equal(data, task):
    module, examples = module_of(data, task)
    batch = batch_of(module, examples)
    assert module.model.training
    assert torch.equal(module._loss(batch), module._loss(batch))


def test_head_has_the_residual_rate(data):
    module, _ = module_of(data, "classification", dropout={"residual": 0.5})
    hidden = torch.randn(3, 16)
    assert not torch.equal(module.model.head(hidden), module.model.head(hidden))


@given(rate=st.floats(0.05, 0.95))
def test_dropout_drops_its_share_and_scales_the_rest(data, rate):
    model = _small(drop_prob=0.0, embedding_drop_prob=rate)
    ids = torch.randint(0, 50, (20, 20))
    whole = model.eval().source_embedding(ids)
    dropped = model.train().source_embedding(ids)
    assert abs((dropped == 0).float().mean().item() - rate) < 0.05
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / (1 - rate))


def _small(**changes):
    from clearhead import Seq2SeqConfig

    sizes = {"vocab_size": 50, "d_model": 16, "ffn_hidden": 32, "num_heads": 2, "num_layers": 3}
    return Seq2Seq(Seq2SeqConfig(**(sizes | changes)))


# attention masking


def _with_padding(batch, name, keep, value):
    changed = batch[name].clone()
    changed[~batch[keep]] = value
    return replace(batch, tensors={**batch.tensors, name: changed})


@pytest.mark.parametrize(
    ("task", "name", "keep"),
    [
        ("text-to-text", "source", "source_keep"),
        ("masked-language-model", "text", "keep"),
        ("classification", "text", "keep"),
        ("span-answers", "text", "keep"),
        ("sentence-embeddings", "first", "first_keep"),
    ],
)
@pytest.mark.parametrize("masking", [True, False])
def test_padding_matters_only_without_attention_masking(data, task, name, keep, masking):
    module, examples = module_of(data, task, attention_masking=masking)
    batch = batch_of(module, examples)
    assert not batch[keep].all()
    other = _with_padding(batch, name, keep, 17)
    same = torch.allclose(module._loss(batch), module._loss(other), rtol=1e-6)
    assert same == masking


@pytest.mark.parametrize("masking", [True, False])
def test_later_target_tokens_do_not_change_the_result(data, masking):
    module, examples = module_of(data, attention_masking=masking)
    batch = batch_of(module, examples)
    decoder_input = batch["decoder_input"].clone()
    decoder_input[:, 3:] = 17
    one = module.task.predict(module.model, batch, mask_padding=masking).hidden_ND
    other = replace(batch, tensors={**batch.tensors, "decoder_input": decoder_input})
    two = module.task.predict(module.model, other, mask_padding=masking).hidden_ND
    places = torch.arange(decoder_input.shape[1]).expand_as(decoder_input)[batch["target_keep"]]
    torch.testing.assert_close(one[places < 3], two[places < 3])
    assert not torch.allclose(one[places >= 3], two[places >= 3])


def test_teacher_never_sees_padding(data, tmp_path):
    folder = _teacher(data, tmp_path)
    spec = {"teacher": str(folder), "weight": 1.0}
    module, examples = module_of(data, attention_masking=False, distillation=spec)
    batch = batch_of(module, examples)
    student = predict(module, batch, mask_padding=False)
    expected = module.task.predict(module._teacher[0], batch, mask_padding=True)
    torch.testing.assert_close(module._loss(batch), distillation_loss(student, expected, 2.0))


# weight decay and the penalty


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
    model = _small(layer_drop=0.0)
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
    decayed, punished = _small(), _small()
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


# layer norm


@pytest.mark.parametrize("task", ["text-to-text", "masked-language-model", "classification"])
def test_layer_norm_false_removes_all_norms(data, task):
    outputs = []
    for on in (True, False):
        module, examples = module_of(data, task, layer_norm=on)
        norms = [module for module in module.model.modules() if isinstance(module, LayerNorm | RMSNorm)]
        assert bool(norms) == on
        outputs.append(module._loss(batch_of(module, examples)))
    assert not torch.allclose(*outputs)


def test_residual_without_norm_is_a_sum(data):
    module, _ = module_of(data, layer_norm=False)
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(module.model.encoder.layers[0].attention_residual(x, torch.sin), x + torch.sin(x))


# label smoothing


@pytest.mark.parametrize("task", ["text-to-text", "masked-language-model", "classification", "span-answers"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_the_formula(data, task, smoothing):
    module, examples = module_of(data, task, label_smoothing=smoothing)
    batch = batch_of(module, examples)
    prediction = predict(module, batch)
    log_p = torch.log_softmax(logits_of(prediction).double(), -1)
    # span logits cover the longest text of the batch; padding has probability 0
    expected = (
        functional.one_hot(prediction.targets_N, log_p.shape[1]).double() * (1 - smoothing) + smoothing / log_p.shape[1]
    )
    torch.testing.assert_close(module._loss(batch).double(), -(expected * log_p).sum(), rtol=1e-5, atol=1e-4)


# R-Drop


@pytest.mark.parametrize("task", ["text-to-text", "masked-language-model", "classification", "span-answers"])
def test_r_drop_is_the_mean_loss_of_two_passes_and_their_divergence(data, task):
    module, examples = module_of(data, task, r_drop=3.0, dropout=0.3)
    batch = batch_of(module, examples)
    torch.manual_seed(5)
    loss = module._loss(batch)
    torch.manual_seed(5)
    one, two = predict(module, batch), predict(module, batch)
    losses = [
        functional.cross_entropy(logits_of(prediction).double(), prediction.targets_N, reduction="sum")
        for prediction in (one, two)
    ]
    divergence = (kl(logits_of(one), logits_of(two)) + kl(logits_of(two), logits_of(one))) / 2
    assert divergence > 1e-4
    torch.testing.assert_close(loss.double(), sum(losses) / 2 + 3.0 * divergence, rtol=1e-4, atol=1e-4)


def test_r_drop_is_zero_for_equal_passes(data):
    module, examples = module_of(data, r_drop=3.0, dropout=0.3)
    batch = batch_of(module, examples)
    module.model.eval()
    torch.testing.assert_close(module._loss(batch), task_loss(predict(module, batch)))


# distillation


def _teacher(data, folder, task="text-to-text", **model):
    """Save a model from another seed, with weights large enough to differ."""
    module, _ = ready(recipe(data, task, model=model, seed=9), data / "run")
    with torch.no_grad():
        for parameter in module.model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    module.task.save(folder / "teacher")
    return folder / "teacher"


@pytest.mark.parametrize("task", ["text-to-text", "masked-language-model", "classification", "span-answers"])
@pytest.mark.parametrize(("weight", "temperature"), [(0.0, 2.0), (0.3, 2.0), (1.0, 1.0)])
def test_distillation_is_the_formula(data, tmp_path, task, weight, temperature):
    spec = {"teacher": str(_teacher(data, tmp_path, task)), "weight": weight, "temperature": temperature}
    module, examples = module_of(data, task, distillation=spec)
    batch = batch_of(module, examples)
    mine, theirs = predict(module, batch), module.task.predict(module._teacher[0], batch, mask_padding=True)
    own = functional.cross_entropy(logits_of(mine).double(), mine.targets_N, reduction="sum")
    divergence = temperature**2 * kl(logits_of(theirs) / temperature, logits_of(mine) / temperature)
    assert divergence > 1e-3
    expected = (1 - weight) * own + weight * divergence
    torch.testing.assert_close(module._loss(batch).double(), expected, rtol=1e-4, atol=1e-4)


def test_with_weight_one_a_student_predicts_as_its_teacher(data, tmp_path):
    module, examples = module_of(data, distillation={"teacher": str(_teacher(data, tmp_path)), "weight": 1.0})
    batch = batch_of(module, examples[:2])
    random_targets = torch.randint_like(batch["targets"], 5, 200)
    batch = replace(batch, tensors={**batch.tensors, "targets": random_targets})
    teacher = module._teacher[0]
    before = {name: parameter.clone() for name, parameter in teacher.named_parameters()}
    expected = logits_of(module.task.predict(teacher, batch, mask_padding=True))
    first = kl(expected, logits_of(predict(module, batch)))
    optimizer = torch.optim.Adam(module.model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        module._loss(batch).backward()
        optimizer.step()
    assert kl(expected, logits_of(predict(module, batch))) < 0.05 * first
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert all(torch.equal(parameter, before[name]) for name, parameter in teacher.named_parameters())
    assert not any(name.startswith("_teacher") for name, _ in module.named_parameters())


def test_hidden_loss_is_the_distance_of_hidden_states(data, tmp_path):
    spec = {"teacher": str(_teacher(data, tmp_path)), "weight": 0.0, "hidden_weight": 0.5}
    module, examples = module_of(data, distillation=spec)
    batch = batch_of(module, examples)
    mine, theirs = predict(module, batch), module.task.predict(module._teacher[0], batch, mask_padding=True)
    distance = (mine.hidden_ND - theirs.hidden_ND).square().mean(-1).sum()
    torch.testing.assert_close(module._loss(batch), task_loss(mine) + 0.5 * distance)


def test_teacher_of_another_width_is_refused_with_a_hidden_weight(data, tmp_path):
    spec = {"teacher": str(_teacher(data, tmp_path, d_model=32)), "hidden_weight": 1.0}
    with pytest.raises(ValueError, match="hidden states of width 32, this model of width 16"):
        module_of(data, distillation=spec)
    module_of(data, distillation=spec | {"hidden_weight": 0.0})


def test_teacher_with_other_tokens_is_refused(data, tmp_path):
    other = write_data(tmp_path, examples=3)
    folder = _teacher(other, tmp_path)
    with pytest.raises(ValueError, match="has other tokens than this model"):
        module_of(data, distillation={"teacher": str(folder)})


def test_teacher_with_other_labels_is_refused(data, tmp_path):
    folder = _teacher(data, tmp_path, "classification")
    spec = recipe(
        data,
        "classification",
        objective={"labels": ["short", "long"]},
        regularize={"distillation": {"teacher": str(folder)}},
    )
    with pytest.raises(ValueError, match=r"has the labels long, short, this model has short, long"):
        ready(spec, data / "run")


# LayerDrop


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.8])
def test_layer_drop_skips_its_share_of_the_layers(rate):
    model = _small(layer_drop=rate, decoder_layer_drop=rate)
    ran = []
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.register_forward_hook(lambda *_: ran.append(1))
    ids = torch.randint(0, 50, (1, 2))
    times = 60
    with torch.no_grad():
        for _ in range(times):
            model.train()(ids, ids)
        shares = 1 - len(ran) / (6 * times)
        assert abs(shares - rate) < 0.12
        ran.clear()
        model.eval()(ids, ids)
    assert len(ran) == 6


def test_skipped_layer_gets_no_gradient():
    model = _small(layer_drop=0.5, decoder_layer_drop=0.5).train()
    ran = set()
    for number, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, number=number: ran.add(number))
    ids = torch.randint(0, 50, (2, 3))
    model(ids, ids).sum().backward()
    assert 0 < len(ran) < 3
    for number, layer in enumerate(model.encoder.layers):
        assert all((parameter.grad is not None) == (number in ran) for parameter in layer.parameters())


# gradient clipping


@pytest.mark.parametrize("greatest", [0.01, 1e6, False])
def test_clipping_scales_the_gradient_and_keeps_its_direction(data, greatest):
    module, examples = module_of(data, gradient_clipping=greatest)
    module._loss(batch_of(module, examples)).backward()
    parameters = list(module.model.parameters())
    before = torch.cat([parameter.grad.flatten() for parameter in parameters])
    module.configure_gradient_clipping(torch.optim.SGD(parameters, 0.1))
    after = torch.cat([parameter.grad.flatten() for parameter in parameters])
    assert module.gradient_norm == pytest.approx(before.norm().item(), rel=1e-4)
    expected = min(1.0, 0.01 / before.norm().item()) if greatest == 0.01 else 1.0
    torch.testing.assert_close(after, before * expected, rtol=1e-3, atol=1e-8)


# augmentation


def _special(module):
    return set(module.task.tokenizer.special_ids)


def _content(module, ids):
    return [number for number in ids if number not in _special(module)]


SIDES = {
    "text-to-text": [("source", "source_keep")],
    "classification": [("text", "keep")],
    "span-answers": [("text", "keep")],
    "sentence-embeddings": [("first", "first_keep"), ("second", "second_keep")],
}


@pytest.mark.parametrize("task", list(SIDES))
def test_augmentation_changes_its_share_of_the_inputs_only(data, task):
    module, examples = module_of(data, task, augmentation={"token_replacement": 0.3})
    examples = examples * 20
    plain, noisy = batch_of(module, examples), batch_of(module, examples, training=True)
    inputs = {name for name, _ in SIDES[task]}
    for name in set(plain.tensors) - inputs:
        assert torch.equal(plain[name], noisy[name]), name
    for name, keep in SIDES[task]:
        special = torch.isin(plain[name], torch.tensor(sorted(_special(module)))) | ~plain[keep]
        changed = plain[name] != noisy[name]
        assert not (changed & special).any()
        assert abs(changed[~special].float().mean().item() - 0.3) < 0.03
    assert plain.count == noisy.count


@pytest.mark.parametrize("spec", [{"token_masking": 0.2}, {"span_masking": 0.2}])
@pytest.mark.parametrize(("task", "token"), [("text-to-text", "<unk>"), ("classification", "[MASK]")])
def test_masked_tokens_are_replaced_by_the_mask_or_unknown_token(data, spec, task, token):
    module, examples = module_of(data, task, augmentation=spec)
    examples = examples * 20
    ((name, _),) = SIDES[task]
    plain, masked = batch_of(module, examples), batch_of(module, examples, training=True)
    changed = plain[name] != masked[name]
    assert (masked[name][changed] == module.task.tokenizer.token_id(token)).all()
    words = sum(len(_content(module, row.tolist())) for row in plain[name])
    # in short texts fewer tokens are masked: the end of the text truncates spans
    assert 0.5 * 0.2 < int(changed.sum()) / words < 1.2 * 0.2


@pytest.mark.parametrize("spec", [{"token_swapping": 0.5}, {"local_shuffle": 3}])
def test_moved_tokens_are_permuted(data, spec):
    module, examples = module_of(data, augmentation=spec)
    plain, moved = batch_of(module, examples), batch_of(module, examples, training=True)
    assert not torch.equal(plain["source"], moved["source"])
    assert torch.equal(plain["source"].sort().values, moved["source"].sort().values)


def test_deleted_tokens_are_fewer_and_in_order(data):
    module, examples = module_of(data, augmentation={"token_deletion": 0.5})
    batch = batch_of(module, examples, training=True)
    left = 0
    for example, ids, keep in zip(examples, batch["source"], batch["source_keep"], strict=True):
        remaining = iter(example["source"].tolist())
        assert all(number in remaining for number in ids[keep].tolist())
        left += int(keep.sum())
    assert left < sum(len(example["source"]) for example in examples)


def test_each_epoch_has_its_own_reproducible_augmentation(data):
    module, examples = module_of(data, augmentation={"token_replacement": 0.5})
    lengths = np.array([[len(example["source"]), len(example["target"])] for example in examples], dtype=np.int32)

    def epochs():
        loader = TrainingDataLoader(
            TokenBatchSampler(lengths, batch_tokens=10_000, seed=1),
            lambda rows, draws: module.task.collate([examples[int(row)] for row in rows], draws, training=True),
            seed=1,
            steps=None,
            epochs=2,
        )
        return [
            {
                index: row[keep].tolist()
                for index, row, keep in zip(part.rows, part.batch["source"], part.batch["source_keep"], strict=True)
            }
            for part in loader
        ]

    first, second = epochs()
    assert first.keys() == second.keys()
    assert sum(first[index] != second[index] for index in first) > len(first) / 2
    assert epochs() == [first, second]


def test_held_out_examples_are_never_augmented(data, tmp_path):
    validation = {"source": str(data / "a.en"), "target": str(data / "a.de")}
    spec = recipe(
        data,
        "text-to-text",
        data={"validation": validation},
        regularize={"augmentation": {"token_replacement": 0.9}, "label_smoothing": 0.5, "dropout": 0.5},
    )
    module, examples = ready(spec, data / "run")
    records = []
    collate = module.task.collate

    def watched(*arguments, **options):
        records.append(options)
        return collate(*arguments, **options)

    module.task.collate = watched
    _, held_out = build_datasets(spec, module.task, tmp_path)
    assert held_out is not None
    measure = build_validator(module.task, held_out, spec)
    assert measure() == measure()
    assert records
    assert not any(options["training"] for options in records)
    assert module.model.training
    module.model.eval()
    batch = batch_of(module, examples)
    prediction = predict(module, batch)
    plain = functional.cross_entropy(logits_of(prediction), prediction.targets_N)
    assert measure()["loss"] == pytest.approx(plain.item(), rel=1e-5)


def test_validation_scores_ignore_autocast(data, tmp_path, monkeypatch):
    monkeypatch.setattr(linear, "is_supported", lambda dtype: False)  # its matmuls ignore autocast
    spec = recipe(data, "sentence-embeddings", held_out=True, validation={"monitor": "spearman"})
    module, _ = ready(spec, data / "run")
    _, held_out = build_datasets(spec, module.task, tmp_path)
    assert held_out is not None
    measure = build_validator(module.task, held_out, spec)
    plain = measure()
    with torch.autocast("cpu", torch.bfloat16):
        low = measure()
    assert low.pop("loss") != plain.pop("loss")
    assert low == plain
