"""An index refuses every model but the one that made it, and names the difference; kernels may differ by a rounding."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
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


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_kernels_of_other_processors_are_no_false_alarm(made, tiny_bert, capability):
    code = "import sys; from clearhead import Index, TextEncoder; "
    code += "Index.open(sys.argv[1], TextEncoder.from_pretrained(sys.argv[2], precision='float32', device='cpu'))"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", code, str(made), str(tiny_bert)], env=environment, check=True)


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
        for damage in ("", "{}", json.dumps(data | {"vectors": [[0.0]]}), json.dumps(data | {"texts": ["a"] * 32})):
            path.write_text(damage)
            with pytest.raises(ValueError, match="canaries.json is damaged"):
                Index.open(made, encoder)
        path.write_text(json.dumps(data | {"vectors": (np.array(data["vectors"]) * 1.001).tolist()}))
        with pytest.raises(OtherModelError, match="differs by 0.001, expected at most 0.0001"):
            Index.open(made, encoder)
    finally:
        path.write_text(whole)
