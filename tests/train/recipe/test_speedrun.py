"""The scripts of the speedrun: each idea computes its formula, and the comparison trains every change."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead import Seq2Seq, Seq2SeqConfig
from clearhead.layers.dropout import Dropout, use_fast_dropout
from clearhead.runtime.inference_copy import inference_copy
from clearhead.tokenizers.bpe import train_bpe
from clearhead.train.recipe.load import read_recipe
from tests.support.data.training_data import small_seq2seq

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "recipes" / "speedrun"
TINY_DATA = ROOT / "recipes" / "tiny" / "data"
TINY = [
    *(
        f"data.{part}.{side}={TINY_DATA}/{name}.{language}"
        for part, name in (("train", "train"), ("validation", "valid"))
        for side, language in (("source", "en"), ("target", "de"))
    ),
    *("tokenizer.vocab_size=400", "model.d_model=16", "model.ffn_hidden=32", "model.num_heads=2", "model.num_layers=2"),
    "optimizer.warmup_steps=1",
]


@pytest.fixture(scope="module")
def scripts():
    """Yield a function that imports a script of the folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("check", "compare", "ideas"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def ideas(scripts):
    return scripts("ideas")


def test_recipe_has_the_data_and_sizes_of_the_longer_one():
    own, longer = (
        read_recipe(ROOT / "recipes" / path) for path in ("speedrun/multi30k.yaml", "datasets/multi30k-en-de.yaml")
    )
    assert (own.tokenizer, own.model) == (longer.tokenizer, longer.model)
    assert own.data.model_copy(update={"batch_tokens": longer.data.batch_tokens}) == longer.data


def test_model_has_at_most_2_7_million_parameters():
    recipe = read_recipe(ROOT / "recipes" / "speedrun" / "multi30k.yaml")
    sizes = recipe.model.model_dump(include={"d_model", "ffn_hidden", "num_heads", "num_layers", "max_len"})
    model = Seq2Seq(Seq2SeqConfig(vocab_size=recipe.tokenizer.vocab_size, **sizes))
    assert 2.5e6 < sum(parameter.numel() for parameter in model.parameters()) <= 2.7e6


def hidden(model):
    torch.manual_seed(1)
    source, target = torch.randint(3, model.config.vocab_size, (2, 2, 7))
    with torch.inference_mode():
        return model.eval().hidden(source, target)


def test_squared_relu(ideas):
    model = small_seq2seq()
    ideas.squared_relu(model)
    feedforward = model.encoder.layers[0].feedforward.eval()
    x = torch.randn(2, 3, model.config.d_model)
    torch.testing.assert_close(feedforward(x), feedforward.out(feedforward.inner(x).clamp_min(0) ** 2))


def test_qk_norm_ignores_the_size_of_queries_and_keys(ideas):
    model = small_seq2seq()
    plain = hidden(model)
    ideas.qk_norm(model)
    normalized = hidden(model)
    assert not torch.allclose(plain, normalized, atol=1e-3)
    with torch.no_grad():
        for stack in (model.encoder, model.decoder):
            for layer in stack.layers:
                width = layer.attention.out.weight.shape[1]
                layer.attention.qkv.weight[: 2 * width] *= 3
        for layer in model.decoder.layers:
            layer.cross_attention.q.weight *= 3
            layer.cross_attention.kv.weight[:width] *= 3
    torch.testing.assert_close(hidden(model), normalized, rtol=1e-3, atol=1e-4)


def test_scale_of_the_output_keeps_what_a_new_model_computes(ideas):
    model = small_seq2seq()
    source, target = torch.randint(3, model.config.vocab_size, (2, 2, 7))
    logits = model.eval()(source, target)
    embeddings = model.output.tokens.weight.clone()
    ideas.scale_the_output(model)
    torch.testing.assert_close(model(source, target), logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.output.tokens.weight, embeddings * model.config.d_model**0.5)


def test_value_residual_adds_the_values_of_the_first_layer(ideas):
    model = small_seq2seq()
    ideas.value_residual(model)
    values = []
    for layer in model.encoder.layers:
        split = layer.attention.split
        layer.attention.split = lambda qkv, split=split: values.append((split(qkv)[2], qkv)) or split(qkv)
    hidden(model)
    width = model.encoder.layers[0].attention.out.weight.shape[1]
    (first, _), (second, qkv) = values[:2]
    own = qkv[..., 2 * width :].unflatten(-1, (model.config.num_heads, -1)).transpose(1, 2)
    torch.testing.assert_close(second, (own + first) / 2)


@pytest.mark.parametrize("name", ["qk_norm", "value_residual", "squared_relu"])
def test_copies_for_inference_have_the_change(ideas, name):
    model = small_seq2seq()
    plain = hidden(model)
    getattr(ideas, name)(model)
    before = hidden(model)
    copied = inference_copy(model, "bfloat16", torch.device("cpu"))
    assert (plain - before).abs().max() > 0.05
    torch.testing.assert_close(hidden(copied).float(), before, rtol=0.02, atol=0.05)


def test_split_tokens_are_the_same_text(ideas):
    lines = (TINY_DATA / "train.en").read_text().splitlines()
    tokenizer = train_bpe(lines, vocab_size=400)
    ids = [tokens.ids for tokens in tokenizer.encode(lines)]
    pairs = [{"source": source, "target": target} for source, target in zip(ids, reversed(ids), strict=True)]
    split = ideas.split_tokens(tokenizer)
    changed = split(pairs, np.random.default_rng(1))
    assert len(changed) == len(pairs)
    for before, after in zip(pairs, changed, strict=True):
        for side in ("source", "target"):
            assert tokenizer.decode(after[side].tolist()) == tokenizer.decode(before[side])
    before, after = (sum(len(pair["source"]) for pair in some) for some in (pairs, changed))
    assert 1.05 * before < after < 1.5 * before
    again = split(pairs, np.random.default_rng(1))
    assert all(np.array_equal(one["target"], other["target"]) for one, other in zip(changed, again, strict=True))


def test_growing_dropout_has_the_same_mean(ideas):
    model = small_seq2seq(drop_prob=0.2)
    use_fast_dropout(model)
    rates = []
    for share in (0.0, 0.5, 1.0):
        ideas.dropout_that_grows(model, share)
        rates.append({module.drop_prob for module in model.modules() if isinstance(module, Dropout)})
    assert rates == [{0.0}, {0.2}, {0.4}]


def test_batches_that_grow_are_halved_at_first(ideas):
    batches = [np.arange(7) + 7 * index for index in range(ideas.HALVED_BATCHES)] + [np.array([-1]), np.array([-2, -3])]
    grown = ideas.batches_that_grow(0, batches)
    assert [len(rows) for rows in grown] == [4, 3] * ideas.HALVED_BATCHES + [1, 2]
    assert sorted(np.concatenate(grown)) == sorted(np.concatenate(batches))
    assert ideas.batches_that_grow(1, batches) is batches


def test_changes_get_the_same_time(scripts):
    compare = scripts("compare")
    times = compare.milliseconds({"milliseconds": {"the recipe": [100.0], "batches of half the size": [60.0]}})
    assert compare.measured_changes(["cosine decay", "batches that grow"]) == ["the recipe", "batches of half the size"]
    assert compare.updates_in_time("cosine decay", 60_000, times) == 600
    assert compare.updates_in_time("batches of half the size", 60_000, times) == 1000
    assert compare.updates_in_time("batches that grow", 60_000, times) == 200 + (60_000 - 200 * 60) / 100
    assert compare.updates_in_time("batches that grow", 6000, times) == 100


@pytest.mark.parametrize(
    ("key", "broken"),
    [
        ("data.batch_tokens=4096", []),
        ("training.steps=100", []),
        ("data.train.source=recipes/tiny/data/train.en", ["the data are those of the longer recipe"]),
        ("data.max_length=20", ["the data are those of the longer recipe"]),
        ("tokenizer.lowercase=true", ["the tokenizer is that of the longer recipe"]),
        ("objective.beam_size=6", ["outputs have 5 beams"]),
        ("model={init_encoder_from: runs/other}", ["training starts without the weights of another model"]),
    ],
)
def test_broken_rules_are_found(scripts, key, broken):
    check = scripts("check")
    own, longer = read_recipe(check.RECIPE, [key]), read_recipe(check.LONGER)
    assert check.broken_rules(own, longer) == broken


def test_a_diverged_run_is_in_the_table(scripts, tmp_path):
    compare = scripts("compare")
    run = {"seed": 1, "steps": 8, "loss": 1.5, "bleu": 40.0, "curve": [[4, 2.0, 20.0], [8, 1.5, 40.0]]}
    diverged = {"name": "QK-norm", "seed": 2, "steps": 8, "loss": float("inf"), "bleu": 0.0, "curve": []}
    runs = [run | {"name": compare.BASELINE}, run | {"name": "ReLU²"}, run | {"name": "QK-norm"}, diverged]
    report = {"milliseconds": {name: [200.0] for name in (compare.BASELINE, "ReLU²", "QK-norm")}, "runs": runs}
    rows = compare.finished(report)
    assert "| QK-norm | 8 | inf ± 0.000 | +inf | 20.00 | 2 |" in compare.table(rows)
    compare.plot(rows, 2.0, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


@pytest.mark.slow
def test_changes_are_compared(tmp_path):
    names = [
        "the recipe",
        "AdamW in place of Muon",
        "batches that grow",
        "dropout that grows",
        "QK-norm",
        "split tokens",
    ]
    report = tmp_path / "report.json"
    arguments = [report, *TINY, "--updates", "3", "--timed", "4", "--seeds", "1", "--only", *names]
    command = [sys.executable, FOLDER / "compare.py", *arguments]
    first = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert first.returncode == 0, first.stderr[-2000:]
    results = json.loads(report.read_text(encoding="utf-8"))["runs"]
    assert len(results) == len(first.stdout.splitlines()[2:]) == len(names)
    assert [result["name"] for result in results] == names
    assert all(0 < result["loss"] < 10 and result["curve"] for result in results)
    assert len({result["loss"] for result in results}) == len(names), "each change has an effect"
    assert all(0 <= bleu <= 100 for result in results for _, _, bleu in result["curve"])
    assert report.with_suffix(".png").stat().st_size > 5000
    again = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert again.stdout == first.stdout, "finished runs are kept"


@pytest.mark.slow
def test_a_result_is_checked(tmp_path):
    texts = [TINY_DATA / "valid.en", TINY_DATA / "valid.de"]
    limits = ["--timed", "4", "--share", "100", "--runs", tmp_path / "runs"]
    command = [sys.executable, FOLDER / "check.py", *texts, *TINY, "training.steps=2", "validation.every=2", *limits]
    passed = subprocess.run([*command, "--bleu", "0"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert passed.returncode == 0, passed.stdout + passed.stderr[-2000:]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["1", "2", "3"]
    times = [path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/model.safetensors")]
    failed = subprocess.run([*command, "--bleu", "99"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert failed.returncode == 1, failed.stdout + failed.stderr[-2000:]
    assert failed.stdout.splitlines()[-1].replace("99", "0") == passed.stdout.splitlines()[-1]
    assert [path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/model.safetensors")] == times
