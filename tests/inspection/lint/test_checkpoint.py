"""`clearhead lint` reports padding mistakes of a checkpoint, and the checks that ran."""

import json
import shutil

import pytest
from support.command import clearhead, refused, started
from support.models import folders
from support.models.tiny import VOCABULARY

from clearhead.inspection.lint.checkpoint import lint_checkpoint
from clearhead.models import heads
from clearhead.models.encoder import EncoderModel

MINILM, TRANSLATOR = "all-MiniLM-L6-v2", "tatoeba-en-de"


@pytest.fixture
def mispadded(tiny_bert, tmp_path):
    """A BERT with the id of a word as its padding id."""
    folder = shutil.copytree(tiny_bert, tmp_path / "mispadded")
    config = json.loads((folder / "config.json").read_text())
    config["pad_token_id"] = VOCABULARY.index("hello")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_correct_checkpoint_lists_checks():
    status, out, err = started("lint", "--model", MINILM)
    assert (status, out) == (0, "")
    assert err.splitlines() == [
        "checked: padding id 0 of config.json against the tokenizer's, 0 ([PAD])",
        "checked: attention of the encoder, in 2 texts of 4 to 25 tokens",
        "checked: pooled vector (mean)",
        "no mistake found",
    ]


@pytest.mark.slow
def test_correct_translator():
    status, out, err = clearhead("lint", "A ticket, please.", "--model", TRANSLATOR, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert report["findings"] == []
    assert report["checked"][0].startswith("padding id")
    assert report["checked"][1].startswith("attention of the encoder, the decoder and between them, in 3 texts")


@pytest.mark.slow
def test_reports_padding_id_of_a_word(mispadded):
    status, out, err = clearhead("lint", "--model", mispadded)
    assert status == 1
    assert out.count("\n") == 1
    assert out.startswith("padding-id-mismatch (config.json, pad_token_id): It is ")
    assert "which is 'hello'; the tokenizer pads with 0 ([PAD])" in out
    assert err.endswith("1 mistake found\n")
    status, out, _ = clearhead("lint", "--model", mispadded, "--json")
    assert status == 1
    assert [finding["rule"] for finding in json.loads(out)["findings"]] == ["padding-id-mismatch"]


@pytest.mark.parametrize("texts", [[""], ["hello"], ["hello", "world"]])
def test_batch_is_padded_with_any_texts(tiny_bert, texts):
    status, _, err = clearhead("lint", *texts, "--model", tiny_bert)
    assert status == 0
    assert f"in {len(texts) + 2} texts of {2 if texts == [''] else 3} to 24 tokens" in err


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", TRANSLATOR, "folder"])
def test_model_among_the_texts_is_refused(name, tiny_bert):
    name = str(tiny_bert) if name == "folder" else name
    assert f"{name} is a model, but arguments are texts. Choose the model with --model {name}" in refused("lint", name)


def test_refuses_missing_model():
    assert "no-such-model" in refused("lint", "--model", "/tmp/no-such-model")


def test_reports_padding_in_pooled_vector(tiny_bert, monkeypatch):
    monkeypatch.setattr(heads, "pool", lambda hidden, keep, pooling: hidden.mean(dim=1))
    (finding,) = lint_checkpoint(tiny_bert).findings
    assert finding.rule == "pooled-padding"


def test_reports_encoder_that_drops_its_mask(tiny_bert, monkeypatch):
    forward = EncoderModel.forward
    monkeypatch.setattr(EncoderModel, "forward", lambda self, ids, mask=None: forward(self, ids))
    (finding,) = lint_checkpoint(tiny_bert).findings
    assert finding.rule == "padding-attended"


@pytest.mark.parametrize("family", ["marian", "bart", "t5", "m2m_100"])
def test_correct_checkpoints_of_other_families(family, tmp_path):
    pytest.importorskip("sentencepiece")
    if family == "t5":
        folders.plain("t5", tmp_path)
    else:
        {"marian": folders.marian, "bart": folders.bart, "m2m_100": folders.m2m100}[family](tmp_path)
    report = lint_checkpoint(tmp_path)
    assert report.findings == []
    assert len(report.checked) == 2
