"""Augmentation of the inputs."""

import numpy as np
import pytest
import torch
from support.data.training_data import batch_of, logits_of, module_of, predict, ready, recipe
from torch.nn import functional

from clearhead.train.data.dataloader import TrainingDataLoader
from clearhead.train.data.loaders import build_datasets, build_loader, build_validator
from clearhead.train.data.sampler import TokenBatchSampler
from clearhead.train.distributed.process_group import ProcessGroup
from clearhead.train.recipe.errors import RecipeError
from clearhead.train.tasks.registry import create_task


def _special(module):
    return set(module.task.tokenizer.special_ids)


def _content(module, ids):
    return [number for number in ids if number not in _special(module)]


SIDES = {
    "text-to-text": [("source", "source_keep")],
    "classification": [("text", "keep")],
    "span-answers": [("text", "keep")],
    "reranking": [("document", "document_keep")],
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


@pytest.mark.parametrize("name", ["token_masking", "span_masking", "token_deletion", "token_swapping", "local_shuffle"])
def test_targets_do_not_change(data, name):
    module, examples = module_of(data, augmentation={name: 3 if name == "local_shuffle" else 0.5})
    plain, noisy = batch_of(module, examples), batch_of(module, examples, training=True)
    assert plain["source"].shape != noisy["source"].shape or not torch.equal(plain["source"], noisy["source"])
    for name in set(plain.tensors) - {"source", "source_keep"}:
        assert torch.equal(plain[name], noisy[name]), name


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
            lambda rows, draws, progress: module.task.collate(
                [examples[int(row)] for row in rows], draws, training=True
            ),
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


def pairs_of(loader):
    """Return (source, target) without padding of each row of each update."""
    return [
        {
            index: tuple(
                tuple(part.batch[name][row][part.batch[keep][row]].tolist())
                for name, keep in (("source", "source_keep"), ("targets", "target_keep"))
            )
            for row, index in enumerate(part.rows)
        }
        for part in loader
    ]


def loader_of(data, folder, bidirectional, **sections):
    regularize = {"augmentation": {"bidirectional": bidirectional}}
    spec = recipe(data, "text-to-text", training={"steps": 12}, regularize=regularize, **sections)
    module, _ = ready(spec, data / "run")
    training, _ = build_datasets(spec, module.task, folder)
    return build_loader(spec, module.task, training, ProcessGroup("cpu")), training


def test_half_of_the_pairs_are_reversed_in_the_first_part_of_the_training(data, tmp_path):
    loader, dataset = loader_of(data, tmp_path, 0.5)
    updates = pairs_of(loader)
    plain = [
        tuple(tuple(int(number) for number in dataset[row][name]) for name in ("source", "target"))
        for row in range(len(dataset))
    ]
    assert all(source != target for source, target in plain)
    reversed_rows = [[row for row, pair in update.items() if pair != plain[row]] for update in updates]
    for update, rows in zip(updates, reversed_rows, strict=True):
        assert all(update[row] == plain[row][::-1] for row in rows)
    first = sum(len(update) for update in updates[:6])
    assert abs(sum(map(len, reversed_rows[:6])) / first - 0.5) < 3 * 0.5 / first**0.5
    assert not any(reversed_rows[6:])
    loader.load_state_dict({"position": 3})
    assert pairs_of(loader) == updates[3:]


def test_pairs_of_two_vocabularies_cannot_be_reversed(data, tmp_path, monkeypatch):
    spec = recipe(data, "text-to-text", regularize={"augmentation": {"bidirectional": 0.5}})
    task = create_task(spec, data / "run")
    monkeypatch.setattr(type(task.tokenizer), "target_ids", lambda self, text: [1, 2, 3])
    with pytest.raises(
        RecipeError, match=r"bidirectional: sources and targets of this model have different vocabularies"
    ):
        create_task(spec, data / "run")
