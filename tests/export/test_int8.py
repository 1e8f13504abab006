"""`clearhead quantize`: 8-bit weights in a file, which loading recognizes and `auto` uses."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.command import clearhead, refused
from support.models import folders
from support.models.int8 import needs_kernels
from support.models.tiny import make_bert

from clearhead import TextEncoder, TextToText, verify
from clearhead.export.int8 import quantize
from clearhead.generation.shortlist import shortlist
from clearhead.inspection.verify import checks
from clearhead.kernels import cpu
from clearhead.runtime.int8 import files

pytestmark = needs_kernels


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantize")
    make_bert(folder / "model", hidden_size=64, intermediate_size=128)
    return folder, quantize(folder / "model", folder / "int8")


def change_metadata(path, **changes):
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata={**metadata, **changes})


def test_file_gives_the_vectors_of_a_model_quantized_on_loading(quantized):
    folder, report = quantized
    made, read = (TextEncoder.from_pretrained(folder / name, precision="int8") for name in ("model", "int8"))
    texts = ["the house is old", "hello world"]
    assert np.array_equal(made.encode(texts), read.encode(texts))
    assert read.int8.file == folder / "int8" / files.FILE
    assert report.loss["smallest cosine"] > 0.99
    assert json.loads((folder / "int8" / "export.json").read_text())["int8"] == report.loss


def test_reading_does_not_calibrate(quantized, monkeypatch):
    monkeypatch.setattr(files, "quantize_model", None)
    TextEncoder.from_pretrained(quantized[0] / "int8", precision="int8")


def test_auto_uses_accurate_weights_only(quantized, tmp_path, monkeypatch):
    folder = shutil.copytree(quantized[0] / "int8", tmp_path / "copy")
    for changes, expected in (
        ({"cosine": "0.9981", "mean_cosine": "0.9996"}, True),
        ({"cosine": "0.9979"}, False),
        ({"cosine": "nan"}, False),
        ({"cosine": "x"}, False),
        ({"cosine": "0.9981", "mean_cosine": "0.9994"}, False),
        ({"mean_cosine": "0.9996"}, True),
        ({"format": "1"}, False),
    ):
        change_metadata(folder / files.FILE, **changes)
        assert (TextEncoder.from_pretrained(folder, device="cpu").precision.name == "int8") == expected
    change_metadata(folder / files.FILE, format="2")
    monkeypatch.setattr(cpu, "has", lambda name: name == "amx_bf16")
    assert TextEncoder.from_pretrained(folder, device="cpu").precision.name == "bfloat16"


@pytest.mark.slow
def test_verify_checks_the_weights(quantized, monkeypatch):
    monkeypatch.setattr(checks, "has_compiler", lambda: False)
    before, after = (
        next(check for check in verify(quantized[0] / name).checks if check.name == "int8")
        for name in ("model", "int8")
    )
    assert before.skipped
    assert "`clearhead quantize` makes them" in before.note
    assert after.holds
    assert 0 < after.error < after.bound
    monkeypatch.setattr(checks, "read_int8", lambda file, model: {})  # no layer is quantized
    unquantized = next(check for check in verify(quantized[0] / "int8").checks if check.name == "int8")
    assert unquantized.error < after.error


@pytest.mark.slow
def test_compiled_models_have_no_8_bits(quantized):
    folder = quantized[0] / "int8"
    with pytest.raises(ValueError, match="int8 has its own kernels and cannot be compiled; omit one of the two"):
        TextEncoder.from_pretrained(folder, precision="int8", device="cpu", compile=True)
    assert TextEncoder.from_pretrained(folder, device="cpu", compile=True).precision.name != "int8"


def test_weights_of_another_checkpoint_or_version_and_damaged_files_are_refused(quantized, tmp_path):
    folder = shutil.copytree(quantized[0] / "int8", tmp_path / "copy")
    path = folder / files.FILE

    def load_fails(words):
        with pytest.raises(ValueError, match=words) as caught:
            TextEncoder.from_pretrained(folder, precision="int8")
        assert str(path) in str(caught.value)

    change_metadata(path, format="0")
    load_fails("written by another version of clearhead; run `clearhead quantize` again")
    shutil.copy(quantized[0] / "int8" / files.FILE, path)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("weight"))
    save_file({**tensors, name: tensors[name] + 0.01}, folder / "model.safetensors", metadata={"format": "pt"})
    load_fails("made from other weights than those next to it")
    assert TextEncoder.from_pretrained(folder, precision="float32").encode("hello").any()
    path.write_bytes(path.read_bytes()[:100])
    load_fails("is damaged")


def test_auto_warns_of_damaged_weights(quantized, tmp_path, caplog):
    folder = shutil.copytree(quantized[0] / "int8", tmp_path / "copy")
    (folder / files.FILE).write_bytes((folder / files.FILE).read_bytes()[:100])
    assert TextEncoder.from_pretrained(folder).precision.name != "int8"
    assert f"{folder / files.FILE} is damaged" in caplog.text
    assert "run `clearhead quantize` again" in caplog.text


@pytest.mark.slow
def test_the_copy_has_the_shortlist(tmp_path):
    source = tmp_path / "marian"
    source.mkdir()
    folders.marian(source)
    for name in ("source.txt", "target.txt"):
        (tmp_path / name).write_text("the house\na small dog\n")
    status, _, err = clearhead("shortlist", str(source), str(tmp_path / "source.txt"), str(tmp_path / "target.txt"))
    assert status == 0, err
    quantize(source, tmp_path / "int8")
    assert TextToText.from_pretrained(tmp_path / "int8", precision="float32").shortlist is None  # only on request
    loaded = [TextToText.from_pretrained(tmp_path / name, shortlist=True) for name in ("marian", "int8")]
    assert torch.equal(loaded[0].shortlist.tokens_T, loaded[1].shortlist.tokens_T)


def test_a_shortlist_of_another_vocabulary_is_not_copied(tmp_path):
    source = tmp_path / "marian"
    source.mkdir()
    folders.marian(source)
    shutil.copy(TextToText.from_pretrained().int8.file.with_name(shortlist.FILE), source)
    assert "was made for another vocabulary" in refused("quantize", source, tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


def change_tensor(field, change):
    name = f"encoder.layers.0.attention.qkv.{field}"
    return lambda tensors: {**tensors, name: change(tensors[name])}


DAMAGED = {
    # shapes: the kernels read and write as many elements as the file says
    "more columns": change_tensor("codes_NK", lambda codes: torch.zeros(192, 128, dtype=torch.int8)),
    "fewer columns": change_tensor("codes_NK", lambda codes: codes[:, :32]),
    "fewer rows": change_tensor("codes_NK", lambda codes: codes[:16]),
    "one dimension": change_tensor("codes_NK", torch.flatten),
    "unsigned": change_tensor("codes_NK", lambda codes: codes.view(torch.uint8)),
    "a code below -127": change_tensor("codes_NK", lambda codes: codes.clone().fill_(-128)),
    "fewer scales": change_tensor("scale_N", lambda scale: scale[:7]),
    "scales in float64": change_tensor("scale_N", torch.Tensor.double),
    "scales that are NaN": change_tensor("scale_N", lambda scale: scale * math.nan),
    "negative columns": change_tensor("outliers_J", lambda columns: columns - 10**6),
    "columns beyond the width": change_tensor("outliers_J", lambda columns: columns + 60),
    "one column several times": change_tensor("outliers_J", torch.zeros_like),
    "too many outliers": change_tensor("outliers_J", lambda columns: torch.arange(17)),
    "fewer outliers": change_tensor("outliers_J", lambda columns: columns[:3]),
    "fractional columns": change_tensor("outliers_J", torch.Tensor.float),
    "a transposed matrix": change_tensor("outlier_weight_JN", torch.t),
    "infinite weights": change_tensor("outlier_weight_JN", lambda weight: weight * math.inf),
    "a missing layer": lambda tensors: {name: tensor for name, tensor in tensors.items() if ".qkv." not in name},
    "no tensors": lambda tensors: {},
    "another tensor": lambda tensors: {**tensors, "encoder.codes_NK": torch.zeros(3)},
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGED)
def test_tensors_that_do_not_fit_the_model_never_reach_the_kernels(quantized, tmp_path, damage):
    folder = shutil.copytree(quantized[0] / "int8", tmp_path / "copy")
    path = folder / files.FILE
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = DAMAGED[damage](load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    message = refused("encode", "hello", "-m", folder, "--precision", "int8")
    assert f"{path} is damaged: encoder." in message
    assert "run `clearhead quantize` again" in message


@pytest.mark.slow
def test_encoder_decoder(tmp_path):
    (tmp_path / "model").mkdir()
    folders.marian(tmp_path / "model", d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128)
    report = quantize(tmp_path / "model", tmp_path / "int8", texts=["the house"])
    assert report.loss["smallest cosine"] > 0.9
    assert TextToText.from_pretrained(tmp_path / "int8", precision="int8").generate("the house") is not None


def test_bundled_translator_runs_in_8_bits_by_default():
    translator = TextToText.from_pretrained(device="cpu")
    assert (translator.precision.name == "int8") == (not cpu.has("amx_bf16"))
    assert files.is_accurate(translator.int8.file)
    assert files.read_int8(translator.int8.file, translator.model)


def test_command(tmp_path):
    make_bert(tmp_path / "model", hidden_size=64, intermediate_size=128)
    status, _, err = clearhead("quantize", tmp_path / "model", tmp_path / "int8")
    assert status == 0
    assert "smallest cosine with float32: 0.9" in err
    assert err.endswith(f"wrote {tmp_path / 'int8'}\n")
    make_bert(tmp_path / "odd", hidden_size=24, intermediate_size=40, num_attention_heads=2)
    assert "widths of this model's layers are not multiples of 16" in refused(
        "quantize", tmp_path / "odd", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "marian"])
def test_command_reports_truncated_texts_once(tmp_path, model):
    if model == "bert":
        make_bert(tmp_path / model, hidden_size=64, intermediate_size=128)
    else:
        (tmp_path / model).mkdir()
        folders.marian(tmp_path / model, d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128)
    (tmp_path / "texts.txt").write_text("hello " * 600)
    status, _, err = clearhead("quantize", tmp_path / model, tmp_path / "int8", "--texts", tmp_path / "texts.txt")
    assert status == 0, err
    assert err.count(" truncated") == 1
    assert "strict" not in err


def test_strict_refuses_another_precision(tmp_path):
    make_bert(tmp_path, hidden_size=24, intermediate_size=40, num_attention_heads=2)
    arguments = ["encode", "Hello", "-m", tmp_path, "--precision", "int8"]
    status, _, err = clearhead(*arguments)
    assert status == 0
    assert "int8 is not available: the widths" in err
    status, out, err = clearhead(*arguments, "--strict")
    assert (status, out) == (1, "")
    assert "error: int8 is not available: the widths" in err
    assert "Computing in" not in err


@pytest.mark.slow
@pytest.mark.parametrize("family", ["m2m100", "nllb"])
def test_multilingual_model_needs_no_target_language(tmp_path, family):
    (tmp_path / family).mkdir()
    folders.m2m100(tmp_path / family) if family == "m2m100" else folders.plain(family, tmp_path / family)
    report = quantize(tmp_path / family, tmp_path / "int8")
    assert report.loss["smallest cosine"] > 0.99
    made = TextToText.from_pretrained(tmp_path / "int8", precision="int8")
    assert made.int8.file == tmp_path / "int8" / files.FILE
