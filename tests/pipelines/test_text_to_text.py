"""`TextToText` equals transformers, with the folder of each family and its own tokenizer."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import folders
from transformers import AutoTokenizer

from clearhead import Generated, TextToText

TEXTS = [
    "The old bridge was closed.",
    "",
    "A small boat took the children to school every morning",
    "  ",
    "Is it safe?",
]


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """(folder, transformers' model, ours)"""
    folder = tmp_path_factory.mktemp("marian")
    theirs = folders.marian(folder, lively=True)
    return folder, theirs, TextToText.from_pretrained(folder, precision="float32", device="cpu")


@pytest.fixture(scope="module")
def translator(marian):
    return marian[2]


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_texts_equal_transformers(marian, beams):
    folder, theirs, ours = marian
    tokenizer = AutoTokenizer.from_pretrained(folder)
    real = [text for text in TEXTS if text.strip()]
    inputs = tokenizer(real, return_tensors="pt", padding=True)
    ids = theirs.generate(**inputs, num_beams=beams, max_new_tokens=12)
    expected = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    outputs = ours.generate(TEXTS, beam_size=beams, max_new_tokens=12)
    assert [text for text, source in zip(outputs, TEXTS, strict=True) if source.strip()] == expected
    assert [text for text, source in zip(outputs, TEXTS, strict=True) if not source.strip()] == ["", ""]


@pytest.mark.slow
def test_details(translator):
    plain = translator.generate(TEXTS, beam_size=3, max_new_tokens=8)
    outputs = translator.generate(TEXTS, beam_size=3, max_new_tokens=8, num_return_sequences=3, return_details=True)
    assert [one.text for one in outputs] == plain
    for one, source in zip(outputs, TEXTS, strict=True):
        if not source.strip():
            assert one == Generated("", (), (), (), 0.0)
            continue
        assert len(one.n_best) == 3
        assert [other.score for other in one.n_best] == sorted((o.score for o in one.n_best), reverse=True)
        assert one.n_best[0].text == one.text
        for other in one.n_best:
            assert len(other.token_ids) == len(other.tokens) == len(other.log_probs)
            assert translator.tokenizer.decode(other.token_ids) == other.text
            assert other.score == pytest.approx(sum(other.log_probs) / len(other.log_probs))
            assert other.complete == (other.token_ids[-1] in translator.model.config.eos_ids)


@pytest.mark.slow
@given(st.lists(st.sampled_from([*TEXTS, "x", "storm " * 9]), max_size=6), st.sampled_from([{}, {"beam_size": 1}]))
@settings(max_examples=6)
def test_outputs_do_not_depend_on_other_texts(translator, texts, options):
    outputs = translator.generate(texts, max_new_tokens=5, **options)
    assert len(outputs) == len(texts)
    assert outputs == [translator.generate([text], max_new_tokens=5, **options)[0] for text in texts]


@pytest.mark.slow
def test_prefixes_are_forced_and_do_not_count(translator):
    texts = [TEXTS[0], TEXTS[2], TEXTS[4]]
    prefixes = ["Die alte Brücke", "", "Ist"]
    outputs = translator.generate(texts, prefixes=prefixes, beam_size=3, max_new_tokens=6, return_details=True)
    for one, prefix in zip(outputs, prefixes, strict=True):
        assert one.text.startswith(prefix)
        assert len(one.token_ids) <= 6
        assert translator.tokenizer.decode([*translator.tokenizer.target_ids(prefix), *one.token_ids]) == one.text
    (alone,) = translator.generate(texts[:1], prefixes=prefixes[:1], beam_size=3, max_new_tokens=6, return_details=True)
    assert alone.token_ids == outputs[0].token_ids
    with pytest.raises(ValueError, match=r"each text has a prefix.*got 3 texts and 1 prefixes"):
        translator.generate(texts, prefixes=["Die"])
    with pytest.raises(ValueError, match="3 texts and 4 prefixes"):
        translator.generate(texts, prefixes=[*prefixes, "Das"])


@pytest.mark.slow
def test_samples_depend_on_seed_only(translator):
    def sampled(texts, seed, **options):
        return translator.generate(texts, do_sample=True, seed=seed, max_new_tokens=10, **options)

    texts = [TEXTS[0], TEXTS[2], TEXTS[4]]
    assert sampled(texts, 7) == sampled(texts, 7)
    assert sampled(texts, 7) == [sampled([text], 7)[0] for text in texts]
    assert any(sampled(texts, 7) != sampled(texts, seed) for seed in range(8, 12))
    (three,) = sampled(texts[:1], 7, num_return_sequences=3, return_details=True)
    assert len(three.n_best) == 3
    assert len({one.token_ids for one in three.n_best}) > 1
    (cold,) = sampled(texts[:1], 7, temperature=1e-4)
    assert cold == translator.generate(texts[:1], beam_size=1, max_new_tokens=10)[0]
    (narrow,) = sampled(texts[:1], 7, top_k=1)
    assert narrow == cold
    assert translator.generate(texts, do_sample=True, max_new_tokens=30) != translator.generate(
        texts, do_sample=True, max_new_tokens=30
    )


def test_samples_have_the_models_distribution():
    from clearhead import GenerationConfig
    from clearhead.generation.sampling import Sampler

    scores = torch.tensor([[0.0, 1.0, 2.0, float("-inf")]]).expand(4000, 4)
    settings = GenerationConfig(beam_size=1, do_sample=True, top_k=0)
    sampler = Sampler(settings, 5, [[number] for number in range(4000)], [0] * 4000)
    counts = torch.bincount(sampler(scores, range(4000)), minlength=4) / 4000
    torch.testing.assert_close(counts, scores[0].softmax(dim=0), atol=0.03, rtol=0)
    assert counts[3] == 0


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 3}])
@pytest.mark.parametrize("prefix", ["", "Die alte"])
def test_stream_equals_generate(translator, options, prefix):
    tokens = list(translator.stream(TEXTS[0], max_new_tokens=9, prefix=prefix, **options))
    (whole,) = translator.generate(
        TEXTS[:1], max_new_tokens=9, prefixes=[prefix], return_details=True, **({"beam_size": 1} | options)
    )
    assert "".join(token.text for token in tokens) == whole.text
    assert tuple(token.id for token in tokens) == whole.token_ids
    assert tuple(token.token for token in tokens) == whole.tokens
    assert tuple(token.log_prob for token in tokens) == pytest.approx(whole.log_probs)
    with pytest.raises(ValueError, match="a stream takes beam_size=1"):
        translator.stream(TEXTS[0], beam_size=2)
    assert list(translator.stream(" ")) == []


@pytest.mark.slow
def test_stream_emits_whole_characters(tmp_path):
    folders.bart(tmp_path, lively=True)
    model = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    for seed in range(3):
        options = {"max_new_tokens": 12, "do_sample": True, "seed": seed}
        pieces = [token.text for token in model.stream(TEXTS[0], **options)]
        assert "".join(pieces) == model.generate(TEXTS[:1], **options)[0]


def test_warning_names_truncated_text(translator, caplog):
    long = "storm " * 200
    outputs = translator.generate([TEXTS[0], long], max_new_tokens=3, return_details=True)
    assert [one.truncated for one in outputs] == [False, True]
    assert "1 of 2 texts were truncated to 60 tokens (text 1). Split them" in caplog.text
    with pytest.raises(ValueError, match="text 1 is longer than the 60 tokens"):
        translator.generate([TEXTS[0], long], strict=True)


@pytest.mark.slow
def test_generate_iter_reads_in_windows(translator):
    read = []

    def source():
        for number, text in enumerate(TEXTS * 2):
            read.append(number)
            yield text

    outputs = translator.generate_iter(source(), window=3, max_new_tokens=4)
    first = next(outputs)
    assert len(read) == 3
    assert [first.text, *(one.text for one in outputs)] == translator.generate(TEXTS * 2, max_new_tokens=4)


def test_invalid_options_raise(translator):
    with pytest.raises(ValueError, match="beam_size must be a whole number of at least 1; got 0"):
        translator.generate(["x"], beam_size=0)
    with pytest.raises(ValueError, match="min_length=9 is more than max_length=4"):
        translator.generate(["x"], min_length=9, max_length=4)
    with pytest.raises(TypeError, match="no option 'src_lang'. Use source_lang"):
        translator.generate(["x"], src_lang="en")
    with pytest.raises(ValueError, match="translates between fixed languages"):
        translator.generate(["x"], target_lang="de")
    with pytest.raises(ValueError, match="half a surrogate"):
        translator.generate(["\ud800"])
    assert translator.generate([]) == []


@pytest.mark.slow
def test_saved_folder_generates_equal_texts(marian, tmp_path):
    *_, ours = marian
    ours.save_pretrained(tmp_path)
    again = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    assert again.generate(TEXTS, max_new_tokens=8) == ours.generate(TEXTS, max_new_tokens=8)
    assert AutoTokenizer.from_pretrained(tmp_path)(TEXTS[0])["input_ids"] == ours.tokenizer.encode(TEXTS[:1])[0].ids


def test_bfloat16_keeps_the_float32_weights(marian, tmp_path):
    folder, *_ = marian
    low = TextToText.from_pretrained(folder, precision="bfloat16", device="cpu")
    assert low.generate(TEXTS[:1], max_new_tokens=4)
    assert {tensor.dtype for tensor in low.model.parameters()} == {torch.float32}
    assert next(low.inference_model.decoder.parameters()).dtype == torch.bfloat16
    # embeddings are shared
    assert low.inference_model.target_embedding.tokens.weight is low.model.target_embedding.tokens.weight


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mbart", "mbart50", "nllb", "m2m100"])
def test_models_that_require_languages(family, tmp_path):
    theirs = folders.m2m100(tmp_path) if family == "m2m100" else folders.plain(family, tmp_path)
    ours = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    languages = ours.tokenizer.languages
    source, target = languages[1], languages[3]
    (output,) = ours.generate(
        TEXTS[:1], source_lang=source, target_lang=target, beam_size=2, max_new_tokens=6, return_details=True
    )
    directed = ours.tokenizer.for_languages(source, target)
    ids = torch.tensor([directed.tokenizer.encode(TEXTS[:1])[0].ids])
    options = {"forced_bos_token_id": directed.forced_bos_token_id}
    if family == "mbart":  # the target begins with its language
        options = {"decoder_start_token_id": ours.tokenizer.token_id(target)}
    else:
        assert output.token_ids[0] == ours.tokenizer.token_id(f"__{target}__" if family == "m2m100" else target)
    expected = theirs.generate(input_ids=ids, num_beams=2, max_new_tokens=6, **options)
    assert expected[0, 1 : 1 + len(output.token_ids)].tolist() == list(output.token_ids)
    # the language precedes the forced prefix, and does not count as a new token
    (after,) = ours.generate(TEXTS[:1], target_lang=target, prefixes=["Die"], max_new_tokens=3, return_details=True)
    assert after.text.startswith("Die")
    assert len(after.token_ids) <= 3
    with pytest.raises(
        ValueError, match=f"does not support the language 'xx'. Use one of: {languages[0]}, {languages[1]}"
    ):
        ours.generate(TEXTS, target_lang="xx")
    with pytest.raises(ValueError, match="several languages. Choose the target"):
        ours.generate(TEXTS)


@pytest.mark.slow
def test_mbart_starts_with_the_language(tmp_path):
    folders.plain("mbart", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    model = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    romanian, german = (model.tokenizer.token_id(code) for code in ("ro_RO", "de_DE"))
    for name, data in (("config.json", config), ("generation_config.json", generation)):
        (tmp_path / name).write_text(json.dumps(data | {"decoder_start_token_id": romanian}))
    model = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    decoded = []
    inner = model.inference_model.decode
    model.inference_model.decode = lambda ids, *rest: (decoded.append(ids[0].tolist()), inner(ids, *rest))[1]
    model.generate(TEXTS[:1], beam_size=1, max_new_tokens=2)
    assert decoded[0] == [romanian]
    decoded.clear()
    model.generate(TEXTS[:1], beam_size=1, max_new_tokens=2, target_lang="de_DE")
    assert decoded[0] == [german]


@pytest.mark.slow
def test_marian_reads_target_language_from_text(tmp_path):
    folders.marian(tmp_path, codes=("deu", "nld"))
    model = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    assert model.tokenizer.languages == ("deu", "nld")
    expected = model.generate([TEXTS[0]], target_lang="nld", max_new_tokens=6)
    assert model.generate([f">>nld<< {TEXTS[0]}"], max_new_tokens=6) == expected
    with pytest.raises(ValueError, match="Choose the target language: deu, nld"):
        model.generate([TEXTS[0]])


@pytest.mark.slow
def test_t5_task_prefix_and_options(tmp_path):
    task = {"prefix": "translate: ", "num_beams": 2, "max_length": 9, "early_stopping": True}
    folders.plain("t5", tmp_path, task_specific_params={"translation_en_to_de": task})
    model = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    german = model.for_task("translation_en_to_de")
    assert german.generation_config.beam_size == 2
    assert german.generation_config.max_length == 9
    expected = model.generate([f"translate: {TEXTS[0]}"], beam_size=2, max_length=9, early_stopping=True)
    assert german.generate([TEXTS[0]]) == expected
    with pytest.raises(ValueError, match="no task 'translation_en_to_fr'; it describes translation_en_to_de"):
        model.for_task("translation_en_to_fr")


@pytest.mark.slow
def test_tasks_are_saved_and_unsupported_ones_raise(tmp_path):
    tasks = {"summarization": {"prefix": "summarize: ", "max_length": 9}, "odd": {"diversity_penalty": 0.7}}
    folders.plain("t5", tmp_path, task_specific_params=tasks)
    model = TextToText.from_pretrained(tmp_path, precision="float32", device="cpu")
    model.save_pretrained(tmp_path / "again")
    again = TextToText.from_pretrained(tmp_path / "again", precision="float32", device="cpu")
    assert again.for_task("summarization").generate(TEXTS) == model.for_task("summarization").generate(TEXTS)
    with pytest.raises(ValueError, match="task odd says diversity_penalty=0.7, which changes"):
        model.for_task("odd")


def test_warning_names_prefix_that_cannot_be_tokenized(translator, caplog):
    translator.generate(TEXTS[:1], prefixes=["\U0001f309 Die"], max_new_tokens=3)
    assert "text 0: the model's tokenizer cannot write the prefix '\U0001f309 Die': it became" in caplog.text
    with pytest.raises(ValueError, match="text 0: the model's tokenizer cannot write the prefix"):
        translator.generate(TEXTS[:1], prefixes=["\U0001f309 Die"], strict=True)
    with pytest.raises(ValueError, match=r"text 1: \d+ tokens are given, and a target has at most 60"):
        translator.generate(TEXTS[:1] * 2, prefixes=["", "Die " * 70])
    with pytest.raises(ValueError, match="the text is longer than the 60 tokens"):
        next(translator.stream("storm " * 200, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_penalty": 1000.0}, "length_penalty must be within ±30; got 1000.0"),
        ({"length_penalty": float("inf")}, "length_penalty must be within ±30"),
        ({"forced_bos_token_id": -1}, "forced_bos_token_id holds -1; token ids are 0 to"),
        ({"bad_words_ids": [[99999]]}, "bad_words_ids holds 99999; token ids are 0 to"),
        ({"forced_eos_token_id": 99999}, "forced_eos_token_id holds 99999"),
    ],
)
def test_values_out_of_range_raise(translator, options, message):
    with pytest.raises(ValueError, match=message):
        translator.generate(TEXTS[:1], **options)


def test_fewer_hypotheses_than_requested(translator):
    end = translator.model.config.eos_ids[0]
    options = {"beam_size": 4, "num_return_sequences": 4, "max_new_tokens": 1, "forced_eos_token_id": end}
    (output,) = translator.generate(TEXTS[:1], return_details=True, **options)
    assert [one.token_ids for one in output.n_best] == [(end,)]
    assert not output.complete  # the end was forced
