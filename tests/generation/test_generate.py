"""Searches return the tokens and scores of transformers."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models.seq2seq import FAMILIES, make

from clearhead import GenerationConfig
from clearhead.checkpoints import load_seq2seq
from clearhead.equations import masks
from clearhead.generation.beam import beam_search
from clearhead.generation.greedy import greedy_search
from clearhead.generation.logits_processors import logits_processors
from clearhead.generation.state import DecodingState, keep_outputs

LONGEST = 14
CHANGES = [
    {},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.4, "min_length": 5},
    {"forced_bos_token_id": 7, "forced_eos_token_id": True, "min_new_tokens": 4},
    {"bad_words_ids": [[11], [12, 13], [40]], "encoder_no_repeat_ngram_size": 2, "renormalize_logits": True},
]
RULES = [(power, rule) for power in (-0.5, 0.0, 1.0, 2.0) for rule in (True, False, "never")]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """Return (transformers' model, our model), whose end token is generated sometimes."""
    folder = tmp_path_factory.mktemp("lively")
    theirs = make(request.param, folder, lively=True)
    ours = load_seq2seq(folder)[0]
    ids, keep = sources(ours.config, seed=4)
    tokens = {number for best in search(ours, ids, keep, {"no_repeat_ngram_size": 2}) for number in best[0].ids}

    def lengths(end):
        ours.config = replace(ours.config, eos_ids=(end,))
        outputs = search(ours, ids, keep, {"beam_size": 2, "num_return_sequences": 2})
        return len({len(one.ids) for best in outputs for one in best})

    end = max(sorted(tokens), key=lengths)
    theirs.generation_config.eos_token_id = theirs.config.eos_token_id = end
    ours.config = replace(ours.config, eos_ids=(end,))
    return theirs, ours


def sources(config, seed=1, lengths=(9, 5, 7, 3)):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 97, (len(lengths), max(lengths)), generator=generator)
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~keep, config.pad_id), keep


def search(model, ids, keep, options, prompt=None, forbidden=True):
    """Return our hypotheses of each sentence, best first."""
    if prompt is None:
        prompt = torch.full((len(ids), 1), model.config.start_id)
    options = dict(options)
    if options.get("forced_eos_token_id") is True:
        options["forced_eos_token_id"] = model.config.eos_ids
    if forbidden:  # some families have no position for padding: trained models never generate it
        options["bad_words_ids"] = [*options.get("bad_words_ids", []), [model.config.pad_id]]
    config = GenerationConfig(beam_size=1).updated(max_length=LONGEST, **options)
    ends = model.config.eos_ids
    decoding = DecodingState(model, ids, keep, prompt)
    limit = config.max_target_length(decoding.prefix_length, None)
    changes = logits_processors(config, decoding.prefix_length, limit, ends)
    if config.beam_size == 1:
        return [[one] for one in greedy_search(decoding, changes, limit, ends, config.length_penalty)]
    return beam_search(decoding, changes, config, limit, ends)


def theirs_search(model, ids, keep, options, **inputs):
    options = dict(options)
    beams = options.pop("beam_size", 1)
    if options.get("forced_eos_token_id") is True:
        options["forced_eos_token_id"] = model.config.eos_token_id
    options["bad_words_ids"] = [*options.get("bad_words_ids", []), [model.config.pad_token_id]]
    outputs = model.generate(
        input_ids=ids,
        attention_mask=keep.long(),
        num_beams=beams,
        do_sample=False,
        max_length=LONGEST,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
        **inputs,
    )
    num_outputs = options.get("num_return_sequences", 1)
    sequences = outputs.sequences.view(len(ids), num_outputs, -1)
    scores = outputs.sequences_scores.view(len(ids), num_outputs) if beams > 1 else None
    return sequences, scores


def assert_same(model, ours, theirs, prompt=1):
    sequences, scores = theirs
    ends = (model.config.pad_id, *model.config.eos_ids)
    for sentence, outputs in enumerate(ours):
        for rank, hypothesis in enumerate(outputs):
            row = sequences[sentence, rank].tolist()[prompt:]
            assert list(hypothesis.ids) == row[: len(hypothesis.ids)]
            assert all(number in ends for number in row[len(hypothesis.ids) :])
            assert len(hypothesis.log_probs) == len(hypothesis.ids)
            if scores is not None:
                expected = float(scores[sentence, rank])
                assert abs(hypothesis.score - expected) < 1e-4 * max(1.0, abs(expected))


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(changes) or "plain")
def test_greedy(pair, changes):
    theirs, ours = pair
    ids, keep = sources(ours.config)
    assert_same(ours, search(ours, ids, keep, changes), theirs_search(theirs, ids, keep, changes))


def check_beams(pair, beams, power, rule, changes):
    theirs, ours = pair
    ids, keep = sources(ours.config, seed=4)
    options = {"beam_size": beams, "length_penalty": power, "early_stopping": rule, **changes}
    options["num_return_sequences"] = min(beams, 2)
    outputs = search(ours, ids, keep, options)
    assert_same(ours, outputs, theirs_search(theirs, ids, keep, options))
    return outputs


@pytest.mark.slow
def test_beams_with_every_stopping_rule(pair):
    lengths = set()
    for number, (power, rule) in enumerate(RULES):
        outputs = check_beams(pair, 4, power, rule, CHANGES[number % len(CHANGES)])
        lengths |= {len(hypothesis.ids) for best in outputs for hypothesis in best}
    assert len(lengths) > 2  # otherwise the length penalty had no effect


@pytest.mark.slow
@pytest.mark.parametrize("beams", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(changes) or "plain")
def test_beams_in_every_combination(pair, beams, changes):
    for power, rule in RULES:
        check_beams(pair, beams, power, rule, changes)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_forced_prefix_and_two_end_tokens(pair, beams):
    theirs, ours = pair
    ids, keep = sources(ours.config)
    prompt = torch.tensor([[ours.config.start_id, 5, 17 + row] for row in range(4)])
    options = {"beam_size": beams}
    expected = theirs_search(theirs, ids, keep, options, decoder_input_ids=prompt)
    assert_same(ours, search(ours, ids, keep, options, prompt), expected, prompt=3)
    # several end tokens require more candidates
    other = search(ours, ids, keep, {"no_repeat_ngram_size": 2})[1][0].ids[0]
    several = copy.copy(ours)
    several.config = replace(ours.config, eos_ids=(*ours.config.eos_ids, other))
    expected = theirs_search(theirs, ids, keep, options, eos_token_id=list(several.config.eos_ids))
    assert_same(several, search(several, ids, keep, options), expected)


def test_one_beam_is_greedy(pair):
    _, ours = pair
    ids, keep = sources(ours.config)
    prompt = torch.full((4, 1), ours.config.start_id)
    config = GenerationConfig(beam_size=1)
    beams = beam_search(DecodingState(ours, ids, keep, prompt), [], config, LONGEST, ours.config.eos_ids)
    greedy = greedy_search(DecodingState(ours, ids, keep, prompt), [], LONGEST, ours.config.eos_ids, 1.0)
    assert [best[0].ids for best in beams] == [one.ids for one in greedy]
    for best, one in zip(beams, greedy, strict=True):
        assert best[0].score == pytest.approx(one.score, abs=1e-5)
        assert best[0].log_probs == pytest.approx(one.log_probs, abs=1e-5)


@pytest.mark.slow
@given(st.integers(0, 2**16), st.lists(st.integers(1, 12), min_size=1, max_size=5), st.sampled_from([1, 3]))
@settings(max_examples=6)
def test_output_does_not_depend_on_batch(pair, seed, lengths, beams):
    _, ours = pair
    ids, keep = sources(ours.config, seed, lengths)
    together = search(ours, ids, keep, {"beam_size": beams})
    for row, length in enumerate(lengths):
        (alone,) = search(ours, ids[row : row + 1, :length], keep[row : row + 1, :length], {"beam_size": beams})
        assert [one.ids for one in alone] == [one.ids for one in together[row]]
        for one, other in zip(alone, together[row], strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)


def test_sources_of_different_lengths_are_encoded_packed(pair, monkeypatch):
    _, ours = pair
    ids, keep = sources(ours.config)
    prompt, records, encode = torch.full((len(ids), 1), ours.config.start_id), [], ours.encode
    with torch.inference_mode():
        expected = encode(ids, masks.padding(keep))
        monkeypatch.setattr(ours, "encode", lambda ids, mask: records.append(ids.shape) or encode(ids, mask))
        decoding = DecodingState(ours, ids, keep, prompt)
    assert records == [(1, int(keep.sum()))]
    torch.testing.assert_close(decoding.memory[keep], expected[keep], atol=1e-5, rtol=1e-5)
    assert not decoding.memory[~keep].any()


@pytest.mark.slow
def test_log_probs_equal_teacher_forcing(pair):
    """The log-probabilities of a search equal those of teacher forcing."""
    _, ours = pair
    ids, keep = sources(ours.config)
    for options in ({}, {"beam_size": 3, "num_return_sequences": 3, "length_penalty": 0.7}):
        for row, best in enumerate(search(ours, ids, keep, options, forbidden=False)):
            for one in best:
                target = torch.tensor([[ours.config.start_id, *one.ids[:-1]]])
                with torch.no_grad():
                    logits = ours(ids[row : row + 1, : int(keep[row].sum())], target)
                expected = logits[0].log_softmax(dim=-1)[torch.arange(len(one.ids)), torch.tensor(one.ids)]
                assert one.log_probs == pytest.approx(expected.tolist(), abs=1e-4)
                power = options.get("length_penalty", 1.0)
                assert one.score == pytest.approx(float(expected.sum()) / len(one.ids) ** power, abs=1e-3)


def test_finished_sentences_are_dropped(pair):
    _, ours = pair
    ids, keep = sources(ours.config)
    for beams in (1, 3):
        rows = []
        decoding = DecodingState(ours, ids, keep, torch.full((4, 1), ours.config.start_id))
        inner, ours_decode = decoding.model, decoding.model.decode
        # with this end token the first sentence ends at once
        first = int(ours(ids[:1, :9], torch.tensor([[ours.config.start_id]]))[0, 0].argmax())

        def counted(new, *args, rows=rows, ours_decode=ours_decode):
            rows.append(new.shape)
            return ours_decode(new, *args)

        inner.decode = counted
        try:
            config = GenerationConfig(beam_size=beams, max_length=LONGEST)
            if beams == 1:
                greedy_search(decoding, [], LONGEST, [first], 1.0)
            else:
                beam_search(decoding, [], config, LONGEST, [first])
        finally:
            del inner.decode
        assert all(shape[1] == 1 for shape in rows)  # a step with a cache computes one token
        assert rows[0][0] == 4  # all beams of a sentence share one row in the first step
        assert beams == 1 or rows[1][0] in (3 * beams, 4 * beams)
        assert beams > 1 or rows[-1][0] < 4 or len(rows) == 1


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
def test_keep_outputs_leaves_outputs_unchanged(pair, beams):
    """A search overwrites the logits, except inside `keep_outputs`."""
    _, ours = pair
    ids, keep = sources(ours.config)
    records, copies = [], []

    def hook(module, inputs, output):
        records.append(output)
        copies.append(output.clone())

    handle = ours.output.register_forward_hook(hook)
    with keep_outputs():
        outputs = search(ours, ids, keep, {"beam_size": beams, "no_repeat_ngram_size": 2})
    handle.remove()
    assert all(torch.equal(one, copy) for one, copy in zip(records, copies, strict=True))
    assert outputs == search(ours, ids, keep, {"beam_size": beams, "no_repeat_ngram_size": 2})
