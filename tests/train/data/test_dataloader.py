"""The data loader resumes from its position alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.data.training_data import batch_of, ready, recipe, write_data

from clearhead.train.data.dataloader import TrainingDataLoader
from clearhead.train.data.sampler import TokenBatchSampler
from clearhead.train.tasks.base import Batch

runs = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 25),
        "size": st.integers(1, 6),
        "accumulate": st.integers(1, 4),
        "seed": st.integers(0, 3),
        "length": st.one_of(
            st.fixed_dictionaries({"steps": st.integers(0, 12), "epochs": st.none()}),
            st.fixed_dictionaries({"steps": st.none(), "epochs": st.integers(0, 3)}),
        ),
    }
)


def loader(run, rank=0, world=1):
    lengths = np.random.default_rng(0).integers(1, 9, (run["rows"], 1)).astype(np.int32)

    def collate(rows, draws, progress):
        ids = torch.tensor([[int(row), int(draws.integers(10**6))] for row in rows])
        return Batch({"row and draw": ids}, count=int(lengths[rows].sum()), num_tokens=2 * len(rows))

    batches = TokenBatchSampler(lengths, batch_tokens=10**6, batch_size=run["size"], seed=run["seed"])
    return TrainingDataLoader(
        batches,
        collate,
        seed=run["seed"],
        accumulation_steps=run["accumulate"],
        rank=rank,
        world_size=world,
        **run["length"],
    )


def spec(part):
    content = None if part.batch is None else part.batch["row and draw"].tolist()
    return content, part.loss_divisor, part.index, part.step, part.epoch, part.rows


@given(runs, st.data())
def test_resuming_at_any_position_yields_the_same_batches(run, data):
    whole = [spec(part) for part in loader(run)]
    assert len(whole) == len(loader(run))
    position = data.draw(st.integers(0, len(whole)))
    begun = loader(run)
    for _, __ in zip(range(position), begun, strict=False):
        pass
    # the state saved while a batch is computed is that of the next batch
    assert begun.state_dict() == {"position": position}
    resumed = loader(run)
    resumed.load_state_dict(begun.state_dict())
    update = position if position == len(whole) else position - position % run["accumulate"]
    assert [spec(part) for part in resumed] == whole[update:]


@given(runs)
def test_batches_are_numbered_and_each_epoch_has_every_row_once(run):
    parts = list(loader(run))
    assert [part.index for part in parts] == list(range(len(parts)))
    assert [part.step for part in parts] == [part.index // run["accumulate"] + 1 for part in parts]
    epochs = [part.epoch for part in parts]
    assert epochs == sorted(epochs)
    for epoch in set(epochs) - set(epochs[-1:]):
        rows = [row for part in parts if part.epoch == epoch for row in part.rows]
        assert sorted(rows) == list(range(run["rows"]))
    draws = [draw for part in parts for _, draw in part.batch["row and draw"].tolist()]
    assert len(set(draws)) >= 0.9 * len(draws)  # different in each batch and epoch
    if run["length"]["epochs"] is not None:
        of_epochs = run["length"]["epochs"] * -(-run["rows"] // run["size"])
        assert 0 <= len(parts) - of_epochs < run["accumulate"]


@given(runs, st.integers(1, 4))
def test_shards_of_all_processes_form_the_batch(run, world):
    shares = [list(loader(run, rank, world)) for rank in range(world)]
    for together, *parts in zip(loader(run), *shares, strict=True):
        rows = [row for part in parts if part.batch is not None for row in part.batch["row and draw"].tolist()]
        assert sorted(rows) == sorted(together.batch["row and draw"].tolist())
        sizes = [0 if part.batch is None else len(part.batch["row and draw"]) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for part in parts:
            assert spec(part)[1:] == spec(together)[1:]


@given(runs)
def test_loss_divisor_covers_all_batches_of_the_update(run):
    parts = list(loader(run))
    for part in parts:
        assert part.loss_divisor == sum(other.batch.count for other in parts if other.step == part.step)


@pytest.mark.parametrize(("pairs", "world"), [(5, 2), (4, 3), (2, 4)])
def test_every_process_compares_a_pair_with_the_whole_batch(tmp_path, pairs, world):
    """Contrastive losses and gradients of the processes add up to those of the whole batch."""
    write_data(tmp_path)
    pairs_alone = "".join(f"red {number}\tblue cat {number}\n" for number in range(5))
    (tmp_path / "p.tsv").write_text(pairs_alone, encoding="utf-8")
    spec = recipe(tmp_path, "sentence-embeddings", objective={"loss": "contrastive"})
    module, examples = ready(spec, tmp_path)
    batch = batch_of(module, examples[:pairs])

    def measured(parts):
        module.zero_grad()
        loss = sum(module._loss(part) for part in parts)
        loss.backward()
        return loss, [weight.grad for weight in module.model.parameters() if weight.grad is not None]

    shares = [batch.shard(rank, world) for rank in range(world)]
    sizes = measured([share for share in shares if share is not None])
    torch.testing.assert_close(sizes, measured([batch]), rtol=1e-4, atol=1e-3)
