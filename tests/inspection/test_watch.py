"""watch() records the weights of the explicit equation for the selected heads, without changes to the model."""

import subprocess
import sys

import pytest
import torch
from support.models import families, seq2seq

from clearhead import (
    CrossAttention,
    Decoder,
    DecoderLayer,
    Encoder,
    GenerationConfig,
    MultiHeadAttention,
    QuestionAnswerer,
    TextClassifier,
    TextEncoder,
    TextToText,
    checkpoints,
    masks,
    watch,
)
from clearhead.equations import attention
from clearhead.generation.generate import generate
from clearhead.generation.strategy import EncodedSource
from clearhead.inspection.attention.capture import _as_indices
from clearhead.kernels.attention import attention_backend

IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 3, 7, 0, 0]])
KEEP = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
TARGET = torch.tensor([[1, 2, 3], [4, 5, 6]])


def hooks_of(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.fixture
def oracle(monkeypatch):
    """The weights of the explicit equation, call by call, if the model runs with it."""
    calls = []
    explicit = attention.scaled_dot_product

    def record(q, k, v, mask=None, *, scale=None):
        values, weights = explicit(q, k, v, mask, scale=scale)
        calls.append(weights)
        return values, weights

    monkeypatch.setattr(attention, "scaled_dot_product", record)
    return calls


@pytest.mark.parametrize("name", families.FAMILIES)
def test_encoder_weights_equal_explicit(name, tmp_path, oracle):
    families.make(name, tmp_path)
    model, _ = checkpoints.load_encoder(tmp_path)
    with torch.inference_mode():
        plain = model(IDS, masks.padding(KEEP))
        with watch(model) as records:
            assert torch.equal(model(IDS, masks.padding(KEEP)), plain)
        with attention_backend("explicit"):
            model(IDS, masks.padding(KEEP))
    assert len(records.records) == len(oracle) == len(model.encoder.order)
    for record, weights in zip(records.records, oracle, strict=True):
        torch.testing.assert_close(record.values, weights, atol=1e-5, rtol=1e-5)
        assert record.part == "encoder"
    assert hooks_of(model) == 0


@pytest.mark.parametrize("name", seq2seq.FAMILIES)
def test_encoder_decoder_weights_with_caches_equal_explicit(name, tmp_path, oracle):
    seq2seq.make(name, tmp_path)
    model, _ = checkpoints.load_seq2seq(tmp_path)
    mask = masks.padding(KEEP)

    def run():
        memory, cache = model.encode(IDS, mask), model.cache()
        return [model.decode(TARGET[:, i : i + 1], memory, None, mask, cache) for i in range(3)]

    with torch.inference_mode():
        plain = run()
        with watch(model) as records:
            assert all(torch.equal(one, other) for one, other in zip(run(), plain, strict=True))
        with attention_backend("explicit"):
            run()
    assert len(records.records) == len(oracle)
    for record, weights in zip(records.records, oracle, strict=True):
        torch.testing.assert_close(record.values, weights, atol=1e-5, rtol=1e-5)
    assert {record.part for record in records.records} == {"encoder", "decoder", "cross"}
    assert records.get(0, 1, "decoder", call=2).shape == (2, 1, 3)
    assert records.get(1, 0, "cross").shape == (2, 1, 5)


def test_weights_of_beams_sum_to_one(tmp_path):
    seq2seq.make("marian", tmp_path)
    model, _ = checkpoints.load_seq2seq(tmp_path)
    settings = GenerationConfig(beam_size=3, max_new_tokens=5)
    sources = [EncodedSource([5, 6, 7], (98,)), EncodedSource([8, 9], (98,))]
    plain = generate(model, sources, settings)
    with watch(model, layers=[0]) as records:
        assert generate(model, sources, settings) == plain
    for record in records.records:
        if record.part != "encoder":
            torch.testing.assert_close(record.values.sum(dim=-1), torch.ones(record.values.shape[:-1]))


def test_records_selected_layers_and_heads():
    model, x = Encoder(16, 24, 4, 0.1, 3).eval(), torch.randn(2, 6, 16)
    with watch(model, layers=[2, 0], heads=[3, 1]) as records:
        model(x)
        model(x[:, :4])
    assert [(record.layer, record.heads, record.call) for record in records.records] == [
        (0, (3, 1), 0),
        (2, (3, 1), 0),
        (0, (3, 1), 1),
        (2, (3, 1), 1),
    ]
    assert records.get(2, 1, call=0).shape == (2, 6, 6)
    assert torch.equal(records.get(2, 1, call=0), records.records[1].values[:, 1])
    assert {path: [array.shape for array in arrays] for path, arrays in records.arrays().items()} == {
        f"layers.{layer}.attention": [(2, 2, 6, 6), (2, 2, 4, 4)] for layer in (0, 2)
    }
    with pytest.raises(ValueError, match=r"encoder 1\.0 was not recorded. Recorded heads: encoder 0\.1, encoder 0\.3"):
        records.get(1, 0)


def test_fully_masked_row_in_training_mode():
    model = MultiHeadAttention(8, 2, drop_prob=0.5).train()
    with watch(model) as records:
        model(torch.randn(1, 3, 8), torch.tensor([[True, True, True], [False] * 3, [True, False, False]]))
    weights = records.get(0, 0)[0]
    assert weights[1].tolist() == [0, 0, 0]
    assert weights[2].tolist() == [1, 0, 0]


def test_refuses_missing_heads_layers_and_models_without_attention():
    model = Encoder(8, 8, 2, 0.1, 1)
    with pytest.raises(ValueError, match=r"has heads 0 to 1; got \(2,\)"), watch(model, heads=[2]):
        pass
    with pytest.raises(ValueError, match=r"heads must be a list of integers, such as \[0, 3\]; got \[\]"):
        watch(model, heads=[]).__enter__()
    for layers, missing in (([1], "1"), ([0, 7], "7"), ([-1, 0], "-1")):
        message = f"no attention in layer {missing}. Its layers are 0 to 0"
        with pytest.raises(ValueError, match=message), watch(model, layers=layers):
            pass
    with torch.device("meta"):
        exported = Encoder(8, 8, 2, 0.1, 1)
    with pytest.raises(ValueError, match="runs in ONNX Runtime"), watch(exported):
        pass
    with pytest.raises(ValueError, match="no attention"), watch(torch.nn.Linear(2, 2)):
        pass
    assert hooks_of(model) == 0
    with pytest.raises(RuntimeError, match="stop"), watch(model):
        raise RuntimeError("stop")
    assert hooks_of(model) == 0


def test_plot_of_generation_uses_last_complete_batch():
    translator = TextToText.from_pretrained("tatoeba-en-de", precision="float32")
    texts = ["Oh, what a lovely day it is!", "I do not know what to do about it."]
    with watch(translator, layers=[0], heads=[0]) as records:
        translator.generate(texts, beam_size=1)
    complete = [record for record in records.records if record.part == "cross" and len(record.values) == 2]
    assert records.records[-1].values.shape[0] == 1  # one ends first
    for row, text in enumerate(texts):
        with watch(translator, layers=[0], heads=[0]) as alone:
            translator.generate([text], beam_size=1)
        encoder, _, cross = (panel.images[0].get_array() for panel in records.plot(row=row).axes)
        expected = alone.get(0, 0, "cross", call=len(complete) - 1)[0]
        torch.testing.assert_close(torch.tensor(cross[:, : expected.shape[1]]), expected, atol=1e-5, rtol=1e-5)
        tokens = expected.shape[1]
        own = torch.tensor(encoder[:tokens, :tokens])
        torch.testing.assert_close(own, alone.get(0, 0)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_plot(tmp_path):
    model, path = Decoder(8, 8, 2, 0.1, 2).eval(), tmp_path / "a.png"
    with watch(model) as records:
        for read in (records.plot, lambda: records.get(0, 0)):
            with pytest.raises(ValueError, match="Nothing was recorded: the model did not run inside the with block"):
                read()
        model(torch.randn(1, 3, 8), torch.randn(1, 5, 8), masks.causal(3))
    records.plot(path, queries=["$a^$", "_{", "$\\frac$"], keys=["v", "w", "x", "y", "z"])
    assert path.read_bytes().startswith(b"\x89PNG")
    figure = records.plot()
    titles = [panel.get_title().partition(" (to ")[0] for panel in figure.axes]
    assert titles == [f"{part} {layer}.{head}" for layer in (0, 1) for part in ("decoder", "cross") for head in (0, 1)]
    with pytest.raises(ValueError, match=r"Row 3 was not recorded. The batch has rows 0 to 0"):
        records.plot(row=3)
    with pytest.raises(ValueError, match=r"the folder .*no does not exist"):
        records.plot(tmp_path / "no" / "a.png")
    with pytest.raises(ValueError, match=r"Call 5 was not recorded. decoder 0 ran in calls 0 to 0"):
        records.get(0, 0, "decoder", call=5)


@pytest.mark.parametrize("length", [12, 200])
def test_plot_of_small_weights(length):
    layer = CrossAttention(8, 2).eval()
    torch.nn.init.zeros_(layer.q.weight)  # every weight is about 1 / length
    with watch(layer) as records:
        layer(torch.randn(1, length, 8), torch.randn(1, length, 8))
    (panel, _) = records.plot().axes
    assert panel.get_title().endswith(f"(to {1 / length:.2g})")
    (image,) = panel.images
    assert image.norm.vmax == pytest.approx(1 / length, rel=1e-4)
    assert image.norm(image.norm.vmax / 4) == pytest.approx(0.5 if length > 60 else 0.25)


def test_refuses_single_layer_index():
    for layers in (1, "01", [0.5]):
        with pytest.raises(ValueError, match=r"layers must be a list of integers, such as \[0, 3\]; got "):
            _as_indices("layers", layers)  # the type checks of the test suite would refuse it first


def test_part_of_each_attention():
    x, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    for model, inputs, parts in (
        (Decoder(8, 8, 2, 0.1, 1), (x, memory), ["decoder", "cross"]),
        (DecoderLayer(8, 8, 2, 0.1), (x, memory), ["decoder", "cross"]),
        (Encoder(8, 8, 2, 0.1, 1), (x, masks.causal(3)), ["encoder"]),
        (CrossAttention(8, 2), (x, memory), ["cross"]),
    ):
        with watch(model.eval()) as records:
            model(*inputs)
        assert [record.part for record in records.records] == parts


@pytest.mark.parametrize("name", ["modernbert", "mpnet"])
def test_packed_texts_are_separate_rows(name, tmp_path):
    """Test windows, rotary positions and relative buckets."""
    families.make(name, tmp_path)
    model, _ = checkpoints.load_encoder(tmp_path)
    with torch.inference_mode(), watch(model) as padded:
        model(IDS, masks.padding(KEEP))
    with torch.inference_mode(), watch(model) as packed:
        model(IDS[KEEP][None], masks.packed([5, 3]))
    for one, other in zip(packed.records, padded.records, strict=True):
        assert one.lengths == (5, 3)
        expected = other.values * KEEP[:, None, :, None]
        torch.testing.assert_close(one.values, expected, atol=1e-5, rtol=1e-5)
    assert packed.plot(row=1).axes[0].images[0].get_array().shape == (3, 3)


TEXTS = ["the old bridge", "hello world this is a test"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("observed", [lambda encoder: encoder, lambda encoder: encoder.model])
def test_records_copy_that_encodes(tiny_bert, precision, observed):
    encoder = TextEncoder.from_pretrained(tiny_bert, precision=precision, device="cpu")
    plain, before = encoder.encode(TEXTS), [hooks_of(encoder.model), hooks_of(encoder.inference_model)]
    with watch(observed(encoder), layers=[0, 2], heads=[1]) as records:
        assert (encoder.encode(TEXTS) == plain).all()
        encoder.encode(TEXTS[:1])
    assert [(record.layer, record.call) for record in records.records] == [(0, 0), (2, 0), (0, 1), (2, 1)]
    (long, short) = (encoder.tokenize([text])[0].ids for text in reversed(TEXTS))
    assert records.records[0].lengths[:2] == (len(long), len(short))
    bound = 1e-5 if precision == "float32" else 0.1
    with torch.inference_mode(), watch(encoder.model, layers=[0, 2], heads=[1]) as alone:
        encoder.model(torch.tensor([long]))
    for layer in (0, 2):
        weights = records.get(layer, 1, call=0)[0, : len(long), : len(long)]
        torch.testing.assert_close(weights, alone.get(layer, 1)[0], atol=bound, rtol=0)
    assert [hooks_of(encoder.model), hooks_of(encoder.inference_model)] == before


@pytest.mark.parametrize("observed", [lambda translator: translator, lambda translator: translator.model])
def test_records_copy_that_generates(observed):
    translator = TextToText.from_pretrained(precision="float32", device="cpu")
    plain = translator.generate(["It is raining."], beam_size=2)
    with watch(observed(translator), layers=[0]) as records:
        assert translator.generate(["It is raining."], beam_size=2) == plain
    assert {record.part for record in records.records} == {"encoder", "decoder", "cross"}
    assert len({record.call for record in records.records}) > 2


def test_watches_answerer_and_classifier(tmp_path):
    for kind, cls, use in (
        ("ForQuestionAnswering", QuestionAnswerer, lambda pipeline: pipeline.answer("this?", "the old bridge")),
        ("ForSequenceClassification", TextClassifier, lambda pipeline: pipeline.classify(TEXTS)),
    ):
        folder = tmp_path / kind
        folder.mkdir()
        families.make("bert", folder, kind)
        pipeline = cls.from_pretrained(folder)
        with watch(pipeline, layers=[3]) as records:
            use(pipeline)
        assert [(record.part, record.layer) for record in records.records] == [("encoder", 3)]


def test_watches_single_cross_attention():
    model = CrossAttention(8, 2).eval()
    with watch(model) as records:
        model(torch.randn(4, 3, 8), torch.randn(2, 5, 8))
    assert records.records[0].values.shape == (2, 2, 6, 5)


COMPILED = """
import torch
from clearhead import Encoder, trace, watch
model, x = Encoder(8, 8, 2, 0.0, 1).eval(), torch.randn(1, 3, 8)
compiled = torch.compile(model, backend="aot_eager")
with torch.inference_mode():
    plain = compiled(x)
    with watch(model) as records:
        torch.testing.assert_close(compiled(x), plain)
assert len(records.records) == 1
assert records.records[0].path == "layers.0.attention"
with torch.inference_mode(), watch(compiled) as records:
    compiled(x)
assert records.records[0].path == "layers.0.attention"
with torch.inference_mode():
    assert trace(compiled, x).steps == trace(model, x).steps != ()
    model.compile(backend="aot_eager")
    model(x)
    assert len(trace(model, x).steps) == 18
try:
    with watch("bert"):
        raise AssertionError
except ValueError as error:
    assert "Expected a module or a TextEncoder" in str(error) and str(error).endswith("got a str.")
"""


@pytest.mark.slow
def test_compiled_model_runs_uncompiled_in_watch_and_trace():
    # in a subprocess, because the type checks of the test suite break torch.compile
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
