"""Extractive answers equal transformers' logits with an exhaustive search over spans."""

import inspect
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models.families import SPAN_FAMILIES, make
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertTokenizerFast

from clearhead import QuestionAnswerer
from clearhead.pipelines.answering.span_search import best_spans
from clearhead.tokenizers.question_context import pair_windows
from clearhead.tokenizers.tokenizer import Tokenizer

QUESTION = "what was closed?"
SHORT = "The old bridge was closed after the storm."
LONG = "The old bridge, it was closed!  After\tthe storm this world is a test: hello é world 😀 q. " * 2
PAIRS = [(QUESTION, SHORT), ("hello", LONG), (QUESTION, "storm")]


@pytest.fixture(scope="module", params=SPAN_FAMILIES)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    theirs = make(request.param, folder, "ForQuestionAnswering")
    return QuestionAnswerer.from_pretrained(folder, device="cpu"), theirs, AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def bert(qa_folder):
    return QuestionAnswerer.from_pretrained(qa_folder, device="cpu")


def every_span(theirs, tokenizer, question, context, longest=30, stride=None, max_length=36):
    """{(start, end): probability} over all windows, and the minimum probability of no answer."""
    around = len(tokenizer(question, "")["input_ids"])
    room = max_length - around
    stride = room // 2 if stride is None else min(stride, room // 2)
    windows = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    spans, none = {}, 1.0
    for number, ids in enumerate(windows["input_ids"]):
        types = {"token_type_ids": torch.tensor([windows["token_type_ids"][number]])}
        typed = getattr(theirs.config, "type_vocab_size", 0) > 1 and theirs.config.model_type != "mpnet"
        with torch.no_grad():
            output = theirs(torch.tensor([ids]), **(types if typed else {}))
        context_places = [index for index, text in enumerate(windows.sequence_ids(number)) if text == 1]
        allowed = torch.full((len(ids),), -math.inf)
        allowed[[0, *context_places]] = 0
        begin, end = ((logits[0].double() + allowed).softmax(0) for logits in (output.start_logits, output.end_logits))
        none = min(none, float(begin[0] * end[0]))
        for i in context_places:
            for j in context_places:
                if i <= j < i + longest:
                    span = windows["offset_mapping"][number][i][0], windows["offset_mapping"][number][j][1]
                    spans[span] = max(spans.get(span, 0.0), float(begin[i] * end[j]))
    return spans, none, len(windows["input_ids"])


@pytest.mark.parametrize(("question", "context"), PAIRS)
def test_search_considers_every_span(pair, question, context):
    reader, theirs, tokenizer = pair
    spans, none, windows = every_span(theirs, tokenizer, question, context)
    assert (windows > 1) == (context == LONG)
    best = sorted(spans.values(), reverse=True)
    answer = reader.answer(question, context, n_best=12)
    assert (answer.text, answer.score) == (answer.n_best[0].text, answer.n_best[0].score)
    assert len({(one.start, one.end) for one in answer.n_best}) == min(12, len(best))
    for one, score in zip(answer.n_best, best, strict=False):
        assert one.score == pytest.approx(score, rel=1e-4)
        assert spans[one.start, one.end] == pytest.approx(one.score, rel=1e-4)
        assert context[one.start : one.end] == one.text != ""
    everything = reader.answer(question, context, n_best=10**6, allow_no_answer=True).n_best
    assert len(everything) == len(spans) + 1
    (nothing,) = [one for one in everything if not one.text]
    assert (nothing.start, nothing.end) == (None, None)
    assert nothing.score == pytest.approx(none, rel=1e-4)
    scores = [one.score for one in everything]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("longest", "stride", "max_length"), [(1, 0, 36), (3, 5, 20), (30, 2, 12), (30, 128, 30)])
def test_search_uses_options(bert, qa_folder, longest, stride, max_length):
    theirs = AutoModelForQuestionAnswering.from_pretrained(qa_folder).eval()
    reader, tokenizer = bert, AutoTokenizer.from_pretrained(qa_folder)
    spans, _, _ = every_span(theirs, tokenizer, QUESTION, LONG, longest, stride, max_length)
    answer = reader.answer(
        QUESTION, LONG, max_answer_length=longest, stride=stride, max_length=max_length, n_best=10**6
    )
    assert {(one.start, one.end) for one in answer.n_best} == set(spans)
    for one in answer.n_best:
        assert one.score == pytest.approx(spans[one.start, one.end], rel=1e-4)


def test_answers_do_not_depend_on_batches(pair):
    reader, _, _ = pair
    alone = [reader.answer(*one) for one in PAIRS]
    for batch_tokens in (1, 100):
        together = reader.answers(PAIRS, batch_tokens=batch_tokens)
        assert [(one.text, one.start, one.end) for one in together] == [(one.text, one.start, one.end) for one in alone]
        assert [one.score for one in together] == pytest.approx([one.score for one in alone], rel=1e-5)


def test_more_pairs_than_one_chunk(bert):
    contexts = ["storm", "hello world", "a"]
    alone = [bert.answer("a?", context, max_length=12) for context in contexts]
    many = bert.answers((("a?", context) for context in contexts * 100), max_length=12)
    assert [one.text for one in many] == [one.text for one in alone] * 100
    assert bert.answers([]) == []


words = st.text(st.sampled_from("ab.?! \t\né中😀ﬁİ\u200b\u0301"), min_size=1, max_size=30)


@pytest.mark.slow
@given(st.lists(words, min_size=1, max_size=4), st.booleans(), st.integers(1, 9))
def test_answer_is_substring_of_context(bert, parts, no_answer, longest):
    context = "x" + " ".join(parts)
    for one in bert.answer(
        "a?", context, n_best=5, allow_no_answer=no_answer, max_answer_length=longest, max_length=16, stride=3
    ).n_best:
        assert 0 <= one.score <= 1
        if one.start is None:
            assert no_answer
            assert (one.text, one.end) == ("", None)
        else:
            assert one.text == context[one.start : one.end] == one.text.strip() != ""


@given(
    st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.lists(st.floats(-9, 9), min_size=n + 1, max_size=n + 1)] * 2)),
    st.integers(1, 14),
    st.integers(1, 90),
)
def test_best_spans_equals_search_over_all_spans(logits, longest, count):
    begin, end = (np.array(part) for part in logits)
    size = len(begin) - 1
    # tokens of a byte-level tokenizer include the space before a word
    context = " ab" * size
    offsets = [(3 * index, 3 * index + 3) for index in range(size)]
    best, none = best_spans(begin, end, offsets, context, max_length=longest, n_best=count)
    p, q = (np.exp(part) / np.exp(part).sum() for part in (begin, end))
    spans = {(3 * i + 1, 3 * j + 3): p[i + 1] * q[j + 1] for i in range(size) for j in range(i, min(size, i + longest))}
    assert math.exp(none) == pytest.approx(p[0] * q[0])
    assert [math.exp(span.log_prob) for span in best] == pytest.approx(sorted(spans.values(), reverse=True)[:count])
    assert all(math.exp(span.log_prob) == pytest.approx(spans[span.start, span.end]) for span in best)


def test_equal_spans_of_different_tokens_count_once():
    # a character of two tokens, whose offsets are both those of the character
    spans, _ = best_spans(np.array([0.0, 2, 1]), np.array([0.0, 1, 2]), [(0, 1), (0, 1)], "😀", max_length=5, n_best=9)
    assert [(span.start, span.end) for span in spans] == [(0, 1)]
    assert math.exp(spans[0].log_prob) == pytest.approx((math.e**2 / (1 + math.e + math.e**2)) ** 2)


def test_threshold_is_difference_of_logits(bert):
    answer, nothing = (bert.answer(QUESTION, SHORT, n_best=1, allow_no_answer=allowed) for allowed in (False, True))
    likely = bert.answer(QUESTION, SHORT, allow_no_answer=True, no_answer_threshold=-1e9)
    assert likely.text == ""
    difference = math.log(likely.score) - math.log(answer.score)
    assert nothing.text == ("" if difference > 0 else answer.text)
    for shift, text in ((1e-6, answer.text), (-1e-6, "")):
        result = bert.answer(QUESTION, SHORT, allow_no_answer=True, no_answer_threshold=difference + shift)
        assert result.text == text


@pytest.mark.parametrize("kind", ["roberta", "modernbert", "xlm-roberta"])
def test_other_tokenizers(tmp_path, kind):
    """Byte-level and sentencepiece-like tokenizers: their own pair formats, and offsets without the spaces before words."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    blanks = kind == "xlm-roberta"
    backend = Backend(models.Unigram() if blanks else models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace() if blanks else pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = None if blanks else decoders.ByteLevel()
    backend.normalizer = normalizers.NFKC() if blanks else None
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = (
        trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>")
        if blanks
        else trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    )
    backend.train_from_iterator([LONG, QUESTION], trainer)
    backend.post_processor = (
        processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
        if kind == "roberta"
        else processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    )
    tokenizer = Tokenizer(backend)
    pairs = [(QUESTION, LONG), (QUESTION, SHORT)]
    if not blanks:
        ((*_, last), (window,)) = pair_windows(tokenizer, pairs, 80, 10)
        assert tokenizer.decode([i for i in window.ids if i > 2]) == QUESTION + SHORT
        assert [index for index, number in enumerate(window.ids) if number in (0, 2)][-1] == len(window.ids) - 1
        assert window.ids.count(2) == 3
        assert last.ids[: last.context_start] == window.ids[: window.context_start]
    make("roberta", tmp_path, "ForQuestionAnswering", vocab_size=400)
    backend.save(str(tmp_path / "tokenizer.json"))
    reader = QuestionAnswerer.from_pretrained(tmp_path, device="cpu")
    context = "The old   bridge 😀\n was closed. "
    answer = reader.answer("closed?", context, n_best=10**6)
    assert len(answer.n_best) > 20
    for one in answer.n_best:
        assert one.text == context[one.start : one.end] == one.text.strip() != ""


@given(st.text("abcdef ", min_size=1, max_size=120), st.integers(0, 12), st.integers(6, 40))
def test_windows_equal_transformers(bert, qa_folder, text, stride, max_length):
    theirs = BertTokenizerFast(str(qa_folder / "vocab.txt"))
    context = f"z {text}"
    room = max_length - 4
    cut = theirs(
        "a", context, truncation="only_second", max_length=max_length, stride=min(stride, room // 2),
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    ((*windows,),) = pair_windows(bert.tokenizer, [("a", context)], max_length, stride)
    assert [window.ids for window in windows] == cut["input_ids"]
    assert [window.token_types for window in windows] == cut["token_type_ids"]
    for window, offsets in zip(windows, cut["offset_mapping"], strict=True):
        assert window.offsets == offsets[3:-1]


def test_tokenizer_without_token_types(qa_folder, tmp_path):
    folder = shutil.copytree(qa_folder, tmp_path / "model")
    with_types = QuestionAnswerer.from_pretrained(folder, device="cpu").answer(QUESTION, SHORT)
    config = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(
        config.replace("{", '{"model_input_names": ["input_ids", "attention_mask"],', 1)
    )
    without = QuestionAnswerer.from_pretrained(folder, device="cpu").answer(QUESTION, SHORT)
    assert with_types.score != pytest.approx(without.score, rel=1e-3)


@pytest.mark.slow
def test_bfloat16_and_a_saved_folder(pair, tmp_path):
    reader, _, _ = pair
    reader.save_pretrained(tmp_path)
    assert QuestionAnswerer.from_pretrained(tmp_path, device="cpu").answers(PAIRS) == reader.answers(PAIRS)
    half = QuestionAnswerer.from_pretrained(tmp_path, precision="bfloat16", device="cpu")
    assert next(half.inference_model.encoder.encoder.parameters()).dtype == torch.bfloat16
    score = {(one.start, one.end): one.score for one in reader.answer(QUESTION, SHORT, n_best=10**6).n_best}
    for one in half.answer(QUESTION, SHORT, n_best=10).n_best:
        assert one.score == pytest.approx(score[one.start, one.end], rel=0.5)


@pytest.mark.parametrize(
    ("question", "context", "options", "words"),
    [
        ("", SHORT, {}, "the question of pair 0 is empty"),
        (" \n", SHORT, {}, "the question of pair 0 is blank"),
        (QUESTION, "", {}, "the context of pair 0 is empty"),
        (QUESTION, " \u3000", {}, "the context of pair 0 is blank"),
        (QUESTION, "\x00\x01", {}, "the context of pair 0 has no token in this model's tokenizer"),
        ("a " * 40, SHORT, {}, "has 43 tokens with the special ones, of 36 in a window"),
        (QUESTION, "a \ud83d b", {}, "the context of pair 0 has half a surrogate pair at character 2"),
        (QUESTION, SHORT, {"n_best": 0}, "n_best must be at least 1; got 0"),
        (QUESTION, SHORT, {"max_answer_length": 0}, "max_answer_length must be at least 1; got 0"),
        (QUESTION, SHORT, {"stride": -1}, "stride must be at least 0; got -1"),
        (QUESTION, SHORT, {"max_length": 37}, "max_length is 37, but this model takes at most 36"),
        (QUESTION, SHORT, {"no_answer_threshold": math.nan}, "no_answer_threshold is a number; got nan"),
    ],
)
def test_invalid_input_raises_clear_error(bert, question, context, options, words):
    answers = inspect.unwrap(QuestionAnswerer.answers)
    with pytest.raises(ValueError, match=words):
        answers(bert, [(question, context)], **options)


def test_errors_name_the_pair(bert):
    answers = inspect.unwrap(QuestionAnswerer.answers)
    with pytest.raises(ValueError, match="the context of pair 300 is empty"):
        answers(bert, [(QUESTION, "a")] * 300 + [(QUESTION, "")])


@pytest.mark.slow
def test_wrong_types_raise_helpful_value_error(qa_folder):
    # in a process without the runtime type checks of the tests
    script = f"""
from clearhead import QuestionAnswerer
reader = QuestionAnswerer.from_pretrained({str(qa_folder)!r}, device="cpu")
for pairs in ([(None, "a")], [("a", b"b")], "hello", [("a", "b"), ("c",)], [None]):
    try:
        reader.answers(pairs)
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "the question of pair 0 is a NoneType; expected a string",
        "the context of pair 0 is a bytes; expected a string",
        "pair 0 is 'h'; expected a question and a context",
        "pair 1 is ('c',); expected a question and a context",
        "pair 0 is None; expected a question and a context",
    ]
