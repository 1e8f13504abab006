"""T3.9: train a new encoder or decoder with a frozen pretrained other half; transformers loads the result."""

import pytest
import torch
import transformers
from safetensors.torch import load_file
from support.data.training_data import recipe
from support.models.folders import bart
from support.models.tiny import VOCABULARY, make_bert

from clearhead import checkpoints
from clearhead.train.trainer import train

pytestmark = pytest.mark.slow


@pytest.fixture
def pairs(tmp_path):
    words = [word for word in VOCABULARY if word.isalpha() and len(word) > 1 and word.islower()]
    lines = [" ".join(words[(start + step) % len(words)] for step in range(4)) for start in range(16)]
    (tmp_path / "a.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "a.de").write_text(
        "\n".join(" ".join(reversed(line.split())) for line in lines) + "\n", encoding="utf-8"
    )
    return tmp_path


def _run(pairs, half, folder, other):
    """Run with a frozen pretrained half: (loss after the first step, final loss, folder)."""
    scores = []
    for steps in (1, 40):
        spec = recipe(
            *(pairs, "text-to-text", pairs / f"run-{steps}"),
            held_out=True,
            model={f"init_{half}_from": str(folder), "freeze": [half], other: 1},
            optimizer={"learning_rate": 0.01},
            training={"steps": steps},
            validation={"every": steps},
        )
        result = train(spec)
        scores.append(result.scores["loss"])
    return *scores, result.folder


def _same_logits(folder):
    theirs = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
    model = checkpoints.load_seq2seq(folder)[0].eval()
    ids = torch.randint(5, model.config.vocab_size, (2, 6))
    with torch.no_grad():
        logits, ours = theirs(input_ids=ids, decoder_input_ids=ids).logits, model(ids, ids)
    assert (ours - logits).norm() < 1e-5 * logits.norm()


def test_a_frozen_encoder_under_a_fresh_decoder(pairs, tmp_path):
    (tmp_path / "bert").mkdir()
    make_bert(tmp_path / "bert", initializer_range=0.05)
    first, last, folder = _run(pairs, "encoder", tmp_path / "bert", "decoder_num_layers")
    assert last < 0.9 * first
    pretrained_weights, written_weights = (
        load_file(tmp_path / "bert" / "model.safetensors"),
        load_file(folder / "model.safetensors"),
    )
    for layer in range(3):
        for ours, theirs in (("self_attn.q_proj", "attention.self.query"), ("fc1", "intermediate.dense")):
            name = f"model.encoder.layers.{layer}.{ours}.weight"
            assert torch.equal(written_weights[name], pretrained_weights[f"encoder.layer.{layer}.{theirs}.weight"])
    _same_logits(folder)


def test_a_frozen_decoder_over_a_fresh_encoder(pairs, tmp_path):
    (tmp_path / "bart").mkdir()
    bart(tmp_path / "bart")
    first, last, folder = _run(pairs, "decoder", tmp_path / "bart", "num_layers")
    assert last < first
    pretrained_weights, written_weights = (
        load_file(tmp_path / "bart" / "model.safetensors"),
        load_file(folder / "model.safetensors"),
    )
    names = [name for name in written_weights if name.startswith("model.decoder.layers")]
    assert names
    assert all(torch.equal(written_weights[name], pretrained_weights[name]) for name in names)
    _same_logits(folder)
