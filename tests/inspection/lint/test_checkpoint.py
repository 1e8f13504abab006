"""`clearhead lint`: what is wrong with a checkpoint's padding is found, and what was checked is said."""

import json
import shutil

import pytest
from support import folders
from support.command import clearhead, refused, started
from support.tiny import VOCABULARY

from clearhead.inspection.lint.checkpoint import lint_checkpoint
from clearhead.models import heads
from clearhead.models.encoder import EncoderModel

MINILM, TRANSLATOR = "all-MiniLM-L6-v2", "tatoeba-en-de"


@pytest.fixture
def mispadded(tiny_bert, tmp_path):
    """A BERT whose config says that a word is padding."""
    folder = shutil.copytree(tiny_bert, tmp_path / "mispadded")
    config = json.loads((folder / "config.json").read_text())
    config["pad_token_id"] = VOCABULARY.index("hello")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_nothing_is_found_in_a_good_checkpoint_and_what_was_checked_is_said():
    status, out, err = started("lint", "--model", MINILM)
    assert (status, out) == (0, "")
    assert err.splitlines() == [
        "checked: the padding id of config.json, 0, against the tokenizer's, 0 ([PAD])",
        "checked: who attends to whom in the encoder, in 2 texts of 4 to 25 tokens",
        "checked: the pooled vector (mean)",
        "no mistake found",
    ]


def test_a_translator_is_checked():
    status, out, err = clearhead("lint", "A ticket, please.", "--model", TRANSLATOR, "--json")
    assert (status, err) == (0, "")
    linted = json.loads(out)
    assert linted["findings"] == []
    assert linted["checked"][0].startswith("the padding id")
    assert linted["checked"][1].startswith(
        "who attends to whom in the encoder, the decoder and between them, in 3 texts"
    )


def test_a_padding_id_that_is_a_words_is_found(mispadded):
    status, out, err = clearhead("lint", "--model", mispadded)
    assert status == 1
    assert out.count("\n") == 1
    assert out.startswith("the padding id is another token's (config.json, pad_token_id): It is ")
    assert "which is 'hello'; the tokenizer pads with 0 ([PAD])" in out
    assert err.endswith("1 mistake found\n")
    status, out, _ = clearhead("lint", "--model", mispadded, "--json")
    assert status == 1
    assert [finding["mistake"] for finding in json.loads(out)["findings"]] == ["the padding id is another token's"]


@pytest.mark.parametrize("texts", [[""], ["hello"], ["hello", "world"]])
def test_there_is_padding_whatever_the_texts(tiny_bert, texts):
    status, _, err = clearhead("lint", *texts, "--model", tiny_bert)
    assert status == 0
    assert f"in {len(texts) + 2} texts of {2 if texts == [''] else 3} to 24 tokens" in err


def test_no_model_is_said():
    assert "no-such-model" in refused("lint", "--model", "/tmp/no-such-model")


def test_a_pooled_vector_that_takes_in_padding_is_found(tiny_bert, monkeypatch):
    monkeypatch.setattr(heads, "pool", lambda hidden, keep, pooling: hidden.mean(dim=1))
    (found,) = lint_checkpoint(tiny_bert).findings
    assert found.mistake == "padding leaks into the pooled vector"


def test_an_encoder_that_loses_its_mask_is_found(tiny_bert, monkeypatch):
    forward = EncoderModel.forward
    monkeypatch.setattr(EncoderModel, "forward", lambda self, ids, mask=None: forward(self, ids))
    (found,) = lint_checkpoint(tiny_bert).findings
    assert found.mistake == "padding is attended"


@pytest.mark.parametrize("family", ["marian", "bart", "t5", "m2m_100"])
def test_good_checkpoints_of_other_families(family, tmp_path):
    pytest.importorskip("sentencepiece")
    if family == "t5":
        folders.plain("t5", tmp_path)
    else:
        {"marian": folders.marian, "bart": folders.bart, "m2m_100": folders.m2m100}[family](tmp_path)
    linted = lint_checkpoint(tmp_path)
    assert linted.findings == []
    assert len(linted.checked) == 2
