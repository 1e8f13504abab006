"""An index refuses every model but the one that made it, and names the difference; kernels may differ by a rounding."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.data.indexes import DOCUMENTS

from clearhead import Index, TextEncoder
from clearhead.retrieval import canaries
from clearhead.retrieval.identity import OtherModelError


@pytest.fixture(scope="module")
def made(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "index"
    return Index.build(encoder, DOCUMENTS[:10], folder).folder


def load(folder, **options):
    return TextEncoder.from_pretrained(folder, **{"precision": "float32", "device": "cpu"} | options)


def edit(folder, name, **changes):
    data = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(data | changes))


def test_same_model_opens_from_another_place_and_in_bfloat16(made, tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "copy")
    Index.open(made, load(tmp_path / "copy"))
    Index.open(made, load(tiny_bert, precision="bfloat16"))


def test_dropout_is_no_other_architecture(made, tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "copy")
    edit(tmp_path / "copy", "config.json", hidden_dropout_prob=0.4, attention_probs_dropout_prob=0.3)
    Index.open(made, load(tmp_path / "copy"))


def open_with_kernels(index, model, instructions, precision):
    """Open an index in a process whose kernels are limited to an instruction set of torch, oneDNN and MKL."""
    capability, onednn, mkl = {
        "none": ("default", "SSE41", "SSE4_2"),
        "avx2": ("avx2", "AVX2", "AVX2"),
        "avx512": ("avx512", "AVX512_CORE", "AVX512"),
    }[instructions]
    code = "import sys; from clearhead import Index, TextEncoder; "
    code += "Index.open(sys.argv[1], TextEncoder.from_pretrained(sys.argv[2], precision=sys.argv[3], device='cpu'))"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": onednn}
    environment |= {"MKL_ENABLE_INSTRUCTIONS": mkl}
    subprocess.run([sys.executable, "-c", code, str(index), str(model), precision], env=environment, check=True)


KERNELS = ["none", "avx2", *(["avx512"] if torch.backends.cpu.get_cpu_capability() == "AVX512" else [])]
"""Instructions that this processor has."""


@pytest.mark.slow
@pytest.mark.parametrize("instructions", KERNELS)
def test_kernels_of_other_processors_are_no_false_alarm(made, tiny_bert, instructions):
    open_with_kernels(made, tiny_bert, instructions, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_kernels_of_other_processors_are_no_false_alarm_of_a_trained_model(minilm, minilm_folder, tmp_path, precision):
    made = Index.build(minilm, DOCUMENTS[:10], tmp_path / "index").folder
    for instructions in KERNELS:
        open_with_kernels(made, minilm_folder, instructions, precision)


def test_canaries_find_what_hashes_do_not(made, tiny_bert, monkeypatch):
    real = TextEncoder.encode_tokens
    encoder = load(tiny_bert)
    canaries._computed.clear()
    for factor, is_found in ((1.0 + 1e-6, False), (1.001, True)):
        monkeypatch.setattr(TextEncoder, "encode_tokens", lambda *rest, factor=factor: real(*rest) * factor)
        if is_found:
            with pytest.raises(OtherModelError, match=r"has other vectors than .* now: .* expected at most 0\.0001"):
                Index.open(made, encoder)
        else:
            Index.open(made, encoder)
        canaries._computed.clear()


def test_page_states_the_bounds():
    assert canaries.BOUNDS == {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.1}


def test_canaries_are_computed_once(made, encoder, monkeypatch):
    Index.open(made, encoder)
    monkeypatch.setattr(TextEncoder, "encode_tokens", None)
    Index.open(made, encoder)


def test_damaged_canaries_are_refused(made, encoder):
    path = made / canaries.CANARIES_FILE
    whole = path.read_text()
    data = json.loads(whole)
    assert len(data["texts"]) == 32
    try:
        beyond_floats = data | {"vectors": [[10**400, *data["vectors"][0][1:]], *data["vectors"][1:]]}
        damaged = [{}, data | {"vectors": [[0.0]]}, data | {"texts": ["a"] * 32}, beyond_floats]
        for damage in ("", *map(json.dumps, damaged)):
            path.write_text(damage)
            with pytest.raises(ValueError, match="canaries.json is damaged"):
                Index.open(made, encoder)
        path.write_text(json.dumps(data | {"vectors": (np.array(data["vectors"]) * 1.001).tolist()}))
        with pytest.raises(OtherModelError, match="differs by 0.001, expected at most 0.0001"):
            Index.open(made, encoder)
    finally:
        path.write_text(whole)
