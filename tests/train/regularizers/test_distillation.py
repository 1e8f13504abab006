"""The loss with a teacher, and teachers that do not fit."""

import json
from dataclasses import replace

import pytest
import torch
from support.data.training_data import (
    batch_of,
    kl,
    logits_of,
    module_of,
    predict,
    ready,
    recipe,
    save_teacher,
    write_data,
)
from torch.nn import functional

from clearhead.layers.sampled_softmax import sample_vocabulary
from clearhead.train.recipe.load import parse_recipe
from clearhead.train.regularizers.distillation import distillation_loss
from clearhead.train.tasks.predictions import EmbeddingPredictions, ScorePredictions, task_loss


def test_teacher_never_sees_padding(data, tmp_path):
    folder = save_teacher(data, tmp_path)
    spec = {"teacher": str(folder), "weight": 1.0}
    module, examples = module_of(data, attention_masking=False, distillation=spec)
    batch = batch_of(module, examples)
    student = predict(module, batch, mask_padding=False)
    expected = module.task.predict(module._teachers[0], batch, mask_padding=True)
    torch.testing.assert_close(module._loss(batch), distillation_loss(student, [expected], 2.0))


@pytest.mark.parametrize("task", ["text-to-text", "masked-language-model", "classification", "span-answers"])
@pytest.mark.parametrize(("weight", "temperature"), [(0.0, 2.0), (0.3, 2.0), (1.0, 1.0)])
def test_distillation_is_the_formula(data, tmp_path, task, weight, temperature):
    spec = {"teacher": str(save_teacher(data, tmp_path, task)), "weight": weight, "temperature": temperature}
    module, examples = module_of(data, task, distillation=spec)
    batch = batch_of(module, examples)
    mine, theirs = predict(module, batch), module.task.predict(module._teachers[0], batch, mask_padding=True)
    own = functional.cross_entropy(logits_of(mine).double(), mine.targets_N, reduction="sum")
    divergence = temperature**2 * kl(logits_of(theirs) / temperature, logits_of(mine) / temperature)
    assert divergence > 1e-3
    expected = (1 - weight) * own + weight * divergence
    torch.testing.assert_close(module._loss(batch).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("task", ["text-to-text", "classification", "span-answers"])
def test_several_teachers_teach_the_average_of_their_probabilities(data, tmp_path, task):
    folders = [str(save_teacher(data, tmp_path / str(seed), task, seed=seed)) for seed in (9, 10, 11)]
    module, examples = module_of(data, task, distillation={"teacher": folders, "weight": 1.0, "temperature": 2.0})
    batch = batch_of(module, examples)
    teachers = [module.task.predict(teacher, batch, mask_padding=True) for teacher in module._teachers]
    probs = [functional.softmax(logits_of(one).double() / 2.0, dim=-1) for one in teachers]
    average = torch.stack(probs).mean(dim=0).clamp_min(1e-300).log()
    assert kl(average, logits_of(teachers[0]) / 2.0) > 1e-4
    divergence = 4.0 * kl(average, logits_of(predict(module, batch)) / 2.0)
    torch.testing.assert_close(module._loss(batch).double(), divergence, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_sampled_softmax_samples_the_divergence(data, tmp_path, temperature):
    spec = {"teacher": str(save_teacher(data, tmp_path)), "weight": 1.0, "temperature": temperature}
    module, examples = module_of(data, distillation=spec)
    batch = batch_of(module, examples)
    student, teacher = predict(module, batch), module.task.predict(module._teachers[0], batch, mask_padding=True)
    vocabulary = len(student.output.tokens.weight)
    every = distillation_loss(replace(student, num_sampled=vocabulary), [teacher], temperature)
    torch.testing.assert_close(every, distillation_loss(student, [teacher], temperature))
    torch.manual_seed(3)
    sampled = sample_vocabulary(student.targets_N, vocabulary, 20)
    softened = [logits_of(side)[:, sampled.ids_K] / temperature + sampled.bias_K for side in (teacher, student)]
    torch.manual_seed(3)
    some = distillation_loss(replace(student, num_sampled=20), [teacher], temperature)
    torch.testing.assert_close(some.double(), temperature**2 * kl(*softened), rtol=1e-4, atol=1e-4)


def test_several_teachers_of_embeddings_and_scores_are_averaged():
    one, two, three = (torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    zero = torch.zeros(())
    loss = distillation_loss(
        EmbeddingPredictions(zero, one), [EmbeddingPredictions(zero, x) for x in (two, three)], 1.0
    )
    unit = [functional.normalize(x, dim=-1) for x in (one, two, three)]
    torch.testing.assert_close(loss, (unit[0] - (unit[1] + unit[2]) / 2).square().sum())
    scores = [ScorePredictions(zero, x[:, 0]) for x in (one, two, three)]
    loss = distillation_loss(scores[0], scores[1:], 1.0)
    torch.testing.assert_close(loss, (one[:, 0] - (two[:, 0] + three[:, 0]) / 2).square().sum())


def test_hidden_states_of_several_teachers_are_refused(data, tmp_path):
    spec = {"teacher": [str(tmp_path / "a"), str(tmp_path / "b")], "hidden_weight": 1.0}
    with pytest.raises(ValueError, match=r"hidden_weight: requires one teacher; got 2"):
        parse_recipe(
            recipe(data, "text-to-text").model_dump(mode="json") | {"regularize": {"distillation": spec}}, "recipe"
        )


@pytest.mark.slow
def test_with_weight_one_a_student_predicts_as_its_teacher(data, tmp_path):
    module, examples = module_of(data, distillation={"teacher": str(save_teacher(data, tmp_path)), "weight": 1.0})
    batch = batch_of(module, examples[:2])
    random_targets = torch.randint_like(batch["targets"], 5, 200)
    batch = replace(batch, tensors={**batch.tensors, "targets": random_targets})
    teacher = module._teachers[0]
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


def test_teachers_are_moved_to_the_device_of_the_student(data, tmp_path):
    module, _ = module_of(data, distillation={"teacher": str(save_teacher(data, tmp_path))})
    module.to("meta")
    module.on_fit_start()
    assert {parameter.device.type for parameter in module._teachers[0].parameters()} == {"meta"}


def test_hidden_loss_is_the_distance_of_hidden_states(data, tmp_path):
    spec = {"teacher": str(save_teacher(data, tmp_path)), "weight": 0.0, "hidden_weight": 0.5}
    module, examples = module_of(data, distillation=spec)
    batch = batch_of(module, examples)
    mine, theirs = predict(module, batch), module.task.predict(module._teachers[0], batch, mask_padding=True)
    distance = (mine.hidden_ND - theirs.hidden_ND).square().mean(-1).sum()
    torch.testing.assert_close(module._loss(batch), task_loss(mine) + 0.5 * distance)


def test_teacher_of_another_width_is_refused_with_a_hidden_weight(data, tmp_path):
    spec = {"teacher": str(save_teacher(data, tmp_path, d_model=32)), "hidden_weight": 1.0}
    with pytest.raises(ValueError, match="hidden states of width 32, this model of width 16"):
        module_of(data, distillation=spec)
    module_of(data, distillation=spec | {"hidden_weight": 0.0})


def test_teacher_with_other_tokens_is_refused(data, tmp_path):
    other = write_data(tmp_path, examples=3)
    folder = save_teacher(other, tmp_path)
    with pytest.raises(ValueError, match="has other tokens than this model"):
        module_of(data, distillation={"teacher": str(folder)})


@pytest.mark.parametrize("key", ["pad_token_id", "decoder_start_token_id", "eos_token_id"])
def test_teacher_with_another_special_token_is_refused(data, tmp_path, key):
    folder = save_teacher(data, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: 7}))
    with pytest.raises(ValueError, match="has another padding, start or end token than this model"):
        module_of(data, distillation={"teacher": str(folder)})


def test_teacher_with_other_labels_is_refused(data, tmp_path):
    folder = save_teacher(data, tmp_path, "classification")
    spec = recipe(
        data,
        "classification",
        objective={"labels": ["short", "long"]},
        regularize={"distillation": {"teacher": str(folder)}},
    )
    with pytest.raises(ValueError, match=r"has the labels long, short, this model has short, long"):
        ready(spec, data / "run")
