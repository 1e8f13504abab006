"""Ensembles generate with the average of the probabilities of their models."""

import json
import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.training_data import small_seq2seq

from clearhead import GenerationConfig, TextToText
from clearhead.generation.generate import generate
from clearhead.generation.strategy import EncodedSource
from clearhead.pipelines.seq2seq.ensemble import Ensemble, combine

sources = st.lists(st.lists(st.integers(3, 49), min_size=1, max_size=9), min_size=1, max_size=5)


def model(seed, **changes):
    """Return a random model whose probabilities are far from uniform."""
    torch.manual_seed(seed)
    made = small_seq2seq(**changes).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    return made


DIFFERENT = [model(1), model(2, d_model=32, num_layers=1), model(3, num_heads=4)]


def outputs(of, texts, **options):
    encoded = [EncodedSource(text, (of.config.start_id,)) for text in texts]
    return generate(of, encoded, GenerationConfig(max_new_tokens=6, **options))


def mean_log_probs(models, text, target):
    """Return the ensemble's log-probabilities after each target token, computed one model at a time without a cache."""
    probs = [one(torch.tensor([text]), torch.tensor([target])).softmax(dim=-1) for one in models]
    return torch.stack(probs).mean(dim=0).log()[0]


@pytest.mark.slow
@settings(max_examples=20)
@given(sources)
@torch.no_grad()
def test_greedy_tokens_have_the_highest_average_probability(texts):
    for text, (best,) in zip(texts, outputs(Ensemble(DIFFERENT), texts, beam_size=1), strict=True):
        log_probs = mean_log_probs(DIFFERENT, text, [DIFFERENT[0].config.start_id, *best.ids[:-1]])
        assert log_probs.argmax(dim=-1).tolist() == list(best.ids)
        torch.testing.assert_close(torch.tensor(best.log_probs), log_probs.amax(dim=-1), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=20)
@given(sources, st.integers(2, 5))
@torch.no_grad()
def test_beams_have_the_average_probabilities_of_their_tokens(texts, beams):
    listed = outputs(Ensemble(DIFFERENT), texts, beam_size=beams, num_return_sequences=2)
    for text, hypotheses in zip(texts, listed, strict=True):
        for one in hypotheses:
            log_probs = mean_log_probs(DIFFERENT, text, [DIFFERENT[0].config.start_id, *one.ids[:-1]])
            chosen = log_probs.gather(1, torch.tensor(one.ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(one.log_probs), chosen, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=20)
@given(sources, st.integers(1, 4))
def test_copies_of_one_model_are_that_model(texts, beams):
    alone, both = (outputs(one, texts, beam_size=beams) for one in (DIFFERENT[0], Ensemble([DIFFERENT[0]] * 2)))
    for (one,), (two,) in zip(alone, both, strict=True):
        assert one.ids == two.ids
        assert math.isclose(one.score, two.score, rel_tol=1e-4, abs_tol=1e-4)


def test_the_shortest_model_limits_the_length():
    assert Ensemble([model(1, max_len=40), model(1, max_len=30)]).config.max_len == 30


@pytest.mark.slow
def test_pipelines_with_other_tokens_are_refused(tmp_path):
    one = TextToText.from_pretrained(precision="float32")
    one.save_pretrained(tmp_path / "other")
    shutil.copytree(tmp_path / "other", tmp_path / "same")
    path = tmp_path / "other" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    last, before = list(vocabulary)[-1:-3:-1]
    vocabulary[last], vocabulary[before] = vocabulary[before], vocabulary[last]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    same, other = (TextToText.from_pretrained(tmp_path / name, precision="float32") for name in ("same", "other"))
    with pytest.raises(ValueError, match=r"tatoeba-en-de and .*other have different tokens: their probabilities have"):
        combine([one, other])
    text = "Where can I buy a ticket?"
    assert combine([one, same]).generate(text) == same.generate(text)
