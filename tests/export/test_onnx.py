"""ONNX graphs in ONNX Runtime compute the values and tokens of the model; a wrong graph is not written."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from fuzz.mutations import make_constant
from support import forks
from support.command import clearhead, refused
from support.models import families, folders
from support.models.tiny import make_bert

from clearhead import TextEncoder, TextToText
from clearhead.export import example_inputs
from clearhead.pipelines.auto import load_pipeline
from clearhead.runtime.onnx import MANIFEST, OnnxSeq2Seq

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = ["hello", "the old bridge was closed after the storm", "is this the world ?", "hello world"] * 2
LINES = ["The old bridge was closed.", "", "A small boat took the children to school every morning", "Is it safe?"]


def written(folder, output, *options):
    """Export in a separate process: the type checks of the tests reject the dynamic sizes of a graph."""
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    status, _, err = clearhead("export", folder, output, "--to", "onnx", "--texts", folder / "texts.txt", *options)
    assert status == 0, err
    return err


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Return the folders of a model and of its graph."""
    folder = make_bert(tmp_path_factory.mktemp("bert"))
    written(folder, folder / "onnx")
    return folder, folder / "onnx"


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """Return the folders of a model and of its graphs."""
    folder = tmp_path_factory.mktemp("marian")
    folders.marian(folder, lively=True)
    written(folder, folder / "onnx")
    return folder, folder / "onnx"


def vectors(graph, encoder, texts):
    """Run a graph with ONNX Runtime only."""
    rows = [tokens.ids for tokens in encoder.tokenize(texts)]
    longest = max(map(len, rows))
    ids = np.array([[*row, *[0] * (longest - len(row))] for row in rows], dtype=np.int64)
    mask = np.array([[*[1] * len(row), *[0] * (longest - len(row))] for row in rows], dtype=np.int64)
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    return session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]


def near(result, expected):
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 8])
def test_vectors_for_any_batch_size_and_length(bert, count):
    folder, graphs = bert
    encoder = TextEncoder.from_pretrained(folder, precision="float32", device="cpu")
    near(vectors(graphs / "model.onnx", encoder, TEXTS[:count]), encoder.encode(TEXTS[:count]))
    assert json.loads((graphs / MANIFEST).read_text(encoding="utf-8"))["error"]["model.onnx"] < 1e-5
    assert not list(graphs.glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "pooling", "normalize"),
    [(name, *(("cls", True) if number % 2 else ("max", False))) for number, name in enumerate(families.FAMILIES)],
)
def test_every_encoder(tmp_path, family, pooling, normalize):
    families.make(family, tmp_path)
    plain = TextEncoder.from_pretrained(tmp_path, precision="float32", device="cpu")
    from clearhead.checkpoints import sentence_transformers as layout

    layout.write_settings(tmp_path, layout.SentenceSettings(pooling, normalize), plain.model.config.d_model)
    written(tmp_path, tmp_path / "onnx")
    encoder = TextEncoder.from_pretrained(tmp_path, precision="float32", device="cpu")
    near(vectors(tmp_path / "onnx" / "model.onnx", encoder, TEXTS[:3]), encoder.encode(TEXTS[:3]))


@pytest.mark.slow
def test_graph_of_a_short_example_holds_the_windows(tmp_path):
    folder = tmp_path / "model"
    families.make("modernbert", folder, local_attention=128, max_position_embeddings=400)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 400}), encoding="utf-8")
    written(folder, tmp_path / "onnx")
    encoder = TextEncoder.from_pretrained(folder, precision="float32", device="cpu")
    long = [" ".join(TEXTS * 10)]
    assert len(encoder.tokenize(long)[0].ids) > 200
    near(vectors(tmp_path / "onnx" / "model.onnx", encoder, long), encoder.encode(long))


@pytest.mark.slow
def test_parity_check_includes_a_text_of_maximum_length(tmp_path, bert):
    assert example_inputs.example_inputs(load_pipeline(bert[0]), ["hello"])[0].long["input_ids"].shape == (2, 24)
    families.make("modernbert", tmp_path, local_attention=600, max_position_embeddings=1000)
    (trial,) = example_inputs.example_inputs(load_pipeline(tmp_path), ["hello"] * 20)
    assert trial.long["attention_mask"].sum(1).tolist() == [3, 600]  # 300 to each side
    assert [len(batch["input_ids"]) for batch in trial.texts] == [16, 4]
    first, decoder, cached = example_inputs.example_inputs(load_pipeline("tatoeba-en-de"), ["Hello."])
    assert first.long["input_ids"].shape[1] == 512
    assert decoder.long["input_ids"].shape[1] + cached.long["input_ids"].shape[1] == 256


@pytest.mark.slow
def test_translation_has_the_same_tokens(marian):
    folder, graphs = marian
    ours = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    theirs = TextToText.from_pretrained(graphs, runtime="onnx")
    for options in ({"beam_size": 1}, {"beam_size": 4}, {"beam_size": 3, "num_return_sequences": 3}):
        result, expected = (
            one.generate(LINES, max_new_tokens=12, return_details=True, **options) for one in (theirs, ours)
        )
        assert [one.token_ids for one in result] == [one.token_ids for one in expected]
        assert [one.score for one in result] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert [t.id for t in theirs.stream(LINES[0], max_new_tokens=6)] == [
        t.id for t in ours.stream(LINES[0], max_new_tokens=6)
    ]
    sampled = [one.generate(LINES, do_sample=True, seed=3, beam_size=1) for one in (theirs, ours)]
    assert sampled[0] == sampled[1]


@pytest.mark.slow
def test_graphs_have_no_weights_to_save(marian, tmp_path):
    with pytest.raises(ValueError, match="save the model that it was made from"):
        TextToText.from_pretrained(marian[1], runtime="onnx").save_pretrained(tmp_path / "again")


@pytest.mark.slow
def test_command_translates_with_exported_models(marian):
    folder, graphs = marian
    stdin = "\n".join(LINES).encode()
    expected = clearhead("translate", "--model", folder, "--precision", "float32", "--max-new-tokens", 9, stdin=stdin)
    result = clearhead("translate", "--model", graphs, "--runtime", "onnx", "--max-new-tokens", 9, stdin=stdin)
    assert expected[0] == 0, expected
    assert result[:2] == expected[:2], result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"), [("bert", "ForSequenceClassification"), ("roberta", "ForQuestionAnswering")]
)
def test_heads(tmp_path, family, kind):
    theirs = families.make(family, tmp_path, kind)
    if family == "bert":
        assert "8-bit weights: largest difference of a logit" in written(tmp_path, tmp_path / "small", "--int8")
    written(tmp_path, tmp_path / "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    inputs = {"input_ids": torch.randint(9, 30, (3, 7)), "attention_mask": torch.ones(3, 7, dtype=torch.long)}
    if family == "bert":
        inputs["token_type_ids"] = (torch.arange(7) > 3).long().expand(3, 7)
    with torch.no_grad():
        expected = theirs(**inputs)
    names = [output.name for output in session.get_outputs()]
    assert names == (["logits"] if family == "bert" else ["start_logits", "end_logits"])
    for name, result in zip(names, session.run(names, {n: x.numpy() for n, x in inputs.items()}), strict=True):
        near(result, expected[name].numpy())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "mbart", "m2m_100"])
def test_every_encoder_decoder(tmp_path, kind):
    if kind == "m2m_100":
        folders.m2m100(tmp_path, lively=True)
    else:
        folders.plain(kind, tmp_path, lively=True)
    written(tmp_path, tmp_path / "onnx")
    ours = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    theirs = TextToText.from_pretrained(tmp_path / "onnx", runtime="onnx")
    languages = sorted(ours.tokenizer.languages)
    language_options = {"source_lang": languages[0], "target_lang": languages[1]} if languages else {}
    for beams in (1, 4):
        result, expected = (
            one.generate(LINES, beam_size=beams, max_new_tokens=9, return_details=True, **language_options)
            for one in (theirs, ours)
        )
        assert [one.token_ids for one in result] == [one.token_ids for one in expected]


@pytest.mark.slow
def test_int8_export_reports_its_error(bert, tmp_path):
    folder, graphs = bert
    err = written(folder, tmp_path / "small", "--int8")
    report = json.loads((tmp_path / "small" / MANIFEST).read_text(encoding="utf-8"))["int8"]
    assert 0.9 < report["smallest cosine"] <= report["mean cosine"] < 1.0
    assert f"8-bit weights: smallest cosine {report['smallest cosine']:.4f}" in err
    whole, small = ((path / "model.onnx").stat().st_size for path in (graphs, tmp_path / "small"))
    assert small < whole


APART = """
import sys
from clearhead.export import onnx
onnx._MAX_EMBEDDED_BYTES = 1000
onnx.export(*sys.argv[1:3], int8=sys.argv[3] == "8", texts=["hello"])
"""


@pytest.mark.slow
def test_8_bit_weights_in_external_files_are_smaller(bert, tmp_path):
    for bits in ("32", "8"):
        subprocess.run([sys.executable, "-c", APART, bert[0], tmp_path / bits, bits], check=True, capture_output=True)
    whole, small = (sorted((tmp_path / bits).rglob("*.data")) for bits in ("32", "8"))
    assert [path.name for path in whole] == [path.name for path in small] == ["model.onnx.data"]
    assert small[0].stat().st_size < 0.6 * whole[0].stat().st_size
    encoder = TextEncoder.from_pretrained(bert[0], precision="float32", device="cpu")
    result, expected = vectors(tmp_path / "8" / "model.onnx", encoder, TEXTS[:3]), encoder.encode(TEXTS[:3])
    assert torch.cosine_similarity(torch.from_numpy(result), torch.from_numpy(expected)).min() > 0.9


@pytest.mark.slow
def test_published_models_on_real_sentences(tmp_path):
    lines = (EXAMPLES / "everyday.txt").read_text(encoding="utf-8").splitlines()[:10]
    lines += (EXAMPLES / "sentences.txt").read_text(encoding="utf-8").splitlines()[:10]
    for model in ("all-MiniLM-L6-v2", "tatoeba-en-de"):
        status, _, err = clearhead("export", model, tmp_path / model, "--to", "onnx")
        assert status == 0, err
    encoder = TextEncoder.from_pretrained(precision="float32", device="cpu")
    near(vectors(tmp_path / "all-MiniLM-L6-v2" / "model.onnx", encoder, lines), encoder.encode(lines))
    ours = TextToText.from_pretrained(precision="float32", device="cpu")
    theirs = TextToText.from_pretrained(tmp_path / "tatoeba-en-de", runtime="onnx")
    for beams in (1, 5):
        outputs, expected = (one.generate(lines, beam_size=beams, return_details=True) for one in (theirs, ours))
        assert [one.token_ids for one in outputs] == [one.token_ids for one in expected]


WRONG = """
from clearhead.export import onnx
run = onnx.OnnxGraph.run
onnx.OnnxGraph.run = lambda *args: {name: 1.001 * output for name, output in run(*args).items()}
onnx.export(*__import__("sys").argv[1:], texts=["hello"])
"""


@pytest.mark.parametrize("plan", [{"d_model": 8}, {"vocab_size": "x", "eos_ids": [1]}, {"vocab_size": 9, "eos_ids": 1}])
def test_damaged_configs_are_refused(tmp_path, plan):
    (tmp_path / MANIFEST).write_text(json.dumps({"plan": plan}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"export\.json.*export the model again"):
        OnnxSeq2Seq(tmp_path)


@pytest.mark.slow
def test_graphs_of_another_model_are_refused_by_name(tmp_path):
    (tmp_path / "model").mkdir()
    folders.marian(tmp_path / "model")
    status, _, err = clearhead("export", tmp_path / "model", tmp_path / "graphs", "--to", "onnx")
    assert status == 0, err
    plan = json.loads((tmp_path / "graphs" / MANIFEST).read_text())
    for key, value, words in (
        ("num_layers", 10**6, "num_layers is 1000000; the encoder's graph has at most"),
        ("decoder_num_layers", 10**6, "decoder_num_layers is 1000000, and the graph has 3"),
        ("d_model", 0, "d_model"),
        ("d_model", 2**31, "overflowed"),
    ):
        shutil.copytree(tmp_path / "graphs", tmp_path / key, dirs_exist_ok=True)
        changed = plan | {"plan": plan["plan"] | {key: value}}
        (tmp_path / key / MANIFEST).write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"{key}/export\.json: .*{words}"):
            OnnxSeq2Seq(tmp_path / key)
    (tmp_path / "graphs" / "encoder_model.onnx").write_bytes((tmp_path / "graphs" / "decoder_model.onnx").read_bytes())
    with pytest.raises(ValueError, match=r"encoder_model\.onnx is another graph: it has no output last_hidden_state"):
        OnnxSeq2Seq(tmp_path / "graphs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "output", "values", "words"),
    [
        ("encoder_model", "last_hidden_state", np.float32(1), r"has the shape \(\); expected \(1, "),
        ("encoder_model", "last_hidden_state", np.ones((1, 3, 9), np.float32), r"has the shape \(1, 3, 9\)"),
        (
            "decoder_model",
            "logits",
            np.ones((7, 1, 184), np.float32),
            r"has the shape \(7, 1, 184\); expected \(1, 1, ",
        ),
        ("decoder_model", "logits", np.ones((1, 1, 3), np.float32), r"has the shape \(1, 1, 3\)"),
        ("decoder_model", "logits", np.ones((1, 1, 184), np.float16), r"has the type torch\.float16"),
        ("decoder_model", "present.0.decoder.key", np.float32(1), r"has the shape \(\); expected \(1, any size, 1, "),
        ("decoder_with_past_model", "logits", np.ones((1, 0, 184), np.float32), r"has the shape \(1, 0, 184\)"),
    ],
)
@pytest.mark.parametrize("beams", [1, 2])
def test_outputs_of_another_shape_are_refused_by_name(marian, tmp_path, graph, output, values, words, beams):
    graphs = shutil.copytree(marian[1], tmp_path / "graphs")
    make_constant(graphs / f"{graph}.onnx", output, np.asarray(values))
    translator = TextToText.from_pretrained(graphs, runtime="onnx")
    with pytest.raises(ValueError, match=rf"{graph}\.onnx: the output {re.escape(output)} {words}"):
        translator.generate(["the old bridge was closed"], beam_size=beams, max_new_tokens=3)


@pytest.mark.slow
def test_wrong_graph_is_not_written(bert, tmp_path):
    done = subprocess.run([sys.executable, "-c", WRONG, bert[0], tmp_path / "wrong"], capture_output=True, check=False)
    assert b"ValueError: model.onnx: its outputs are 1.0e-03 from the model's" in done.stderr
    assert b"at most 1e-04 is allowed" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_invalid_exports_are_refused(bert, tmp_path):
    folder, graphs = bert
    err = refused("export", folder, tmp_path / "a", "--to", "transformers", "--int8")
    assert "--int8 is for onnx, ctranslate2 and web" in err
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    for to in ("onnx", "transformers", "ctranslate2"):
        err = refused("export", folder, tmp_path / "a", "--to", to, "--texts", tmp_path / "empty.txt")
        assert f"{tmp_path / 'empty.txt'} has no text" in err
    err = refused("translate", "--runtime", "onnx")
    assert "has no export.json. Run `clearhead export MODEL OUT --to onnx`, and use OUT as the model" in err
    for options in (("--precision", "bfloat16"), ("--device", "cuda")):
        err = refused("translate", "--model", graphs, "--runtime", "onnx", *options)
        assert f"computes in float32 on the CPU; got {'bfloat16' if '--precision' in options else 'auto'!r}" in err
    err = refused("translate", "--model", graphs, "--runtime", "onnx")
    assert "no config of an encoder–decoder" in err
    err = refused("export", folder, tmp_path / "a", "--to", "onnx", hook=partial(forks.hide_packages, "onnxscript"))
    assert 'needs onnxscript: pip install "clearhead[export]"' in err


def test_prompts_outside_the_pooling_are_refused(tmp_path):
    folder = make_bert(tmp_path / "model")
    from clearhead.checkpoints import sentence_transformers as layout

    layout.write_settings(folder, layout.SentenceSettings(prompts={"query": "query: "}, pool_prompt=False), 32)
    assert "include_prompt=false" in refused("export", folder, tmp_path / "out", "--to", "onnx")
    assert not (tmp_path / "out").exists()
