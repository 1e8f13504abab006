"""Sizes beyond the memory are rejected before the allocation, in one line with the option to change."""

import json
import re
import resource
import shutil

import pytest
import torch
import yaml
from support.command import refused, started
from support.data.training import spec
from support.models.folders import marian
from support.models.tiny import make_bert

from clearhead import EncoderConfig, Seq2SeqConfig, TextEncoder, TextToText, watch
from clearhead.checkpoints.schema.model_size import model_bytes
from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq

LIMIT = 12 * 2**30


def limited():
    """Limit the memory, so that a missing check fails only its own test."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))


def too_large(*arguments, stdin=b"hello\n"):
    line = refused(*arguments, stdin=stdin, run=started, preexec_fn=limited)
    assert len(line) < 600
    return line


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sizes")
    for name in ("bert", "marian"):
        (folder / name).mkdir()
    make_bert(folder / "bert")
    marian(folder / "marian")
    return folder


def changed(folder, target, file="config.json", **changes):
    shutil.copytree(folder, target)
    path = target / file
    data = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(data | changes))
    return target


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bert", {"hidden_size": 10**9}),
        ("marian", {"d_model": 10**9}),
        ("marian", {"max_position_embeddings": 10**10}),
    ],
)
def test_sizes_in_config_json(folders, tmp_path, kind, changes):
    folder = changed(folders / kind, tmp_path / "model", **changes)
    line = too_large("encode" if kind == "bert" else "translate", "--model", folder)
    assert str(folder / "config.json") in line
    assert re.search(r"needs at least [\d,.]+ GiB of memory; [\d,.]+ GiB are available", line), line


@pytest.mark.parametrize("beams", [10**6, 2**31])
def test_beams_in_generation_config_json(folders, tmp_path, beams):
    folder = changed(folders / "marian", tmp_path / "model", "generation_config.json", num_beams=beams)
    line = refused("translate", "--model", folder)
    assert f"{folder / 'generation_config.json'}: num_beams is {beams}; expected at most the 184 tokens" in line


@pytest.mark.slow
@pytest.mark.parametrize("beams", [10**6, 2**31])
def test_beams_of_a_report(folders, tmp_path, beams):
    arguments = ("--model", folders / "marian", "--beam-size", beams)
    line = too_large("view", "hello", "--output", tmp_path / "view.html", *arguments)
    assert f"{beams} beams over" in line


@pytest.mark.slow
def test_repeated_elements_in_a_pickle(tmp_path):
    torch.save({"a": torch.zeros(1).expand(10**12)}, tmp_path / "pytorch_model.bin")
    line = too_large("convert", tmp_path)
    assert f"{tmp_path}: a copy of all tensors of the pickle needs at least 3,725.3 GiB of memory" in line
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.slow
def test_options(folders):
    line = too_large("translate", "--model", folders / "marian", "--beam-size", 10**7)
    assert f"{10**7} beams over" in line
    line = too_large("benchmark", "encode", "--model", folders / "bert", "--number", 10**10)
    assert "--number" in line
    line = too_large("benchmark", "generate", "--model", folders / "marian", "--length", 10**12)
    assert "--length" in line
    line = too_large("benchmark", "generate", "--model", folders / "marian", "--beam-size", 10**6, "--number", 1)
    assert f"{10**6} beams over" in line


def test_samples(folders):
    translator = TextToText.from_pretrained(folders / "marian", precision="float32", device="cpu")
    for texts in (["hello"], ["hello", "world"]):
        with pytest.raises(ValueError, match=f"{10**10} samples over"):
            translator.generate(texts, do_sample=True, num_return_sequences=10**10, return_details=True)


def test_memory_check_of_a_batch_of_texts(folders, monkeypatch):
    encoder = TextEncoder.from_pretrained(folders / "bert", precision="float32", device="cpu")
    monkeypatch.setattr("clearhead.memory.available_memory", lambda device: 2**27)
    texts = ["hello " * 20] * 20_000
    with pytest.raises(ValueError, match="a batch of 440000 tokens needs at least .* .--batch-tokens"):
        encoder.encode(texts, batch_tokens=10**12)
    assert len(encoder.encode(texts[:100])) == 100


def test_attention_maps(folders, monkeypatch):
    model = EncoderModel(EncoderConfig(vocab_size=50, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1)).eval()
    ids = torch.zeros(1, 3000, dtype=torch.long)
    monkeypatch.setattr("clearhead.memory.available_memory", lambda device: 2**27)
    with watch(model, heads=[0]):
        model(ids)
    with pytest.raises(ValueError, match="over 3000 queries and 3000 keys needs at least"), watch(model):
        model(ids)


SECTIONS = {
    "model.d_model": 2**20,
    "model.ffn_hidden": 10**12,
    "model.num_layers": 10**7,
    "model.max_len": 10**10,
    "model.decoder_num_layers": 10**8,
    "tokenizer.vocab_size": 10**12,
}


@pytest.mark.slow
@pytest.mark.parametrize("key", SECTIONS)
def test_sizes_in_a_recipe(tmp_path, key):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(spec(tmp_path)))
    line = too_large("train", path, f"{key}={SECTIONS[key]}")
    assert line.startswith(f"clearhead: error: {path}: ")
    assert re.search(r"needs at least [\d,.]+ GiB of memory; [\d,.]+ GiB are available", line), line
    assert key.split(".")[1] in line


@pytest.mark.slow
@pytest.mark.parametrize("batches", [10**9, 10**18])
def test_memory_check_counts_the_batches_of_an_update(tmp_path, batches):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(spec(tmp_path)))
    line = too_large("train", path, f"training.gradient_accumulation_steps={batches}", "-q")
    assert f"an update of {batches} batches needs at least" in line
    assert "GiB are available. Choose a smaller training.gradient_accumulation_steps." in line


@pytest.mark.slow
def test_width_beyond_the_address_space_is_an_error(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(spec(tmp_path)))
    line = too_large("train", path, f"model.d_model={10**15}")
    assert line.startswith(f"clearhead: error: {path}: model: a tensor of the model with shape (")
    assert re.search(r"needs at least [\d,.]+ GiB of memory; [\d,.]+ GiB are available", line), line


def test_memory_check_of_a_training_batch(tmp_path, monkeypatch):
    from clearhead.train.recipe.load import parse_recipe
    from clearhead.train.trainer import train

    data = spec(tmp_path)
    data["data"]["batch_tokens"] = 10**12
    monkeypatch.setattr("clearhead.memory._UNCHECKED", 2**10)
    monkeypatch.setattr("clearhead.memory.available_memory", lambda device: 2**16 if device else 2**40)
    monkeypatch.setattr("clearhead.train.tasks.initialize.check_size", lambda *_: None)
    with pytest.raises(ValueError, match=r"training with a batch of \d+ tokens needs at least .* data.batch_tokens"):
        train(parse_recipe(data, "tiny"))


@pytest.mark.parametrize(
    "config",
    [
        EncoderConfig(vocab_size=50, d_model=8, ffn_hidden=16, num_heads=2, num_layers=5, windows=(2, None, 2, 2, 2)),
        EncoderConfig(vocab_size=50, d_model=8, num_heads=2, num_layers=1, relative_buckets=8, positions="none"),
        Seq2SeqConfig(vocab_size=50, d_model=8, num_heads=2, num_layers=4, decoder_num_layers=3, relative_buckets=8),
        Seq2SeqConfig(vocab_size=50, d_model=8, num_heads=2, num_layers=3, target_vocab_size=9, share_embeddings=False),
    ],
)
def test_memory_check_of_a_model(config):
    model = EncoderModel(config) if isinstance(config, EncoderConfig) else Seq2Seq(config)
    layers = config.num_layers + (getattr(config, "decoder_num_layers", 0) or 0)
    if isinstance(config, Seq2SeqConfig) and config.decoder_num_layers is None:
        layers *= 2
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert model_bytes(config) == size + layers * 2**16
