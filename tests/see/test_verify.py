"""The certificate: every good family passes, every planted fault is found."""

import json
import shutil

import pytest
import torch
from support import families, seq2seq
from support.command import clearhead

from clearhead import checkpoints, verify
from clearhead.equations import positions
from clearhead.equations.fused import fused_scaled_dot_product
from clearhead.see import verify as module

COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch):
    """Compiling takes longer than all the rest; the command does."""
    monkeypatch.setattr(module.shutil, "which", lambda name: None)


def failed(certificate):
    return {check.name for check in certificate.checks if not check.holds}


@pytest.mark.parametrize("name", sorted(checkpoints.FAMILIES))
def test_a_good_encoder_passes(name, tmp_path):
    families.make(name, tmp_path)
    found = verify(tmp_path, against="transformers")
    assert found.holds, failed(found)
    assert {check.name for check in found.checks} >= {"padding on the left", "packed = padded", "bfloat16"}


@pytest.mark.parametrize("name", sorted(checkpoints.SEQ2SEQ_FAMILIES))
def test_a_good_encoder_decoder_passes(name, tmp_path):
    # the tiny ones' usual weights, which are large, are too much for 16 bits
    changes = {"init_std": 0.1} if "init_std" in seq2seq.KINDS[name][2] else {}
    seq2seq.make(name, tmp_path, **changes)
    found = verify(tmp_path)
    assert found.holds, failed(found)
    assert {check.name for check in found.checks} >= {"cached = uncached", "one beam = greedy", "each text alone"}


def shifted(ids, pad_id):
    return positions.positions_after_padding(ids, pad_id).clamp(min=1) - 1


def unmasked(q, k, v, mask=None, **options):
    return fused_scaled_dot_product(q, k, v, None, **options)


def mixed_heads(x):
    batch, heads, length, width = x.shape
    return x.reshape(batch, length, heads * width)


sinusoids = positions.concatenated_sinusoids


def cosines_first(length, width, **options):
    sines, cosines = sinusoids(length, width, **options).chunk(2, dim=1)
    return torch.cat([cosines, sines], dim=1)


def overflowing(model, dtype, device):
    copied = module.copy.deepcopy(model)
    if dtype == torch.bfloat16:
        with torch.no_grad():
            next(copied.encoder.parameters()).mul_(torch.inf)
    return copied


@pytest.mark.parametrize(
    ("family", "where", "name", "fault", "found"),
    [
        ("roberta", "clearhead.models.encoder", "positions_after_padding", shifted, {"parity with transformers"}),
        ("bert", "clearhead.layers.attention", "fused_scaled_dot_product", unmasked, {"padding on the right", "packed = padded"}),
        ("bert", "clearhead.equations.attention", "merge_heads", mixed_heads, {"parity with transformers"}),
        ("marian", "clearhead.equations.positions", "concatenated_sinusoids", cosines_first, {"parity with transformers"}),
        ("bert", "clearhead.see.verify", "sibling", overflowing, {"bfloat16"}),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(family, where, name, fault, found, tmp_path, monkeypatch):
    (seq2seq if family in seq2seq.KINDS else families).make(family, tmp_path)
    monkeypatch.setattr(f"{where}.{name}", fault)
    certificate = verify(tmp_path)
    assert not certificate.holds
    assert found <= failed(certificate)


def test_the_command_writes_the_certificate_beside_the_weights(tmp_path):
    families.make("bert", tmp_path)
    status, out, err = clearhead("verify", tmp_path)
    assert status == 0, err
    assert "parity with transformers" in out
    compiled = next(line for line in out.splitlines() if line.startswith("compiled = eager"))
    assert "holds" in compiled if COMPILER else "no C++ compiler" in compiled
    held = json.loads((tmp_path / "certificate.json").read_text())
    assert held["holds"] is True
    assert held["versions"]["torch"] == torch.__version__
    assert "model.safetensors" in held["files"]
    assert "certificate.json" not in held["files"]
    weights = checkpoints.directory.read_weights(tmp_path)[0]
    weights["encoder.layer.0.output.LayerNorm.weight"].fill_(3e38)
    checkpoints.directory.write_weights(tmp_path / "model.safetensors", weights)
    status, out, err = clearhead("verify", tmp_path, "--output", tmp_path / "other.json")
    assert status == 1
    assert "FAILS" in out
    assert json.loads((tmp_path / "other.json").read_text())["holds"] is False


def test_what_cannot_be_verified_is_said(tmp_path):
    with pytest.raises(ValueError, match="no-such-model"):
        verify("no/no-such-model")
    with pytest.raises(ValueError, match="compared with transformers; got 'jax'"):
        verify("all-MiniLM-L6-v2", against="jax")
