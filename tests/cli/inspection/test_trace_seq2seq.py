"""The command `trace` with encoder–decoders."""

import json

import pytest
import torch
from support.command import clearhead, refused
from support.models import seq2seq, spm

from clearhead.checkpoints import load_seq2seq, load_tokenizer
from clearhead.cli.inspection.trace import trace

TEXT = "The old bridge was closed."


def traced(*arguments):
    status, out, err = clearhead("trace", *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def by_pass(steps):
    passes = {}
    for step in steps:
        passes.setdefault(step["pass"], []).append(step)
    return passes


def keys(steps, part, operation):
    """Return Lk at each step of an operation in one kind of attention."""
    return [
        dict(step["shape"])["Lk"] for step in steps if f".{part}." in step["path"] and step["operation"] == operation
    ]


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    spm.marian(folder)
    size = len(json.loads((folder / "vocab.json").read_text()))
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0}
    return folder, seq2seq.make("marian", folder, vocab_size=size, decoder_vocab_size=size, **ids)


def test_checkpoint_encodes_and_decodes_three_steps_with_caches(marian):
    folder = marian[0]
    passes = by_pass(traced(TEXT, "--model", folder))
    assert list(passes) == ["encoder", "decoder step 1", "decoder step 2", "decoder step 3"]
    length = dict(passes["encoder"][0]["shape"])["L"]
    for number, name in enumerate(list(passes)[1:], start=1):
        steps = passes[name]
        assert keys(steps, "attention", "grow cache") == [number] * 3
        assert keys(steps, "attention", "softmax") == [number] * 3
        assert keys(steps, "cross_attention", "softmax") == [length] * 3
        assert keys(steps, "cross_attention", "fill cache" if number == 1 else "read cache") == [length] * 3
        assert ("decoder.layers.0.cross_attention.kv" in {step["path"] for step in steps}) == (number == 1)
        assert steps[-1]["operation"] == "logits"


def test_steps_match_greedy_search(marian):
    folder, theirs = marian
    status, out, _ = clearhead("trace", TEXT, "--model", folder)
    assert status == 0
    tokenizer = load_tokenizer(folder, "marian")
    ids = torch.tensor([tokenizer.encode([TEXT], None)[0].ids])
    tokens = tokenizer.ids_to_tokens(theirs.generate(ids, num_beams=1, do_sample=False, max_new_tokens=3)[0].tolist())
    headings = [line for line in out.split("\n") if line.startswith("decoder step")]
    assert len(headings) == 3
    for number, heading in enumerate(headings[: len(tokens) - 1]):
        assert f"{tokens[number]} → {tokens[number + 1]} ━" in heading
    parameters = sum(p.numel() for p in load_seq2seq(folder)[0].parameters())
    assert f"{parameters:,} parameters" in out  # the embedding, which is also the output's matrix, once
    assert "V vocabulary" in out


def test_target_is_decoded_in_one_pass(marian):
    folder = marian[0]
    passes = by_pass(traced(TEXT, "--model", folder, "--target", "Die alte Brücke"))
    assert list(passes) == ["encoder", "decoder"]
    softmax = next(step for step in passes["decoder"] if step["path"] == "decoder.layers.0.attention.softmax")
    sizes = dict(softmax["shape"])
    assert sizes["Lq"] == sizes["Lk"] > 3
    assert "cache" not in " ".join(step["operation"] for step in passes["decoder"])


def test_t5_shows_its_own_equations(tmp_path):
    spm.plain("t5", tmp_path)
    seq2seq.make("t5 v1.1", tmp_path, vocab_size=400)
    steps = traced(TEXT, "--model", tmp_path)
    assert {step["equation"] for step in steps if step["operation"] == "scores"} == {"S = Q Kᵀ · scale, scale = 1"}
    operations = {step["operation"] for step in steps}
    assert {"RMS norm", "GELU (tanh)", "gate", "relative bias", "relative bias, one way"} <= operations
    assert not any("b_" in step["equation"] for step in steps if step["operation"] == "projection")


def test_random_weights_on_words():
    passes = by_pass(traced("the old bridge", "--seq2seq", "--target", "the new bridge is"))
    assert list(passes) == ["encoder", "decoder"]
    named = {step["path"]: dict(step["shape"]) for step in passes["decoder"]}
    cross = named["decoder.layers.4.cross_attention.softmax"]
    assert (cross["Lq"], cross["Lk"], named["output"]["V"]) == (5, 3, 6)


def test_conflicting_options_are_rejected(tiny_bert, marian):
    assert "only for encoder–decoders" in refused("trace", "a", "--target", "b")
    for words, arguments in (
        ("is an encoder; --target is only for encoder–decoders", {"text": "a", "model": str(tiny_bert), "target": "b"}),
        ("only for random weights", {"text": "a", "model": str(marian[0]), "seq2seq": True}),
        ("requires a text", {"seq2seq": True, "target": "b"}),
        ("no words", {"text": "a", "seq2seq": True, "target": " "}),
    ):
        with pytest.raises(ValueError, match=words):
            trace(**arguments)


@pytest.mark.slow
def test_only_one_part_of_the_model():
    _, out, _ = clearhead("trace", "a b c", "--seq2seq", "--json")
    expected = [step for step in json.loads(out) if step["path"].startswith("decoder.layers.1.")]
    assert traced("a b c", "--seq2seq", "--only", "decoder.layers.1") == expected
    assert {step["path"].split(".")[2] for step in expected} == {"1"}
    _, out, _ = clearhead("trace", "a b c", "--only", "encoder.layers.0")
    assert "encoder.layers.0" in out
    assert "encoder.layers.1" not in out
    message = refused("trace", "a b c", "--only", "encoder.layers.9")
    assert "no part 'encoder.layers.9'. Its parts are embedding, encoder.layers.0, " in message
