"""Vectors equal those of sentence-transformers, and do not depend on the rest of the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import TextEncoder
from clearhead.runtime.device import choose_device
from clearhead.runtime.precision import choose_precision

SENTENCES = [
    "The old bridge was closed after the storm.",
    "My grandmother bakes bread every Sunday morning.",
    "",
    "x",
    "[PAD] is written in this text, and [SEP] too",
    "Ein Satz auf Deutsch, mit Umlauten: äöüß.",
    "A longer text, " + "which goes on and on, " * 30,
    "word " * 400,
]

# difficult texts, written for this test after the categories of the Big List of Naughty Strings
NAUGHTY = [
    "", " ", "\t", "\u3000", "\x00", "\x07\x1b[31m", "\ufeff", "\u200b\u200d", "e\u0301\u0301\u0301", "👩‍👩‍👧‍👦", "🏳️‍🌈" * 50,
    "\u202eright to left", "مرحبا", "שלום", "漢字かな交じり文", "ﷺ", "\U0010ffff", "\ufffd", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "<script>alert(1)</script>", "'; DROP TABLE users; --", "%s %d {0} ${HOME} `id`", "NaN", "null", "-1", "0x0", "1e400",
    "[CLS] [SEP] [MASK] [PAD] [UNK]", "a" * 10_000, "a " * 5_000, "\\" * 300, "😀" * 3000,
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs(minilm_folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_folder), device="cpu")


@pytest.mark.slow
def test_minilm_equals_sentence_transformers(minilm, theirs):
    ours, expected = minilm.encode(SENTENCES + NAUGHTY), theirs.encode(SENTENCES + NAUGHTY)
    assert ours.dtype == np.float32
    assert ours.shape == (len(SENTENCES + NAUGHTY), 384)
    distance = np.linalg.norm(ours - expected, axis=1)  # of vectors of length 1
    assert distance.max() < 1e-5, distance.max()
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)


@pytest.mark.slow
def test_bfloat16_keeps_the_cosine(minilm, minilm_folder):
    half = TextEncoder.from_pretrained(minilm_folder, precision="bfloat16", device="cpu")
    cosines = (half.encode(SENTENCES) * minilm.encode(SENTENCES)).sum(axis=1)
    assert cosines.min() > 0.9995
    assert half.precision.dtype == torch.bfloat16
    # the model for saving keeps its precision
    assert next(half.model.encoder.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ({"avx512_bf16"}, torch.bfloat16),  # AMD Zen 4, Intel Cooper Lake
        ({"avx512_bf16", "avx512_fp16", "amx_bf16"}, torch.bfloat16),  # Intel from Sapphire Rapids on
        ({"avx512_bf16", "avx512_fp16"}, torch.float32),  # the same without AMX: bfloat16 at half of the float32 rate
        ({"avx2"}, torch.float32),
    ],
)
def test_auto_is_bfloat16_only_on_processors_with_fast_bfloat16_matmuls(instructions, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert choose_precision("auto", torch.device("cpu")).dtype == expected


def test_unknown_precisions_and_devices_are_refused():
    cpu = torch.device("cpu")
    assert choose_precision("float32", cpu).dtype == torch.float32
    with pytest.raises(ValueError, match="auto, float32, bfloat16, int8; got 'int3'"):
        choose_precision("int3", cpu)
    with pytest.raises(ValueError, match="'warp'"):
        choose_device("warp")


def relative(one, other):
    return (np.linalg.norm(one - other, axis=-1) / np.linalg.norm(other, axis=-1)).max()


words = st.sampled_from(
    [
        "the",
        "old",
        "bridge",
        "was",
        "closed",
        "after",
        "a",
        "storm",
        ",",
        "Zürich",
        "東京",
        "🎉",
        "supercalifragilistic",
        "[PAD]",
        ".",
    ]
)
text = st.lists(words, max_size=40).map(" ".join)


@pytest.mark.slow
@given(st.lists(text, min_size=1, max_size=12), st.integers(0, 2**16), st.sampled_from([16, 100, 2048, 100_000]))
@settings(max_examples=12)
def test_vectors_do_not_depend_on_batch_order_and_padding(minilm, texts, seed, batch_tokens):
    together = minilm.encode(texts, normalize=False)
    order = np.random.default_rng(seed).permutation(len(texts))
    shuffled = minilm.encode([texts[index] for index in order], normalize=False, batch_tokens=batch_tokens)
    assert relative(shuffled, together[order]) < 1e-6
    alone = np.concatenate([minilm.encode([text], normalize=False) for text in texts])
    assert relative(alone, together) < 1e-6
    beside_a_long_one = minilm.encode([*texts, "long " * 254], normalize=False, batch_tokens=10**6)[:-1]
    assert relative(beside_a_long_one, together) < 1e-6


def test_every_naughty_text_gives_one_finite_vector(minilm):
    vectors = minilm.encode(NAUGHTY)
    assert vectors.shape == (len(NAUGHTY), 384)
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors[:1], minilm.encode([""]), atol=1e-6)


def test_text_of_a_million_characters(minilm):
    for million in ("a" * 1_000_000, "ab " * 333_334):
        (tokens,) = minilm.tokenize([million])
        assert len(tokens.ids) <= 256
        assert np.isfinite(minilm.encode([million])).all()


def test_no_texts_return_empty_array_of_correct_width(minilm):
    assert minilm.encode([]).shape == (0, 384)
    assert minilm.encode([], truncate_dim=7).shape == (0, 7)
    assert minilm.encode([], pooling="tokens") == []


def test_options(minilm):
    mean, cls, largest = (minilm.encode(SENTENCES[:3], pooling=name) for name in ("mean", "cls", "max"))
    assert not np.allclose(mean, cls)
    assert not np.allclose(mean, largest)
    tokens = minilm.encode(SENTENCES[:1], pooling="tokens", normalize=False)[0]
    np.testing.assert_allclose(minilm.encode(SENTENCES[:1], pooling="cls", normalize=False)[0], tokens[0], atol=1e-6)
    np.testing.assert_allclose(
        minilm.encode(SENTENCES[:1], pooling="max", normalize=False)[0], tokens.max(axis=0), atol=1e-6
    )
    np.testing.assert_allclose(
        minilm.encode(SENTENCES[:1], normalize=False)[0], tokens.mean(axis=0, dtype=np.float64), atol=1e-6
    )
    assert len(minilm.encode(["one two three four"], pooling="tokens", max_length=4)[0]) == 4
    np.testing.assert_allclose(minilm.encode(["dog"], prompt="a "), minilm.encode(["a dog"]), atol=1e-6)


@pytest.mark.parametrize("changes", [{"truncate_dim": 0}, {"max_length": 2}, {"max_length": 513}, {"batch_tokens": 0}])
def test_options_out_of_range_are_refused(minilm, changes):
    with pytest.raises(ValueError, match=str(*changes.values())):
        minilm.encode(["a"], **changes)


def test_progress_bar_on_standard_error_only_if_requested(minilm, capsys):
    minilm.encode(["a"])
    assert capsys.readouterr().err == ""
    minilm.encode(["a"], show_progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "encoding" in captured.err
