"""Exact match and F1 against hand-computed values and a plain implementation of the official rules."""

import gzip
import json
import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data.squad import AnswerData, Question, read_predictions, read_questions
from clearhead.metrics.squad import AnswerScores, PartScores, answer_scores, exact_match, f1, normalize

CONTEXT = "The Straße was closed in 1998, after a storm – an “old” one."


def squad(*questions, version="1.1"):
    """Return data in SQuAD's format: (id, answers) pairs for one context."""
    qas = [
        {"id": name, "question": f"What of {name}?", "answers": [{"text": text, "answer_start": 0} for text in answers]}
        for name, answers in questions
    ]
    return {"version": version, "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Bridge's end!", "bridges end"),
        ("a an the A An THE", ""),
        ("another theme, a-n", "another theme"),
        ("Straße\t–\u00a0“old”", "straße – “old”"),  # only ASCII punctuation goes
        ("U.S.A.", "usa"),
        ("in the 1,000 years", "in 1000 years"),
        ("the_end", "theend"),
        ("...", ""),
        ("", ""),
    ],
)
def test_answers_are_normalized_before_comparison(text, normal):
    assert normalize(text) == normal


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "overlap"),
    [
        ("The Bridge.", ["bridge"], 1, 1),
        ("old bridge", ["the bridge"], 0, 2 / 3),  # P = 1/2, R = 1
        ("old old bridge", ["old bridge"], 0, 4 / 5),  # bags: P = 2/3, R = 1
        ("a storm in 1998", ["1998", "storm", "in 1998"], 0, 4 / 5),  # of the best: P = 2/3, R = 1
        ("ferry", ["bridge", "storm"], 0, 0),
        ("strasse", ["Straße"], 0, 0),
        ("STRASSE", ["Straße"], 0, 0),
        ("“old”", ["old"], 0, 0),
        ("", ["bridge"], 0, 0),
    ],
)
def test_scores_by_hand(prediction, answers, exact, overlap):
    for rules in ("1.1", "2.0"):
        assert exact_match(prediction, answers, rules=rules) == exact
        assert f1(prediction, answers, rules=rules) == pytest.approx(overlap)


def test_squad_versions_differ_in_unanswerable_questions():
    # nothing is left of either: 1.1 divides nothing by nothing and says 0, 2.0 says that they agree
    assert (exact_match("the", ["."], rules="1.1"), f1("the", ["."], rules="1.1")) == (1, 0)
    assert (exact_match("the", ["."], rules="2.0"), f1("the", ["."], rules="2.0")) == (1, 1)
    # 2.0 leaves such answers out, where there are others
    assert exact_match("", [".", "bridge"], rules="1.1") == 1
    assert exact_match("", [".", "bridge"], rules="2.0") == 0
    assert (exact_match("", []), f1("", [])) == (1, 1)
    assert (exact_match("bridge", []), f1("bridge", [])) == (0, 0)
    with pytest.raises(ValueError, match="each question has an answer"):
        exact_match("a", [], rules="1.1")


texts = st.lists(st.sampled_from(["a", "The", "old", "Old", "é", "b.", ".", "an", "x y", "\t"]), max_size=5).map(
    " ".join
)


def plain(prediction, answers, rules):
    """Implement the official rules literally."""

    def bare(text):
        for mark in string.punctuation:
            text = text.replace(mark, "")
        return [word for word in text.lower().split() if word not in ("a", "an", "the")]

    if rules == "2.0":
        answers = [answer for answer in answers if bare(answer)] or [""]
    exact = overlap = 0.0
    for answer in answers:
        p, a = bare(prediction), bare(answer)
        exact = max(exact, float(p == a))
        same = sum(min(p.count(word), a.count(word)) for word in set(p))
        if same:
            precision, recall = same / len(p), same / len(a)
            overlap = max(overlap, 2 * precision * recall / (precision + recall))
        elif rules == "2.0" and not p and not a:
            overlap = 1.0
    return exact, overlap


@given(texts, st.lists(texts, min_size=1, max_size=3), st.sampled_from(["1.1", "2.0"]))
def test_scores_equal_the_official_script(prediction, answers, rules):
    exact, overlap = plain(prediction, answers, rules)
    assert exact_match(prediction, answers, rules=rules) == exact
    assert math.isclose(f1(prediction, answers, rules=rules), overlap, abs_tol=1e-12)


def test_complete_file_of_each_version(tmp_path, caplog):
    path = tmp_path / "data.json"
    answers = [("q1", ["1998", "in 1998"]), ("q2", ["a storm"]), ("q3", ["Straße"]), ("q4", ["."])]
    path.write_text(json.dumps(squad(*answers)), encoding="utf-8")
    data = read_questions(path)
    assert data.rules == "1.1"
    assert data.questions[0] == Question("q1", "What of q1?", CONTEXT, ("1998", "in 1998"))
    predictions = {"q1": "in 1998", "q2": "old storm", "q4": "the", "q9": "of another"}
    scores = answer_scores(data, predictions)
    # exact: 1, 0, missing, 1; F1: 1, 2/3, missing, 0
    assert scores.f1 == pytest.approx(100 * (5 / 3) / 4)
    assert scores == AnswerScores(50.0, scores.f1, questions=4, missing=1, has_answer=None, no_answer=None)
    assert "1 questions have no prediction, for example q3" in caplog.text
    assert "ignored 1 predictions that belong to no question" in caplog.text
    with gzip.open(tmp_path / "data.json.gz", "wt", encoding="utf-8") as file:
        json.dump(squad(*answers, ("q5", []), version="v2.0"), file)
    data = read_questions(tmp_path / "data.json.gz")
    assert data.rules == "2.0"
    scores = answer_scores(data, predictions | {"q5": "."})
    # exact: 1, 0, missing, 1, 1; F1: 1, 2/3, missing, 1, 1
    assert scores.has_answer.f1 == pytest.approx(100 * (8 / 3) / 4)
    assert scores.has_answer == PartScores(50.0, scores.has_answer.f1, 4)
    assert scores.no_answer == PartScores(100.0, 100.0, 1)
    assert (scores.exact_match, scores.f1) == (60.0, pytest.approx(100 * (11 / 3) / 5))
    assert answer_scores(data, {"q5": "1998"}).no_answer == PartScores(0.0, 0.0, 1)


def test_squad_version_is_detected(tmp_path):
    path = tmp_path / "data.json"
    for data, rules in (
        (squad(("q", ["a"]), version="v2.0"), "2.0"),
        (squad(("q", ["a"]), version="1.1"), "1.1"),
        (squad(("q", []), version="1.1"), "2.0"),
        ({"data": squad(("q", ["a"]))["data"]}, "1.1"),
    ):
        path.write_text(json.dumps(data))
        assert read_questions(path).rules == rules


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "data.json is not JSON"),
        ("[]", 'the file has no "data" that is a list'),
        ('{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}', r'data\[0\]\.paragraphs\[0\] has no "context"'),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "q", "question": "b"}]}]}]}',
            r'data\[0\]\.paragraphs\[0\]\.qas\[0\] has no "answers" that is a list',
        ),
        ('{"data": []}', "has no questions"),
        (json.dumps(squad(("q", ["a"]), ("q", ["b"]))), "has the question id 'q' 2 times"),
    ],
)
def test_files_of_another_layout(tmp_path, content, words):
    path = tmp_path / "data.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        read_questions(path)


def test_other_invalid_files(tmp_path):
    path = tmp_path / "data.json.gz"
    for content in (b"plain", gzip.compress(b'{"data": []}' * 50)[:-9], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="data.json.gz is (not|empty|truncated)"):
            read_questions(path)
    for content, words in (
        ('["a"]', "contains a JSON list"),
        ('{"q": 3}', 'answers q with 3; expected a text, or "" for no answer'),
        ('{"q": null}', "answers q with None"),
    ):
        (tmp_path / "predictions.json").write_text(content)
        with pytest.raises(ValueError, match=words):
            read_predictions(tmp_path / "predictions.json")
    with pytest.raises(ValueError, match="no such file"):
        read_predictions(tmp_path / "nowhere.json")
    data = AnswerData([Question("q", "Who?", "Ada.", ("Ada",))], "1.1")
    with pytest.raises(ValueError, match="none of the 1 predictions has the id .* for example 'q'"):
        answer_scores(data, {"p": "Ada"})
