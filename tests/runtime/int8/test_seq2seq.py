"""Encoder–decoders in 8 bits: fused decoder steps give what the layers give one by one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import folders
from support.models.int8 import needs_kernels

from clearhead import TextToText, watch
from clearhead.kernels.native import library, unfused
from clearhead.runtime.int8.seq2seq import Int8Seq2Seq, SlotCache

pytestmark = needs_kernels

EVERYDAY = (Path(__file__).parents[3] / "examples" / "everyday.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def translator():
    return TextToText.from_pretrained(precision="int8", device="cpu")


def test_decoder_of_the_translator_is_fused(translator):
    assert isinstance(translator.inference_model, Int8Seq2Seq)
    assert translator.generate("Good morning!") == "Guten Morgen!"


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 5},
        {"beam_size": 3, "num_return_sequences": 3, "length_penalty": 0.6},
        {"beam_size": 1, "no_repeat_ngram_size": 2},
        {"beam_size": 4, "repetition_penalty": 1.3},
        {"beam_size": 2, "max_new_tokens": 3},
    ],
)
def test_fused_steps_give_the_tokens_of_the_layers(translator, options):
    ours = translator.generate(EVERYDAY, return_details=True, **options)
    with unfused():
        theirs = translator.generate(EVERYDAY, return_details=True, **options)
    for one, other in zip(ours, theirs, strict=True):
        assert [output.token_ids for output in one.n_best] == [output.token_ids for output in other.n_best]
        # attention sums in another order, which can move a code of a later layer by one
        assert one.log_probs == pytest.approx(other.log_probs, abs=0.03)


def test_prefixes_and_streams(translator):
    prefixes = ["Wo", "", "Ich", *[""] * (len(EVERYDAY) - 3)]
    with unfused():
        expected = translator.generate(EVERYDAY, prefixes=prefixes, beam_size=2)
    assert translator.generate(EVERYDAY, prefixes=prefixes, beam_size=2) == expected
    streamed = "".join(token.text for token in translator.stream(EVERYDAY[0]))
    assert streamed == translator.generate(EVERYDAY[0], beam_size=1)


@pytest.mark.slow
@given(order=st.permutations(range(10)), beams=st.sampled_from([1, 4]))
def test_output_does_not_depend_on_order(translator, order, beams):
    expected = _alone(translator, beams)
    texts = [EVERYDAY[index] for index in order]
    assert translator.generate(texts, beam_size=beams) == [expected[index] for index in order]


_outputs = {}


def _alone(translator, beams):
    if beams not in _outputs:
        _outputs[beams] = [translator.generate(text, beam_size=beams) for text in EVERYDAY]
    return _outputs[beams]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["marian", "bart", "mbart", "pegasus", "m2m100", "t5"])
def test_each_family(family, tmp_path):
    make = {"marian": folders.marian, "bart": folders.bart, "m2m100": folders.m2m100}.get(family)
    sizes = {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    if family == "t5":
        sizes = {"d_model": 64, "d_ff": 128, "d_kv": 16}
    if make is None:
        folders.plain(family, tmp_path, **sizes)
    else:
        make(tmp_path, **sizes)
    languages = {"m2m100": {"source_lang": "en", "target_lang": "de"}, "mbart": {"target_lang": "de_DE"}}.get(
        family, {}
    )
    quantized = TextToText.from_pretrained(tmp_path, precision="int8", device="cpu")
    exact = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    texts = ["the house", "a small dog", "we see the water"]
    options = {"beam_size": 1, "max_new_tokens": 3, "return_details": True} | languages
    ours, expected = quantized.generate(texts, **options), exact.generate(texts, **options)
    with unfused():
        parts = quantized.generate(texts, **options)
    assert isinstance(quantized.inference_model, Int8Seq2Seq) == (family != "t5")
    for one, other, reference in zip(ours, parts, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=0.05)
        assert one.log_probs[0] == pytest.approx(reference.log_probs[0], abs=1)  # random weights


def test_attention_can_be_watched(translator):
    expected = translator.generate(EVERYDAY[:3], beam_size=2)
    with watch(translator) as records:
        assert translator.generate(EVERYDAY[:3], beam_size=2) == expected
    assert {record.part for record in records.records} == {"encoder", "decoder", "cross"}
    assert translator.generate(EVERYDAY[:3], beam_size=2) == expected


def test_several_threads_can_use_a_translator(translator):
    expected = {beams: translator.generate(EVERYDAY, beam_size=beams) for beams in (1, 3)}
    with ThreadPoolExecutor(4) as pool:
        tasks = [(beams, pool.submit(translator.generate, EVERYDAY, beam_size=beams)) for beams in (1, 3) * 6]
        for beams, task in tasks:
            assert task.result() == expected[beams]


def test_slots_that_no_row_uses_are_dropped():
    cache = SlotCache(2, 16, (library.DecoderLayerStruct * 2)())
    cache.memory_rows_N = torch.arange(8, dtype=torch.int32)
    for step in range(200):
        cache.append(8)
        for stored in (*cache.keys, *cache.values):
            stored[cache.slots_NL[:, -1].long()] = float(step)
        cache.reorder(torch.zeros(8, dtype=torch.long))
    assert cache.slots_NL.shape == (8, 200)
    assert len(cache.keys[0]) < 700  # 200 live ones, of 1,600
    assert cache.keys[1][cache.slots_NL[3].long(), 0].tolist() == list(range(200))
