"""The page's searches give the tokens and probabilities of the Python ones, and its switches do what they say."""

import math
from pathlib import Path

import pytest
import torch
from support.pages.hands import heads_off, layers_off, next_tokens
from support.pages.web import EOS, node

from clearhead import TextToText, watch
from clearhead.export.sample_texts import TEXTS

EVERYDAY = Path(__file__).parents[3] / "examples" / "everyday.txt"
PARTS = {"encoder": "encoder", "decoder": "self", "cross": "cross"}

SENTENCES = ["Good morning!", "The old bridge was closed after the storm.", "a b c", "Where is it?", "x"]
CONFIGS = [
    {"max_new_tokens": 12},
    {"max_new_tokens": 12, "length_penalty": 0.4, "early_stopping": True},
    {"max_new_tokens": 9, "length_penalty": 2.0, "early_stopping": "never", "min_new_tokens": 3},
    {"max_new_tokens": 10, "no_repeat_ngram_size": 2, "repetition_penalty": 1.7, "renormalize_logits": True},
    {
        "max_new_tokens": 6,
        "forced_eos_token_id": (EOS,),
        "bad_words_ids": ((5,), (4000, 17)),
        "forced_bos_token_id": 77,
    },
    {"max_new_tokens": 8, "encoder_no_repeat_ngram_size": 1},
]


def translated(tiny, calls, **generation):
    return node("model.mjs", {"folder": str(tiny / "page"), "calls": [[generation, *call] for call in calls]})


def search_options(config):
    """Return the options as model.json has them: lengths with the start token."""
    longest, shortest = config["max_new_tokens"] + 1, config.get("min_new_tokens", 0) + 1
    return {**config, "max_length": longest, "min_length": shortest}


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_searches(tiny, tiny_pipeline, beams):
    calls = [
        [search_options(config), "translate", text, {"numBeams": beams}] for config in CONFIGS for text in SENTENCES
    ]
    results = iter(node("model.mjs", {"folder": str(tiny / "page"), "calls": calls}))
    for config in CONFIGS:
        expected = tiny_pipeline.generate(
            SENTENCES, num_beams=beams, num_return_sequences=beams, return_details=True, **config
        )
        for wanted in expected:
            result = next(results)
            assert [one["ids"] for one in result["hypotheses"]] == [list(one.token_ids) for one in wanted.n_best], (
                config
            )
            assert result["text"] == wanted.text
            assert result["complete"] == wanted.complete or config.get("forced_eos_token_id")
            assert result["logProbs"] == pytest.approx(wanted.log_probs, abs=1e-4)
            assert result["score"] == pytest.approx(wanted.score, abs=1e-4)


@pytest.mark.slow
def test_beams_lead_to_the_outputs(tiny):
    (result,) = translated(tiny, [["translate", SENTENCES[1], {"numBeams": 3}]], max_length=9)
    ended = []
    previous = [([], 0.0)]
    for candidates in result["beams"]:
        kept = {}
        for one in candidates:
            ids, total = previous[one["parent"]]
            assert one["score"] == pytest.approx(total + one["logProb"], abs=1e-4)
            if one["kept"] is not None:
                kept[one["kept"]] = ([*ids, one["id"]], one["score"])
            elif one["ended"]:
                ended.append([*ids, one["id"]])
        previous = [kept[index] for index in range(len(kept))]
    assert all(one["ids"] in ended for one in result["hypotheses"])


@pytest.mark.slow
def test_a_prefix_is_continued(tiny, tiny_pipeline):
    prefix = tiny_pipeline.tokenizer.target_ids("Guten")
    expected = tiny_pipeline.generate(
        SENTENCES, prefixes=["Guten"] * 5, num_beams=2, max_new_tokens=6, return_details=True
    )
    calls = [["translate", text, {"numBeams": 2, "prefix": prefix}] for text in SENTENCES]
    for result, wanted in zip(translated(tiny, calls, max_length=len(prefix) + 7), expected, strict=True):
        assert result["ids"] == [*prefix, *wanted.token_ids]
        length = len(result["ids"])
        assert result["attention"]["cross"]["shape"][2] == length
        assert len(result["alternatives"]) == len(result["probabilities"]) == length
        given = result["probabilities"][len(prefix) :]
        assert given == pytest.approx([math.exp(one) for one in result["logProbs"]], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("penalty", [0.6, 1.0])
def test_scores_count_a_prefix(tiny, beams, penalty):
    """Continued by hand after its own first tokens, the output keeps its sums and its score."""
    options = {"max_length": 9, "length_penalty": penalty, "repetition_penalty": 1.3}
    (free,) = translated(tiny, [["translate", SENTENCES[1], {"numBeams": beams}]], **options)
    calls = [["translate", SENTENCES[1], {"numBeams": beams, "prefix": free["ids"][:count]}] for count in (1, 4)]
    for count, forced in zip((1, 4), translated(tiny, calls, **options), strict=True):
        assert forced["ids"] == free["ids"]
        assert forced["score"] == pytest.approx(free["score"], abs=1e-5)
        best = forced["beams"][0][0]
        assert best["score"] == pytest.approx(sum(free["logProbs"][:count]) + best["logProb"], abs=1e-5)
        total = sum(free["logProbs"][:count]) + sum(forced["logProbs"])
        assert forced["score"] == pytest.approx(total / len(forced["ids"]) ** penalty, abs=1e-5)


@pytest.mark.slow
def test_a_prefix_that_ends_is_the_output(tiny, tiny_pipeline):
    prefix = [21, 300, EOS]
    (result,) = translated(tiny, [["translate", SENTENCES[1], {"numBeams": 2, "prefix": prefix}]])
    assert result["ids"] == prefix
    assert result["complete"]
    expected = next_tokens(tiny_pipeline.model, result["source"]["ids"], prefix[:-1]).softmax(-1)[EOS]
    assert result["probabilities"][-1] == pytest.approx(float(expected), abs=1e-6)
    assert result["attention"]["cross"]["shape"][2] == 3
    assert result["score"] == pytest.approx(sum(map(math.log, result["probabilities"])) / 3, abs=1e-5)


def as_tensor(array):
    return torch.tensor(array["data"]).reshape(array["shape"])


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
def test_attention_is_that_of_watch(tiny, tiny_pipeline, beams):
    (result,) = translated(tiny, [["translate", SENTENCES[1], {"numBeams": beams}]], max_length=10)
    target = torch.tensor([[tiny_pipeline.model.config.start_id, *result["ids"][:-1]]])
    with torch.inference_mode(), watch(tiny_pipeline.model) as attention:
        logits = tiny_pipeline.model(torch.tensor([result["source"]["ids"]]), target)
    for record in attention.records:
        ours = as_tensor(result["attention"][PARTS[record.part]])[record.layer]
        torch.testing.assert_close(ours, record.values[0], atol=1e-5, rtol=0)
    for step, found in zip(logits[0].softmax(-1), result["alternatives"], strict=True):
        best = step.topk(10)
        assert [one["id"] for one in found] == best.indices.tolist()
        assert [one["probability"] for one in found] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.slow
def test_forward_shows_what_may_follow(tiny, tiny_pipeline):
    ids, text = [21, 300, 7], SENTENCES[1]
    (result,) = translated(tiny, [["forward", text, ids, {"temperature": 2}]])
    source = torch.tensor([result["source"]["ids"]])
    target = torch.tensor([[tiny_pipeline.model.config.start_id, *ids]])
    with torch.inference_mode():
        best = (tiny_pipeline.model(source, target)[0, -1] / 2).softmax(-1).topk(10)
    assert [one["id"] for one in result["alternatives"]] == best.indices.tolist()
    assert [one["probability"] for one in result["alternatives"]] == pytest.approx(best.values.tolist(), abs=1e-5)
    layers, length = tiny_pipeline.model.config.num_layers, source.shape[1]
    assert as_tensor(result["encoder"]["hidden"]).shape == (layers + 1, length, 32)


@pytest.mark.slow
def test_heads_and_layers_are_switched_off(tiny, tiny_pipeline):
    """A head that is off has no part in the output projection, and a layer that is off returns its input."""
    text, ids = SENTENCES[1], [21, 300]
    off = [
        {"part": "encoder", "layer": 0, "head": 2},
        {"part": "decoder", "layer": 1, "head": 0},
        {"part": "cross", "layer": 2, "head": 1},
    ]
    layers = [{"part": "encoder", "layer": 1}, {"part": "decoder", "layer": 0}]
    heads, without = translated(
        tiny, [["forward", text, ids, {"headOff": off}], ["forward", text, ids, {"layerOff": layers}]]
    )
    model, source = tiny_pipeline.model, heads["source"]["ids"]
    for result, switched in ((heads, heads_off(model, off)), (without, layers_off(model, layers))):
        with switched:
            expected = next_tokens(model, source, ids).softmax(-1).topk(10)
        found = [one["probability"] for one in result["alternatives"]]
        assert found == pytest.approx(expected.values.tolist(), abs=1e-5)


@pytest.mark.slow
def test_a_masked_source_token_is_seen_by_none(tiny):
    (result,) = translated(tiny, [["forward", SENTENCES[1], [21], {"maskedSource": [1, 3]}]])
    for part in ("encoder", "cross"):
        weights = as_tensor(result["attention"][part])
        assert weights[..., [1, 3]].abs().max() == 0
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.slow
def test_empty_and_long_texts(tiny, tiny_pipeline):
    empty, novel = translated(
        tiny, [["translate", " \n", {}], ["translate", "word " * 20000, {"numBeams": 1}]], max_length=4
    )
    assert empty["text"] == ""
    assert empty["tokens"] == []
    assert novel["source"]["truncated"]
    assert len(novel["source"]["ids"]) == tiny_pipeline.max_length


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 5])
def test_shipped_translator(shipped, beams):
    """The bundled model in float32: its outputs are those of Python, and its weights those of `watch`."""
    # the page shows the model itself, without the rule that copies symbols around it
    pipeline = TextToText.from_pretrained(precision="float32", device="cpu", shortlist=False, copy_unknown=False)
    texts = [*TEXTS, *EVERYDAY.read_text(encoding="utf-8").splitlines()]
    expected = pipeline.generate(texts, num_beams=beams, return_details=True)
    results = node(
        "model.mjs", {"folder": str(shipped), "calls": [[{}, "translate", one, {"numBeams": beams}] for one in texts]}
    )
    assert [one["ids"] for one in results] == [list(one.token_ids) for one in expected]
    for result in results[:5]:
        target = torch.tensor([[pipeline.model.config.start_id, *result["ids"][:-1]]])
        with torch.inference_mode(), watch(pipeline.model) as attention:
            pipeline.model(torch.tensor([result["source"]["ids"]]), target)
        for record in attention.records:
            ours = as_tensor(result["attention"][PARTS[record.part]])[record.layer]
            torch.testing.assert_close(ours, record.values[0], atol=1e-4, rtol=0)
