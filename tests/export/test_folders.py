"""Models in the folders of other libraries, opened by those libraries."""

import ctranslate2
import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from support import families, folders
from support.command import clearhead, refused_inside
from support.tiny import make_bert

from clearhead import TextEncoder, TextToText

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


def test_sentence_transformers_gives_the_same_vectors(bert, tmp_path):
    status, _, err = clearhead("export", bert, tmp_path / "out", "--to", "sentence-transformers")
    assert status == 0, err
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    ours = TextEncoder.from_pretrained(bert, precision="float32", device="cpu").encode(TEXTS)
    assert np.abs(theirs - ours).max() <= 1e-4


def test_transformers_translates_the_same(marian, tmp_path):
    status, _, err = clearhead("export", marian, tmp_path / "out", "--to", "transformers")
    assert status == 0, err
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "out").eval()
    ours = TextToText.from_pretrained(marian, precision="float32", device="cpu")
    for text in LINES:
        (tokens,) = ours.tokenizer.encode([text])
        with torch.no_grad():
            ids = theirs.generate(torch.tensor([list(tokens.ids)]), num_beams=3, max_new_tokens=9)[0, 1:]
        (found,) = ours.generate([text], beam_size=3, max_new_tokens=9, return_details=True)
        assert list(found.token_ids) == ids.tolist()


def test_ctranslate2_translates_the_same(tmp_path):
    status, _, err = clearhead("export", "tatoeba-en-de", tmp_path / "out", "--to", "ctranslate2")
    assert status == 0, err
    assert "in float32: at most" in err
    theirs = ctranslate2.Translator(str(tmp_path / "out"), device="cpu")
    ours = TextToText.from_pretrained(precision="float32", device="cpu")
    for text in LINES:
        (tokens,) = ours.tokenizer.encode([text])
        (found,) = ours.generate([text], beam_size=1, return_details=True)
        (there,) = theirs.translate_batch([ours.tokenizer.words(tokens.ids)], beam_size=1)
        assert there.hypotheses[0] == [word for word in found.tokens if word != "</s>"]


def test_ctranslate2_gives_the_same_hidden_states(bert, tmp_path):
    status, _, err = clearhead("export", bert, tmp_path / "out", "--to", "ctranslate2")
    assert status == 0, err
    ours = TextEncoder.from_pretrained(bert, precision="float32", device="cpu")
    theirs = ctranslate2.Encoder(str(tmp_path / "out"), device="cpu")
    for tokens in ours.tokenize(TEXTS):
        found = np.array(theirs.forward_batch([list(tokens.ids)]).last_hidden_state)
        wanted = ours.model(torch.tensor([tokens.ids])).detach().numpy()
        assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_a_format_says_which_part_it_cannot_hold(marian, tmp_path):
    err = refused_inside("export", marian, tmp_path / "out", "--to", "sentence-transformers")
    assert "no place for a decoder" in err
    # it starts every target from a vector of zeros, which this model's start token does not have
    status, _, err = clearhead("export", marian, tmp_path / "out", "--to", "ctranslate2")
    assert status == 1
    assert "its log-probabilities are" in err
    families.make("mpnet", tmp_path / "mpnet")
    status, _, err = clearhead("export", tmp_path / "mpnet", tmp_path / "out", "--to", "ctranslate2")
    assert status == 1
    assert "CTranslate2 cannot hold" in err
    assert "MPNet" in err
    assert not (tmp_path / "out").exists()
