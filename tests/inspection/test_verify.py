"""The certificate: every good family passes, every planted fault is found."""

import copy
import hashlib
import importlib.util
import json
import shutil

import pytest
import torch
from support import families, seq2seq
from support.command import clearhead, refused, started

from clearhead import checkpoints, verify
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.equations import positions
from clearhead.inspection.verify import checks
from clearhead.io.safetensors import read_weights, write_weights
from clearhead.kernels.attention import scaled_dot_product_attention
from clearhead.models import heads
from clearhead.models.encoder import EncoderModel

COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch):
    """Compiling takes longer than all the rest; the command does."""
    monkeypatch.setattr(checks, "has_compiler", lambda: False)


def failed(certificate):
    return {check.name for check in certificate.checks if not check.holds}


@pytest.mark.parametrize("name", sorted(checkpoints.FAMILIES))
def test_a_good_encoder_passes(name, tmp_path):
    families.make(name, tmp_path)
    found = verify(tmp_path, against="transformers")
    assert found.holds, failed(found)
    assert {check.name for check in found.checks} >= {"padding on the left", "packed = padded", "bfloat16"}


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_a_good_head_passes(name, kind, tmp_path):
    families.make(name, tmp_path, kind)
    found = verify(tmp_path)
    assert found.holds, failed(found)
    assert found.summary == "all hold"
    assert {check.name for check in found.checks} >= {"head: padding on the left", "head: parity with transformers"}


def test_a_planted_fault_in_a_head_is_found(tmp_path, monkeypatch):
    families.make("bert", tmp_path, "ForSequenceClassification")
    whole, saved = heads.EncoderClassifier, EncoderFamily.save_with_head
    monkeypatch.setattr(whole, "answer", lambda self, hidden, keep: self.head(hidden.mean(dim=1)))
    assert failed(verify(tmp_path)) == {
        "head: padding on the right",
        "head: padding on the left",
        "head: each text alone",
        "head: parity with transformers",
    }
    monkeypatch.undo()
    monkeypatch.setattr(checks, "has_compiler", lambda: False)

    def forgetful(self, model, folder):
        model = copy.deepcopy(model)
        model.head.out.bias += 1
        saved(self, model, folder)

    monkeypatch.setattr(EncoderFamily, "save_with_head", forgetful)
    assert failed(verify(tmp_path)) == {"saved and opened again"}
    monkeypatch.undo()
    weights = read_weights(tmp_path)[0]
    weights["classifier.weight"].fill_(torch.nan)
    write_weights(tmp_path / "model.safetensors", weights)
    with pytest.raises(ValueError, match="classifier.weight holds NaN"):
        verify(tmp_path)


def test_a_head_that_was_not_tried_is_said(tmp_path):
    families.make("bert", tmp_path, "ForMaskedLM")
    found = verify(tmp_path)
    assert found.holds
    assert found.summary == "all that was tried holds; its head, if it has one, was not tried"
    (check,) = (check for check in found.checks if check.name == "head")
    assert "BertForMaskedLM" in check.note


@pytest.mark.parametrize("name", seq2seq.FAMILIES)
def test_a_good_encoder_decoder_passes(name, tmp_path):
    # Products of trained weights keep the size of what they multiply: the spread of a weight times the root of its
    # width is 1.05 in the translator inside the package, the median of its matrices. The tiny ones' usual 2.3 is for
    # tests in float32: it makes each layer double what the one before rounded away, and what bfloat16 then leaves
    # says nothing about models that people use.
    changes = {"init_std": 32**-0.5} if "init_std" in seq2seq.KINDS[name][2] else {}
    seq2seq.make(name, tmp_path, **changes)
    found = verify(tmp_path)
    assert found.holds, failed(found)
    assert {check.name for check in found.checks} >= {"cached = uncached", "one beam = greedy", "each text alone"}


@pytest.mark.parametrize("name", seq2seq.FAMILIES)
def test_large_random_weights_are_too_much_for_bfloat16_alone(name, tmp_path):
    seq2seq.make(name, tmp_path)
    assert failed(verify(tmp_path)) <= {"bfloat16"}


def shifted(ids, pad_id):
    return positions.positions_after_padding(ids, pad_id).clamp(min=1) - 1


def unmasked(q, k, v, mask=None, **options):
    return scaled_dot_product_attention(q, k, v, None, **options)


def mixed_heads(x):
    batch, heads, length, width = x.shape
    return x.reshape(batch, length, heads * width)


sinusoids = positions.concatenated_sinusoids


def cosines_first(length, width, **options):
    sines, cosines = sinusoids(length, width, **options).chunk(2, dim=1)
    return torch.cat([cosines, sines], dim=1)


forward = EncoderModel.forward


def reversed_under_padding(self, ids, mask=None):
    """The right vectors at the wrong tokens: their mean stays."""
    states = forward(self, ids, mask)
    for row, kept in enumerate(ids != self.config.pad_id):
        if not kept.all():
            states[row, kept] = states[row, kept].flip(0)
    return states


def without_windows(self, mask, length):
    return mask


buckets = positions.relative_buckets


def too_far(*places, max_distance, **options):
    return buckets(*places, max_distance=2 * max_distance, **options)


PARITY = "parity with transformers"
T5_BUCKETS = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
FAULTS = [
    ("roberta", "clearhead.models.encoder", "positions_after_padding", shifted, {PARITY}),
    ("bert", "clearhead.layers.attention", "scaled_dot_product_attention", unmasked, {"padding on the right", "packed = padded"}),
    ("bert", "clearhead.layers.attention", "merge_heads", mixed_heads, {PARITY}),
    ("marian", "clearhead.equations.positions", "concatenated_sinusoids", cosines_first, {PARITY}),
    ("modernbert of its own windows", "clearhead.layers.attention.MultiHeadAttention", "apply_window", without_windows, {PARITY}),
    ("t5", "clearhead.equations.positions", "relative_buckets", too_far, {PARITY}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "where", "name", "fault", "found"), FAULTS)
def test_a_planted_fault_is_found(family, where, name, fault, found, tmp_path, monkeypatch):
    family, _, own = family.partition(" of ")
    # transformers' own sizes, which the tiny models do not have
    sizes = {"modernbert": {"local_attention": 128, "max_position_embeddings": 512}, "t5": T5_BUCKETS}
    changes = sizes.get(family, {}) if own or family == "t5" else {}
    (seq2seq if family in seq2seq.KINDS else families).make(family, tmp_path, **changes)
    monkeypatch.setattr(f"{where}.{name}", fault)
    certificate = verify(tmp_path)
    assert not certificate.holds
    assert found <= failed(certificate)


@pytest.mark.parametrize(("family", "longest"), [("bert", 16), ("roberta", 18), ("marian", 16)])
def test_models_of_short_texts_pass(family, longest, tmp_path):
    short = {"max_position_embeddings": longest} | ({"init_std": 32**-0.5} if family in seq2seq.KINDS else {})
    (seq2seq if family in seq2seq.KINDS else families).make(family, tmp_path, **short)
    assert verify(tmp_path).holds


def test_right_vectors_at_the_wrong_tokens_are_found(tmp_path, monkeypatch):
    families.make("bert", tmp_path)
    monkeypatch.setattr(EncoderModel, "forward", reversed_under_padding)
    found = failed(verify(tmp_path))
    assert {"padding on the right", "padding on the left"} <= found
    assert not {"padding on the right, mean", "padding on the left, mean"} & found


def test_what_bfloat16_rounds_away_is_found(tmp_path):
    """Values with a large part in common, which the output's bias takes off again: 24 bits hold the rest, 8 do not."""
    model, common = families.make("bert", tmp_path), 20.0
    with torch.no_grad():
        for layer in model.encoder.layer:
            output = layer.attention.output.dense
            layer.attention.self.value.bias += common
            output.bias -= common * output.weight.sum(dim=1)
    model.save_pretrained(tmp_path)
    assert failed(verify(tmp_path)) == {"bfloat16"}


def test_what_overflows_in_bfloat16_is_found(tmp_path):
    """float32 ends at 3.4028e38 and bfloat16 at 3.3895e38: between them a number is infinite in one of the two."""
    model = families.make("bert", tmp_path)
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.bias[0] = -3.4e38  # GELU makes 0 of it
    model.save_pretrained(tmp_path)
    assert failed(verify(tmp_path)) == {"bfloat16"}


def raising(message):
    def fault(*given, **named):
        raise RuntimeError(message)

    return fault


def test_a_check_that_raises_fails_with_the_errors_text(tmp_path, monkeypatch):
    families.make("bert", tmp_path)
    monkeypatch.setattr("clearhead.checkpoints.encoder_family.EncoderFamily.save", raising("no room\nat all"))
    monkeypatch.setattr("clearhead.inspection.verify.checks.inference_copy", raising(""))
    certificate = verify(tmp_path)
    notes = {check.name: check.note for check in certificate.checks if not check.holds}
    assert notes["saved and opened again"] == "RuntimeError: no room"
    assert notes["bfloat16"] == "RuntimeError: "
    assert json.loads(json.dumps(certificate.as_dict()))["holds"] is False
    monkeypatch.setattr("clearhead.models.encoder.EncoderModel.forward", raising("not even once"))
    assert {check.note for check in verify(tmp_path).checks if not check.holds} >= {"RuntimeError: not even once"}


def test_both_measures_of_tokens_are_stated(tmp_path):
    families.make("bert", tmp_path)
    bounds = {check.name: (check.bound, check.measured) for check in verify(tmp_path).checks}
    for name in ("padding on the right", "padding on the left", "each text alone", "another order of the batch"):
        assert bounds[name] == (1e-5, "largest distance of a token's vector, of its norm")
        assert bounds[f"{name}, mean"] == (1e-6, "largest distance of a text's mean vector, of its norm")


def test_every_file_is_hashed(tmp_path):
    families.make("bert", tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / ".cache").mkdir()
    for name in ("1_Pooling/config.json", ".cache/seen", ".hidden", "certificate.json"):
        (tmp_path / name).write_text("{}")
    files = verify(tmp_path).files
    assert {"config.json", "model.safetensors", "vocab.txt", "1_Pooling/config.json"} <= files.keys()
    assert not {".cache/seen", ".hidden", "certificate.json"} & files.keys()
    assert files["1_Pooling/config.json"] == hashlib.sha256(b"{}").hexdigest()


def test_without_transformers_what_stays_open_is_said(tmp_path, monkeypatch):
    families.make("bert", tmp_path)
    assert verify(tmp_path).summary == "all hold"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    found = verify(tmp_path)
    assert found.holds
    assert found.summary.startswith("all that was tried holds; parity with transformers was not tried")
    with pytest.raises(ValueError, match="transformers is not installed"):
        verify(tmp_path, against="transformers")


@pytest.mark.slow
def test_a_compiled_encoder_decoder_is_the_eager_one(tmp_path):
    if not COMPILER:
        pytest.skip("there is no C++ compiler")
    seq2seq.make("marian", tmp_path, init_std=32**-0.5)
    status, out, err = clearhead("verify", tmp_path)
    assert status == 0, out + err
    assert "holds" in next(line for line in out.splitlines() if line.startswith("compiled = eager"))


@pytest.mark.slow
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
    weights = read_weights(tmp_path)[0]
    weights["encoder.layer.0.output.LayerNorm.weight"].fill_(3e38)
    write_weights(tmp_path / "model.safetensors", weights)
    status, out, err = started("verify", tmp_path, "--output", tmp_path / "other.json")
    assert status == 1
    assert "FAILS" in out
    assert json.loads((tmp_path / "other.json").read_text())["holds"] is False


def test_what_cannot_be_verified_is_said(tmp_path):
    assert "no does not exist" in refused("verify", "all-MiniLM-L6-v2", "-o", tmp_path / "no" / "a.json")
    with pytest.raises(ValueError, match="no-such-model"):
        verify("no/no-such-model")
    with pytest.raises(ValueError, match="compared with transformers; got 'jax'"):
        verify("all-MiniLM-L6-v2", against="jax")
