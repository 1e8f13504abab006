"""verify() passes every correct family and reports every planted fault."""

import copy
import hashlib
import importlib.util
import json
import shutil

import pytest
import torch
from support.command import clearhead, refused, started
from support.models import families, seq2seq

from clearhead import verify
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
    """Skip compilation, which takes longer than all other checks; the tests of the command compile."""
    monkeypatch.setattr(checks, "has_compiler", lambda: False)


def failed(certificate):
    return {check.name for check in certificate.checks if not check.holds}


@pytest.mark.slow
@pytest.mark.parametrize("name", families.FAMILIES)
def test_correct_encoder_passes(name, tmp_path):
    families.make(name, tmp_path)
    certificate = verify(tmp_path, reference="transformers")
    assert certificate.holds, failed(certificate)
    assert {check.name for check in certificate.checks} >= {"padding on the left", "packed = padded", "bfloat16"}


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_correct_head_passes(name, kind, tmp_path):
    families.make(name, tmp_path, kind)
    certificate = verify(tmp_path)
    assert certificate.holds, failed(certificate)
    assert certificate.summary == "all checks hold"
    assert {check.name for check in certificate.checks} >= {
        "head: padding on the left",
        "head: parity with transformers",
    }


@pytest.mark.slow
def test_reports_fault_in_head(tmp_path, monkeypatch):
    families.make("bert", tmp_path, "ForSequenceClassification")
    save_with_head = EncoderFamily.save_with_head
    monkeypatch.setattr(heads.EncoderClassifier, "logits", lambda self, hidden, keep: self.head(hidden.mean(dim=1)))
    assert failed(verify(tmp_path)) == {
        "head: padding on the right",
        "head: padding on the left",
        "head: unbatched",
        "head: parity with transformers",
    }
    monkeypatch.undo()
    monkeypatch.setattr(checks, "has_compiler", lambda: False)

    def save_other_bias(self, model, folder):
        model = copy.deepcopy(model)
        model.head.out.bias += 1
        save_with_head(self, model, folder)

    monkeypatch.setattr(EncoderFamily, "save_with_head", save_other_bias)
    assert failed(verify(tmp_path)) == {"saved and loaded"}
    monkeypatch.undo()
    weights = read_weights(tmp_path)[0]
    weights["classifier.weight"].fill_(torch.nan)
    write_weights(tmp_path / "model.safetensors", weights)
    with pytest.raises(ValueError, match="classifier.weight contains NaN"):
        verify(tmp_path)


def test_summary_names_skipped_head(tmp_path):
    families.make("bert", tmp_path, "ForMaskedLM")
    certificate = verify(tmp_path)
    assert certificate.holds
    assert certificate.summary == "all checks that ran hold; the head of this model was skipped"
    (check,) = (check for check in certificate.checks if check.name == "head")
    assert "BertForMaskedLM" in check.note


@pytest.mark.slow
@pytest.mark.parametrize("name", seq2seq.FAMILIES)
def test_correct_encoder_decoder_passes(name, tmp_path):
    # Trained weights keep the scale of activations: std times sqrt(width) has the median 1.05 in the bundled
    # translator. The tiny models' default is 2.3, which doubles the bfloat16 rounding error in every layer.
    changes = {"init_std": 32**-0.5} if "init_std" in seq2seq.KINDS[name][2] else {}
    seq2seq.make(name, tmp_path, **changes)
    certificate = verify(tmp_path)
    assert certificate.holds, failed(certificate)
    assert {check.name for check in certificate.checks} >= {"cached = uncached", "one beam = greedy", "unbatched"}


@pytest.mark.slow
@pytest.mark.parametrize("name", seq2seq.FAMILIES)
def test_large_random_weights_fail_only_bfloat16(name, tmp_path):
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
    """Return the correct vectors at wrong positions; their mean does not change."""
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
    ("modernbert with default windows", "clearhead.layers.attention.MultiHeadAttention", "apply_window", without_windows, {PARITY}),
    ("t5", "clearhead.equations.positions", "relative_buckets", too_far, {PARITY}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("family", "where", "name", "fault", "expected"), FAULTS)
def test_reports_fault(family, where, name, fault, expected, tmp_path, monkeypatch):
    family, _, default_sizes = family.partition(" with ")
    # the defaults of transformers, which differ from those of the tiny models
    sizes = {"modernbert": {"local_attention": 128, "max_position_embeddings": 512}, "t5": T5_BUCKETS}
    changes = sizes.get(family, {}) if default_sizes or family == "t5" else {}
    (seq2seq if family in seq2seq.KINDS else families).make(family, tmp_path, **changes)
    monkeypatch.setattr(f"{where}.{name}", fault)
    certificate = verify(tmp_path)
    assert not certificate.holds
    assert expected <= failed(certificate)


@pytest.mark.parametrize(("family", "longest"), [("bert", 16), ("roberta", 18), ("marian", 16)])
def test_short_models_pass(family, longest, tmp_path):
    short = {"max_position_embeddings": longest} | ({"init_std": 32**-0.5} if family in seq2seq.KINDS else {})
    (seq2seq if family in seq2seq.KINDS else families).make(family, tmp_path, **short)
    assert verify(tmp_path).holds


def test_reports_vectors_at_wrong_positions(tmp_path, monkeypatch):
    families.make("bert", tmp_path)
    monkeypatch.setattr(EncoderModel, "forward", reversed_under_padding)
    failures = failed(verify(tmp_path))
    assert {"padding on the right", "padding on the left"} <= failures
    assert not {"padding on the right, mean", "padding on the left, mean"} & failures


def test_bounds_of_lower_precisions_and_heads(tmp_path):
    families.make("bert", tmp_path, "ForSequenceClassification")
    checks_of_head = verify(tmp_path).checks
    bounds = {check.name: pytest.approx(check.bound) for check in checks_of_head}
    assert bounds["bfloat16"] == 1 - 0.9995
    assert bounds["int8"] == 1 - 0.99
    assert {check.bound for check in checks_of_head if "logits" in check.measured} == {1e-5}
    seq2seq.make("marian", tmp_path / "marian", init_std=32**-0.5)
    bounds = {check.name: pytest.approx(check.bound) for check in verify(tmp_path / "marian").checks}
    assert bounds["bfloat16"] == 1 - 0.9995


def test_page_states_the_lengths():
    assert (min(checks._LENGTHS), max(checks._LENGTHS)) == (1, 160)


def test_reports_bfloat16_rounding(tmp_path):
    """Add a large constant to the values and subtract it by the output bias: 24 bits keep the rest, 8 do not."""
    model, common = families.make("bert", tmp_path), 20.0
    with torch.no_grad():
        for layer in model.encoder.layer:
            output = layer.attention.output.dense
            layer.attention.self.value.bias += common
            output.bias -= common * output.weight.sum(dim=1)
    model.save_pretrained(tmp_path)
    assert failed(verify(tmp_path)) == {"bfloat16"}


def test_reports_bfloat16_overflow(tmp_path):
    """Use a bias between the largest bfloat16, 3.3895e38, and the largest float32, 3.4028e38."""
    model = families.make("bert", tmp_path)
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.bias[0] = -3.4e38  # GELU returns 0 for it
    model.save_pretrained(tmp_path)
    assert failed(verify(tmp_path)) == {"bfloat16"}


def raising(message):
    def fault(*args, **kwargs):
        raise RuntimeError(message)

    return fault


def test_check_that_raises_fails_with_error_text(tmp_path, monkeypatch):
    families.make("bert", tmp_path)
    monkeypatch.setattr("clearhead.checkpoints.encoder_family.EncoderFamily.save", raising("no room\nat all"))
    monkeypatch.setattr("clearhead.inspection.verify.checks.inference_copy", raising(""))
    certificate = verify(tmp_path)
    notes = {check.name: check.note for check in certificate.checks if not check.holds}
    assert notes["saved and loaded"] == "RuntimeError: no room"
    assert notes["bfloat16"] == "RuntimeError: "
    assert json.loads(json.dumps(certificate.as_dict()))["holds"] is False
    monkeypatch.setattr("clearhead.models.encoder.EncoderModel.forward", raising("not even once"))
    assert {check.note for check in verify(tmp_path).checks if not check.holds} >= {"RuntimeError: not even once"}


def test_token_checks_have_two_measures(tmp_path):
    families.make("bert", tmp_path)
    bounds = {check.name: (check.bound, check.measured) for check in verify(tmp_path).checks}
    for name in ("padding on the right", "padding on the left", "unbatched", "reversed batch"):
        assert bounds[name] == (1e-5, "largest relative error of a token vector")
        assert bounds[f"{name}, mean"] == (1e-6, "largest relative error of a mean vector")


def test_hashes_every_file(tmp_path):
    families.make("bert", tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / ".cache").mkdir()
    for name in ("1_Pooling/config.json", ".cache/seen", ".hidden", "certificate.json"):
        (tmp_path / name).write_text("{}")
    files = verify(tmp_path).files
    assert {"config.json", "model.safetensors", "vocab.txt", "1_Pooling/config.json"} <= files.keys()
    assert not {".cache/seen", ".hidden", "certificate.json"} & files.keys()
    assert files["1_Pooling/config.json"] == hashlib.sha256(b"{}").hexdigest()


def test_summary_names_skipped_parity(tmp_path, monkeypatch):
    families.make("bert", tmp_path)
    assert verify(tmp_path).summary == "all checks hold"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    certificate = verify(tmp_path)
    assert certificate.holds
    assert certificate.summary.startswith("all checks that ran hold; parity with transformers was skipped")
    with pytest.raises(ValueError, match="transformers is not installed"):
        verify(tmp_path, reference="transformers")


@pytest.mark.slow
def test_compiled_encoder_decoder_equals_eager(tmp_path):
    if not COMPILER:
        pytest.skip("no C++ compiler found")
    seq2seq.make("marian", tmp_path, init_std=32**-0.5)
    status, out, err = clearhead("verify", tmp_path)
    assert status == 0, out + err
    assert "holds" in next(line for line in out.splitlines() if line.startswith("compiled = eager"))


@pytest.mark.slow
def test_command_writes_certificate_next_to_weights(tmp_path):
    families.make("bert", tmp_path)
    status, out, err = clearhead("verify", tmp_path, "--write")
    assert status == 0, err
    assert "parity with transformers" in out
    compiled = next(line for line in out.splitlines() if line.startswith("compiled = eager"))
    assert "holds" in compiled if COMPILER else "no C++ compiler" in compiled
    written = json.loads((tmp_path / "certificate.json").read_text())
    assert written["holds"] is True
    assert written["versions"]["torch"] == torch.__version__
    assert "model.safetensors" in written["files"]
    assert "certificate.json" not in written["files"]
    weights = read_weights(tmp_path)[0]
    weights["encoder.layer.0.output.LayerNorm.weight"].fill_(3e38)
    write_weights(tmp_path / "model.safetensors", weights)
    status, out, err = started("verify", tmp_path, "--output", tmp_path / "other.json")
    assert status == 1
    assert "FAILS" in out
    assert json.loads((tmp_path / "other.json").read_text())["holds"] is False


@pytest.mark.slow
def test_command_writes_nothing_by_default(tmp_path):
    families.make("bert", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    status, _, err = clearhead("verify", tmp_path)
    assert status == 0, err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_refuses_missing_model_folder_and_reference(tmp_path):
    assert "no does not exist" in refused("verify", "all-MiniLM-L6-v2", "-o", tmp_path / "no" / "a.json")
    with pytest.raises(ValueError, match="no-such-model"):
        verify("no/no-such-model")
    with pytest.raises(ValueError, match="must be \"transformers\"; got 'jax'"):
        verify("all-MiniLM-L6-v2", reference="jax")


def test_each_check_is_reported_when_it_is_done(tiny_bert, monkeypatch):
    events = []
    bfloat16 = checks.Checks._bfloat16
    monkeypatch.setattr(checks.Checks, "_bfloat16", lambda self: events.append("bfloat16 starts") or bfloat16(self))
    certificate = verify(tiny_bert, on_check=lambda check: events.append(check.name))
    names = [check.name for check in certificate.checks]
    start = names.index("bfloat16")
    assert events == [*names[:start], "bfloat16 starts", *names[start:]]
