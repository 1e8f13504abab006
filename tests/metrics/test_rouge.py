"""ROUGE equals rouge-score; with several references, each metric uses the best."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from clearhead.metrics.rouge import summary_scores

words = st.sampled_from(["the", "old", "bridges", "bridge", "closing", "closed", "storm", "a", ".", "Brücke"])
texts = st.lists(words, max_size=10).map(" ".join)


@given(st.lists(st.tuples(texts, texts, texts | st.none()), min_size=1, max_size=4))
def test_scores_equal_rouge_score(rows):
    summaries, first, second = map(list, zip(*rows, strict=True))
    scores = summary_scores(summaries, [first, second])
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for kind, score in (("rouge1", scores.rouge1), ("rouge2", scores.rouge2), ("rougeL", scores.rouge_l)):
        best = [
            max(scorer.score(gold, summary)[kind].fmeasure for gold in golds if gold is not None)
            for summary, *golds in rows
        ]
        assert score == pytest.approx(100 * sum(best) / len(best))
    assert scores.documents == len(rows)


def test_by_hand():
    # words: old bridg was close | an old bridg was close; pairs: 3 of 3 and of 4
    scores = summary_scores(["Old bridges was closing!"], [["An old bridge was closed."]])
    assert scores.rouge1 == pytest.approx(100 * 2 * 4 / (4 + 5))
    assert scores.rouge2 == pytest.approx(100 * 2 * 3 / (3 + 4))
    assert scores.rouge_l == pytest.approx(100 * 2 * 4 / (4 + 5))
    turned = summary_scores(["closed was bridge old"], [["An old bridge was closed."]])
    assert turned.rouge1 == scores.rouge1
    assert (turned.rouge2, turned.rouge_l) == (0, pytest.approx(100 * 2 * 1 / (4 + 5)))


def test_each_metric_uses_the_best_reference():
    # the first shares more words, the second more pairs
    summary, first, second = "a b c d", "d c b a", "a b x y"
    both = summary_scores([summary], [[first], [second]])
    assert both.rouge1 == summary_scores([summary], [[first]]).rouge1 > summary_scores([summary], [[second]]).rouge1
    assert both.rouge2 == summary_scores([summary], [[second]]).rouge2 > summary_scores([summary], [[first]]).rouge2


def test_text_without_latin_letters_is_a_warning(caplog):
    assert summary_scores(["мост закрыт", "a"], [["мост закрыт", "a"]]).rouge1 == 50
    assert "1 documents have references without ASCII letters or digits" in caplog.text


def test_bad_input():
    score = inspect.unwrap(summary_scores)
    for given_, message in [
        (([], [[]]), "no texts to score"),
        ((["a"], []), "no references"),
        ((["a", "b"], [["a"]]), "2 texts but 1 references in list 0"),
        ((["a", "b"], [["a", None]]), "text 1 has no reference"),
    ]:
        with pytest.raises(ValueError, match=message):
            score(*given_)
