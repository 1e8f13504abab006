"""Exports for other libraries, loaded by these libraries."""

from functools import partial

import ctranslate2
import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from support import forks
from support.command import clearhead, refused, started
from support.models import families, folders, jina_bert
from support.models.tiny import make_bert

from clearhead import Reranker, TextEncoder, TextToText
from clearhead.export import libraries as formats
from clearhead.export import parity

TEXTS = ["hello", "the old bridge was closed after the storm", "is this the world ?"]
LINES = ["The old bridge was closed.", "A small boat took the children to school every morning", "Is it safe?"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return make_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    folders.marian(folder, lively=True)
    return folder


@pytest.mark.slow
def test_sentence_transformers_gives_the_same_vectors(bert, tmp_path):
    status, _, err = clearhead("export", bert, tmp_path / "out", "--to", "sentence-transformers")
    assert status == 0, err
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    ours = TextEncoder.from_pretrained(bert, precision="float32", device="cpu").encode(TEXTS)
    assert np.abs(theirs - ours).max() <= 1e-4


@pytest.mark.slow
def test_a_reranker_exports_to_a_cross_encoder(tmp_path):
    families.make("bert", tmp_path, "ForSequenceClassification", num_labels=1)
    pairs = [(one, other) for one in TEXTS for other in TEXTS]
    expected = Reranker.from_pretrained(tmp_path, precision="float32", device="cpu").score(pairs)
    for target, opened in (("sentence-transformers", "out"), ("transformers", "plain")):
        status, _, err = clearhead("export", tmp_path, tmp_path / opened, "--to", target)
        assert status == 0, err
        theirs = sentence_transformers.CrossEncoder(str(tmp_path / opened), device="cpu").predict(pairs)
        np.testing.assert_allclose(theirs, expected, atol=1e-5)


@pytest.mark.slow
def test_transformers_translates_the_same(marian, tmp_path):
    status, _, err = started("export", marian, tmp_path / "out", "--to", "transformers")
    assert status == 0, err
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "out").eval()
    ours = TextToText.from_pretrained(marian, precision="float32", device="cpu")
    for text in LINES:
        (tokens,) = ours.tokenizer.encode([text])
        with torch.no_grad():
            ids = theirs.generate(torch.tensor([list(tokens.ids)]), num_beams=3, max_new_tokens=9)[0, 1:]
        (generated,) = ours.generate([text], beam_size=3, max_new_tokens=9, return_details=True)
        assert list(generated.token_ids) == ids.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bart", "mbart", "mbart50", "nllb", "pegasus", "t5"])
def test_every_encoder_decoder_exports_to_transformers_and_ctranslate2(tmp_path, family):
    (tmp_path / "model").mkdir()
    as_many = {"decoder_attention_heads": 4}  # CTranslate2 knows one number of heads
    if family == "bart":
        folders.bart(tmp_path / "model", lively=True, vocab_size=319, **as_many)  # and no token without a word
    else:
        folders.plain(family, tmp_path / "model", lively=True, **({} if family == "t5" else as_many))
    for to in (formats.to_transformers, formats.to_ctranslate2):
        report = to(tmp_path / "model", tmp_path / to.__name__)
        assert report.error["in float32"] <= parity.MAX_ERROR


@pytest.mark.slow
def test_ctranslate2_translates_the_same(tmp_path):
    status, _, err = clearhead("export", "tatoeba-en-de", tmp_path / "out", "--to", "ctranslate2")
    assert status == 0, err
    assert "in float32: maximum relative error" in err
    theirs = ctranslate2.Translator(str(tmp_path / "out"), device="cpu")
    ours = TextToText.from_pretrained(precision="float32", device="cpu")
    for text in LINES:
        (tokens,) = ours.tokenizer.encode([text])
        (generated,) = ours.generate([text], beam_size=1, return_details=True)
        (reference,) = theirs.translate_batch([ours.tokenizer.ids_to_tokens(tokens.ids)], beam_size=1)
        assert reference.hypotheses[0] == [word for word in generated.tokens if word != "</s>"]


@pytest.mark.slow
def test_ctranslate2_gives_the_same_hidden_states(bert, tmp_path):
    status, _, err = clearhead("export", bert, tmp_path / "out", "--to", "ctranslate2")
    assert status == 0, err
    ours = TextEncoder.from_pretrained(bert, precision="float32", device="cpu")
    theirs = ctranslate2.Encoder(str(tmp_path / "out"), device="cpu")
    for tokens in ours.tokenize(TEXTS):
        states = np.array(theirs.forward_batch([list(tokens.ids)]).last_hidden_state)
        expected = ours.model(torch.tensor([tokens.ids])).detach().numpy()
        assert np.abs(states - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, kind) for kind in ("Model", "ForSequenceClassification") for family in families.FAMILIES]
    + [(family, "ForQuestionAnswering") for family in families.SPAN_FAMILIES],
)
def test_transformers_computes_the_same(tmp_path, family, kind):
    theirs = families.make(family, tmp_path / "model", kind)
    status, _, err = clearhead("export", tmp_path / "model", tmp_path / "out", "--to", "transformers")
    assert status == 0, err
    assert "in float32: maximum relative error" in err
    again = type(theirs).from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(9, 30, (3, 7))
    with torch.no_grad():
        for logits, expected in zip(again(ids)[:2], theirs(ids)[:2], strict=True):
            if logits.ndim == expected.ndim:
                assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["transformers", "sentence-transformers"])
def test_folder_with_wrong_weights_is_not_written(bert, tmp_path, to):
    err = refused("export", bert, tmp_path / "out", "--to", to, hook=forks.save_wrong_weights)
    assert "from the model's, relative to the largest value" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctranslate2_error_names_unsupported_parts(bert, tmp_path):
    status, _, err = clearhead("export", bert, tmp_path / "out", "--to", "ctranslate2", "--int8")
    assert status == 0, err
    assert "not exported: pooling, normalization and prompts" in err
    assert "8-bit weights: mean cosine" in err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("config.json", "export.json", "model.bin", "tokenizer.json", "tokenizer_config.json", "vocabulary.json"),
    ]
    status, _, err = clearhead("export", bert, tmp_path / "whole", "--to", "ctranslate2")
    assert status == 0, err
    small, whole = ((tmp_path / name / "model.bin").stat().st_size for name in ("out", "whole"))
    assert small < whole


@pytest.mark.slow
def test_ctranslate2_int8_translator_reports_its_error(tmp_path):
    status, _, err = clearhead("export", "tatoeba-en-de", tmp_path / "out", "--to", "ctranslate2", "--int8")
    assert status == 0, err
    assert "8-bit weights: mean change of a token's log-probability 0.0" in err
    assert "not exported: the generation config" in err


def test_error_names_the_missing_library(bert, tmp_path):
    for missing, to in (
        ("ctranslate2",) * 2,
        ("transformers",) * 2,
        ("sentence_transformers", "sentence-transformers"),
    ):
        err = refused("export", bert, tmp_path / "out", "--to", to, hook=partial(forks.hide_packages, missing))
        assert f"this format needs {missing}: pip install {missing.replace('_', '-')}" in err


@pytest.mark.slow
def test_error_names_the_part_that_a_format_does_not_support(marian, tmp_path):
    err = refused("export", marian, tmp_path / "out", "--to", "sentence-transformers")
    assert "does not support a decoder" in err
    err = refused("export", marian, tmp_path / "out", "--to", "ctranslate2")
    assert "its log-probabilities are" in err
    assert "its decoder has 2 heads" in err
    (tmp_path / "started").mkdir()
    folders.marian(tmp_path / "started", lively=True, decoder_attention_heads=4)
    ours = TextToText.from_pretrained(tmp_path / "started", precision="float32", device="cpu")
    with torch.no_grad():
        ours.model.target_embedding.tokens.weight[ours.model.config.start_id] += 1
    ours.save_pretrained(tmp_path / "started")
    err = refused("export", tmp_path / "started", tmp_path / "out", "--to", "ctranslate2")
    assert "the embedding of its start token, <pad>, is not zero" in err
    families.make("mpnet", tmp_path / "mpnet")
    err = refused("export", tmp_path / "mpnet", tmp_path / "out", "--to", "ctranslate2")
    assert "CTranslate2 does not support" in err
    assert "MPNet" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("export", [formats.to_transformers, formats.to_sentence_transformers])
def test_positions_that_transformers_does_not_have_are_refused(tmp_path, export):
    jina_bert.make(tmp_path / "jina", head=False, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"transformers does not have the positions of .*jina \(ALiBi\)"):
        export(tmp_path / "jina", tmp_path / "out")
    assert not (tmp_path / "out").exists()
