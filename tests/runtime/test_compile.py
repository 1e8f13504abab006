"""Compiled layers equal eager layers, and are cached between runs.

They run in their own processes: the compiler cannot trace functions whose shapes the tests check.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.models.families import make

from clearhead import TextEncoder
from clearhead.runtime import compile

TEXTS = ["the old bridge", "hello world this is a test", "a", "the old bridge"]
COMPILER = pytest.mark.skipif(not compile.has_compiler(), reason="no C++ compiler is installed")
CLEARHEAD = str(Path(sys.executable).with_name("clearhead"))


def environment(tmp_path):
    inherited = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    return {**inherited, "XDG_CACHE_HOME": str(tmp_path / "cache")}


COMPILED_IS_EAGER = """
import sys
import torch
from pathlib import Path
from clearhead import checkpoints, masks, watch
from clearhead.runtime.compile import CompiledLayer
from clearhead.runtime.inference_copy import inference_copy

torch.manual_seed(0)
model, _ = checkpoints.load_encoder(Path(sys.argv[1]))
while len(model.encoder.layers) < int(sys.argv[2]):
    model.encoder.layers.append(model.encoder.layers[-1])
lengths = [5, 9, 3]
texts = [torch.randint(5, 30, (length,)) for length in lengths]
together = torch.cat(texts)[None], masks.packed(lengths)
for precision, bound in (("float32", 1e-5), ("bfloat16", 0.05)):
    runs = inference_copy(model, precision, torch.device("cpu"), compile=True)
    assert all(isinstance(layer, CompiledLayer) for layer in runs.encoder.layers)
    assert not any(isinstance(layer, CompiledLayer) for layer in model.encoder.layers)
    with torch.inference_mode(), torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        wanted, found = model(*together), runs(*together).float()
        assert (found - wanted).norm() <= bound * wanted.norm(), (precision, found, wanted)
        for text, among in zip(texts, found[0].split(lengths)):
            alone = runs(text[None], masks.packed([len(text)]))[0].float()
            assert (alone - among).norm() <= min(bound, bound**1.2) * among.norm(), (precision, alone, among)
        with watch(runs) as seen:
            runs(*together)
        with watch(model) as expected:
            model(*together)
    for one, other in zip(seen.records, expected.records, strict=True):
        torch.testing.assert_close(one.values.float(), other.values, atol=bound, rtol=bound)
"""


@pytest.mark.slow
@COMPILER
@pytest.mark.parametrize(("name", "layers"), [("bert", 9), ("modernbert", 1), ("mpnet", 1)])
def test_compiled_equals_eager_for_any_length_and_many_layers(name, layers, tmp_path):
    make(name, tmp_path / "model")
    command = [sys.executable, "-c", COMPILED_IS_EAGER, str(tmp_path / "model"), str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@COMPILER
def test_command_compiles_once(tiny_bert, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    outputs, written = [], []
    for number, options in enumerate([["--compile"], ["--compile"], []]):
        output = tmp_path / f"{number}.npy"
        command = [
            CLEARHEAD,
            "encode",
            str(tmp_path / "in.txt"),
            "-o",
            str(output),
            "--model",
            str(tiny_bert),
            *options,
        ]
        done = subprocess.run(
            [*command, "--precision", "float32", "--quiet"], capture_output=True, text=True, env=environment(tmp_path)
        )
        assert done.returncode == 0, done.stderr
        outputs.append(np.load(output))
        written.append(sorted((tmp_path / "cache/clearhead/inductor").rglob("*.so")))
    assert written[0]
    assert written[1] == written[0]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_allclose(outputs[0], outputs[2], atol=1e-5)


def test_missing_compiler_raises(tiny_bert, monkeypatch):
    monkeypatch.setattr(compile.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match=r"C\+\+ compiler.*--compile"):
        TextEncoder.from_pretrained(tiny_bert, compile=True)
