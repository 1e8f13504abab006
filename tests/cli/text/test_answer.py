"""The commands `answer` and `evaluate answers`."""

import json
import os

import pytest
from support.command import clearhead, refused, started

from clearhead import QuestionAnswerer

CONTEXT = "The old bridge was\nclosed after the storm 😀 é.\nhello world, " * 3
QUESTION = "what was closed?"


@pytest.fixture(scope="module")
def reader(qa_folder):
    return QuestionAnswerer.from_pretrained(qa_folder, device="cpu")


@pytest.fixture
def context(tmp_path):
    (tmp_path / "context.txt").write_bytes(b"\xef\xbb\xbf" + CONTEXT.encode())
    return tmp_path / "context.txt"


@pytest.mark.slow
def test_answer(qa_folder, reader, context):
    arguments = ["answer", "-m", qa_folder, "--question", QUESTION]
    expected = reader.answer(QUESTION, CONTEXT, n_best=3)
    status, out, err = started(*arguments, "--context", context, "--n-best", 3)
    assert (status, err) == (0, "")
    assert out.split("\n")[:-1] == [" ".join(one.text.split()) for one in expected.n_best]
    status, out, err = clearhead(*arguments, "--context", "-", "--json", stdin=CONTEXT.encode())
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert answer.pop("score") == pytest.approx(expected.score, rel=1e-5)
    assert answer == {"text": expected.text, "start": expected.start, "end": expected.end}
    assert CONTEXT[answer["start"] : answer["end"]] == answer["text"]


def test_options_reach_the_model(qa_folder, reader, context):
    arguments = ["answer", "-m", qa_folder, "--question", QUESTION, "--context", context, "--n-best", 4]
    options = ["--no-answer", "--max-answer-length", 2, "--stride", 1]
    expected = reader.answer(QUESTION, CONTEXT, n_best=4, allow_no_answer=True, max_answer_length=2, stride=1).n_best
    status, out, _ = clearhead(*arguments, *options, "--json")
    assert status == 0
    assert [(one["text"], one["start"]) for one in json.loads(out)["n_best"]] == [
        (one.text, one.start) for one in expected
    ]
    assert len(expected) == 4


def test_bad_input_is_a_one_line_error(qa_folder, context, tmp_path, tiny_bert):
    ask = ["answer", "-m", qa_folder, "--question", QUESTION, "--context"]
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "blank.txt").write_text(" \n")
    assert refused(*ask, "-") == "clearhead: error: standard input is blank; expected words\n"
    assert refused(*ask, " ") == "clearhead: error: --context is blank; expected words\n"
    assert "blank.txt is blank; expected words" in refused(*ask, tmp_path / "blank.txt")
    assert "latin.txt: not UTF-8" in refused(*ask, tmp_path / "latin.txt")
    assert "no such file" in refused(*ask, tmp_path / "nowhere.txt")
    for question, words in (("", "is empty"), ("a " * 50, "shorten the question")):
        assert words in refused("answer", "-m", qa_folder, "--question", question, "--context", context)
    assert "has no qa_outputs.weight" in refused("answer", "-m", tiny_bert, *ask[3:], context)


@pytest.fixture
def data(tmp_path):
    qas = [
        {"id": "q1", "question": QUESTION, "answers": [{"text": "bridge"}, {"text": "The old bridge"}]},
        {"id": "q2", "question": "hello?", "answers": [{"text": "hello world"}]},
        {"id": "q3", "question": "query", "answers": [], "is_impossible": True},
    ]
    content = {"version": "v2.0", "data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    (tmp_path / "data.json").write_text(json.dumps(content))
    return tmp_path / "data.json"


def test_evaluate_predictions(data, tmp_path):
    output = tmp_path / "predictions.json"
    output.write_text(json.dumps({"q1": "old Bridge!", "q2": "hello", "q3": ""}))
    evaluate = ["evaluate", "answers", data, "--predictions", output]
    # exact 1, 0, 1; F1 1, 2/3, 1
    assert clearhead(*evaluate) == (
        0,
        "EM  66.67  F1  88.89  (3 questions)\n"
        "EM  50.00  F1  83.33  (2 questions with an answer)\n"
        "EM 100.00  F1 100.00  (1 questions without an answer)\n",
        "",
    )
    status, out, _ = clearhead(*evaluate, "--json")
    scores = json.loads(out)
    assert scores["no_answer"] == {"exact_match": 100.0, "f1": 100.0, "questions": 1}
    assert set(scores) == {"exact_match", "f1", "questions", "missing", "has_answer", "no_answer"}
    output.write_text(json.dumps({"q1": "bridge"}))
    status, out, err = clearhead(*evaluate)
    assert status == 0
    assert out.startswith("EM  33.33  F1  33.33  (3 questions)\n")
    assert err == "clearhead: 2 questions have no prediction, for example q2; each counts as 0\n"


def test_evaluate_a_model(tmp_path, qa_folder, reader):
    questions = {f"q{letter}": f"{letter}?" for letter in "abcdefgh"}
    qas = [{"id": name, "question": question, "answers": []} for name, question in questions.items()]
    data, output = tmp_path / "data.json", tmp_path / "predictions.json"
    data.write_text(json.dumps({"data": [{"paragraphs": [{"context": "hello é.", "qas": qas}]}]}))
    status, out, err = clearhead("evaluate", "answers", data, "-m", qa_folder, "-o", output, "--json")
    assert (status, err) == (0, "")
    answer = json.loads(output.read_text(encoding="utf-8"))
    # version 2.0: the answer can be empty
    assert answer == {
        name: reader.answer(question, "hello é.", allow_no_answer=True).text for name, question in questions.items()
    }
    assert 0 < sum(not text for text in answer.values()) < len(answer)
    assert clearhead("evaluate", "answers", data, "--predictions", output, "--json")[1] == out


def test_evaluate_answers_errors(data, tmp_path, qa_folder):
    evaluate = ["evaluate", "answers", data]
    output = tmp_path / "predictions.json"
    output.write_text('{"another": "a"}')
    assert "either --model or --predictions" in refused(*evaluate)
    assert "either --model or --predictions" in refused(*evaluate, "-m", qa_folder, "--predictions", output)
    assert "--output requires --model" in refused(*evaluate, "--predictions", output, "-o", tmp_path / "o.json")
    assert "none of the 1 predictions" in refused(*evaluate, "--predictions", output)
    assert "does not exist" in refused(*evaluate, "-m", qa_folder, "-o", tmp_path / "no" / "o.json")
    assert "does not have the SQuAD format" in refused("evaluate", "answers", output, "--predictions", output)
    assert "no such file" in refused("evaluate", "answers", tmp_path / "no.json", "-m", qa_folder)
    assert not os.path.exists(tmp_path / "o.json")
