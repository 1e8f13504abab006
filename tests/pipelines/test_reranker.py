"""`Reranker` and `rerank`: scores equal those of sentence-transformers' CrossEncoder, both ways."""

import json
import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder
from support.command import clearhead, refused, started
from support.models.families import FAMILIES, make
from support.models.tiny import VOCABULARY

from clearhead import Reranker, TextClassifier
from clearhead.checkpoints import checkpoint_type
from clearhead.checkpoints.sentence_transformers import CrossEncoderSettings

ONE = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
LONG = "the old bridge was closed after the storm " * 9
PAIRS = [
    ("hello world", "the old bridge"),
    ("the old bridge was closed", "hello"),
    ("hello", LONG),
    (LONG, LONG + "hello"),
    (LONG, "hello world"),
]
DOCUMENTS = ["hello world", "the old bridge", "the storm", "hello world"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker")
    make("bert", folder, "ForSequenceClassification", **ONE)
    return folder


@pytest.fixture(scope="module")
def reranker(folder):
    return Reranker.from_pretrained(folder, precision="float32", device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_those_of_cross_encoder_both_ways(family, tmp_path):
    make(family, tmp_path, "ForSequenceClassification", **ONE)
    # whose own tokenizers give no token types
    if family in ("roberta", "xlm-roberta", "camembert", "gte", "jina_embeddings_v3"):
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        config["model_input_names"] = ["input_ids", "attention_mask"]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = CrossEncoder(str(tmp_path), device="cpu", activation_fn=torch.nn.Identity())
    theirs.save_pretrained(str(tmp_path / "theirs"))
    expected = theirs.predict(PAIRS)
    assert len(set(expected.round(3))) == len(PAIRS)
    ours = Reranker.from_pretrained(tmp_path / "theirs", precision="float32", device="cpu")
    assert ours.settings.activation == "identity"
    np.testing.assert_allclose(ours.score(PAIRS), expected, atol=1e-5, rtol=0)
    np.testing.assert_allclose(ours.score(PAIRS, batch_tokens=1), expected, atol=1e-5, rtol=0)
    ours.save_pretrained(tmp_path / "ours")
    np.testing.assert_allclose(CrossEncoder(str(tmp_path / "ours"), device="cpu").predict(PAIRS), expected, atol=1e-6)


def test_a_saved_folder_keeps_activation_limit_and_prompts(folder, tmp_path):
    theirs = CrossEncoder(
        str(folder), device="cpu", max_length=12, prompts={"query": "the old "}, default_prompt_name="query",
        activation_fn=torch.nn.Tanh(),
    )  # fmt: skip
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = Reranker.from_pretrained(tmp_path / "theirs", precision="float32", device="cpu")
    np.testing.assert_allclose(ours.score(PAIRS), theirs.predict(PAIRS), atol=1e-5)
    ours.save_pretrained(tmp_path / "ours")
    again = CrossEncoder(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.predict(PAIRS), theirs.predict(PAIRS), atol=1e-6)
    (tmp_path / "ours" / "modules.json").unlink()  # before version 5, the activation is in config.json
    assert Reranker.from_pretrained(tmp_path / "ours", device="cpu").settings == CrossEncoderSettings("tanh")
    assert type(CrossEncoder(str(tmp_path / "ours"), device="cpu").activation_fn) is torch.nn.Tanh


def test_the_activation_of_old_folders(folder, tmp_path):
    for keys, expected in (
        ({}, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
    ):
        config = json.loads((folder / "config.json").read_text()) | keys
        copy = tmp_path / expected
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        (copy / "config.json").write_text(json.dumps(config))
        ours = Reranker.from_pretrained(copy, precision="float32", device="cpu")
        assert ours.settings.activation == expected
        np.testing.assert_allclose(ours.score(PAIRS), CrossEncoder(str(copy), device="cpu").predict(PAIRS), atol=1e-5)
    (copy / "config.json").write_text(json.dumps(config | {"sentence_transformers": {"activation_fn": "my.Own"}}))
    with pytest.raises(ValueError, match=r"activation_fn='my.Own'. Use one of: torch.nn.modules.linear.Identity"):
        Reranker.from_pretrained(copy)


def test_a_head_with_several_labels_scores_pairs_but_does_not_rank(tmp_path):
    labels = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}, "label2id": {"no": 0, "perhaps": 1, "yes": 2}}
    make("bert", tmp_path, "ForSequenceClassification", **labels)
    ours = Reranker.from_pretrained(tmp_path, precision="float32", device="cpu")
    assert ours.labels == ("no", "perhaps", "yes")
    np.testing.assert_allclose(ours.score(PAIRS), CrossEncoder(str(tmp_path), device="cpu").predict(PAIRS), atol=1e-5)
    with pytest.raises(ValueError, match="has 3 scores for a pair"):
        ours.rank("hello", DOCUMENTS)
    assert checkpoint_type(tmp_path) == "classification"


def test_rank_equals_cross_encoder_and_keeps_the_order_of_equal_scores(folder, reranker):
    expected = CrossEncoder(str(folder), device="cpu").rank("hello the", DOCUMENTS, return_documents=True)
    ranking = reranker.rank("hello the", DOCUMENTS)
    assert [one.text for one in ranking] == [one["text"] for one in expected]
    assert [one.score for one in ranking] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert all(DOCUMENTS[one.index] == one.text for one in ranking)
    twins = [one.index for one in ranking if one.text == "hello world"]
    assert twins == [0, 3]
    assert reranker.rank("hello the", DOCUMENTS, top_k=2) == ranking[:2]
    assert reranker.rank("hello the", iter(DOCUMENTS), top_k=9) == ranking
    assert reranker.rank("hello", []) == []
    assert reranker.score([]).shape == (0,)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(VOCABULARY[5:]), min_size=1, max_size=50).map(" ".join), min_size=1, max_size=9)
)
def test_a_score_does_not_depend_on_the_other_documents(reranker, documents):
    together = reranker.rank("the old bridge", documents)
    assert sorted(one.index for one in together) == list(range(len(documents)))
    assert [one.score for one in together] == sorted((one.score for one in together), reverse=True)
    alone = {one.index: reranker.score([("the old bridge", one.text)])[0] for one in together}
    assert [one.score for one in together] == pytest.approx([alone[one.index] for one in together], abs=1e-6)


def test_bfloat16_is_close_and_its_logits_are_float32(folder, reranker, monkeypatch):
    fast = Reranker.from_pretrained(folder, precision="bfloat16", device="cpu")
    assert next(fast.inference_model.encoder.encoder.parameters()).dtype == torch.bfloat16
    compute, dtypes = fast.inference_model.logits, set()

    def logits(*args):
        result = compute(*args)
        dtypes.add(result.dtype)
        assert not torch.equal(result, result.bfloat16().float())  # not rounded before
        return result

    monkeypatch.setattr(fast.inference_model, "logits", logits)
    scores = fast.score(PAIRS)
    assert dtypes == {torch.float32}
    np.testing.assert_allclose(scores, reranker.score(PAIRS), atol=0.1)


def test_long_documents_are_truncated_with_a_warning(reranker, caplog):
    with caplog.at_level(logging.WARNING):
        ranking = reranker.rank("hello", ["the storm", LONG])
    assert {one.text: one.truncated for one in ranking} == {"the storm": False, LONG: True}
    assert "1 of 2 documents were truncated to 36 tokens (document 1). Split them" in caplog.text
    # only the beginning of a very long text is tokenized
    assert reranker.score([("hello", LONG * 500)]) == reranker.score([("hello", LONG * 2)])


BAD = [
    ('r.rank("hello", ["a", None])', "document 1 is a NoneType; expected a string. Missing values: drop them"),
    ('r.rank("hello", "a text")', "expected a list of texts, got a single string. Put it in a list"),
    ('r.rank("hello", ["the storm", ""])', "document 1 is empty; expected words"),
    ('r.rank("hello", ["\\ud800"])', "document 0 has half a surrogate pair at character 0"),
    ('r.rank(None, ["a"])', "the query is a NoneType; expected a string"),
    ('r.rank(" \\n", ["a"])', "the query is blank; expected words"),
    ('r.rank("hello " * 33, ["a"])', "the query has 33 tokens; expected at most 32, because the model reads query and"),
    ('r.rank("hello", ["a"], top_k=0)', "top_k must be at least 1; got 0"),
    ('r.score(["hello world"])', "pair 0 is 'hello world'; expected a query and a document"),
    ('r.score([("a", "b"), ("a", 3)])', "the document of pair 1 is a int; expected a string"),
    ('r.score([("", "b")])', "the query of pair 0 is empty; expected words"),
    ('r.score("ab")', "expected a list of (query, document) pairs, got str"),
    ("r.score(None)", "expected a list of (query, document) pairs, got NoneType"),
]


@pytest.mark.slow
def test_bad_input_is_one_clear_error(folder):
    # in a process without the type checks of the tests, which would refuse some of it first
    script = f"""
from clearhead import Reranker
r = Reranker.from_pretrained({str(folder)!r}, device="cpu")
assert len(r.rank("hello " * 32, ["a"])) == 1
for call in {[call for call, _ in BAD]!r}:
    try:
        eval(call)
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for line, (_, message) in zip(done.stdout.splitlines(), BAD, strict=True):
        assert line.startswith(message)


def test_a_one_label_classifier_can_be_saved(folder, tmp_path):
    TextClassifier.from_pretrained(folder, precision="float32", device="cpu").save_pretrained(tmp_path)
    CrossEncoder(str(tmp_path), device="cpu")  # transformers rejects a problem_type of one label


@pytest.mark.slow
def test_the_command(folder, reranker, tmp_path):
    (tmp_path / "queries.txt").write_text("hello the\nthe bridge\n")
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in DOCUMENTS))
    files = [tmp_path / "queries.txt", tmp_path / "documents.jsonl", "--column", "body", "-m", folder]
    status, out, err = started("rerank", *files, "--precision", "float32", "--top-k", "3")
    assert (status, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["query"] for line in lines] == ["hello the", "the bridge"]
    for line in lines:
        expected = reranker.rank(line["query"], DOCUMENTS, top_k=3)
        assert [(one["index"], one["text"]) for one in line["results"]] == [(one.index, one.text) for one in expected]
        assert [one["score"] for one in line["results"]] == pytest.approx([one.score for one in expected], abs=1e-6)
    status, written, _ = clearhead(
        "rerank", *files, "--precision", "float32", "--top-k", "3", "-o", tmp_path / "o.jsonl"
    )
    assert (status, written, (tmp_path / "o.jsonl").read_text()) == (0, "", out)


@pytest.mark.slow
def test_the_command_refuses_bad_input_and_writes_nothing(folder, tmp_path, tiny_bert):
    (tmp_path / "documents.txt").write_text("hello\n\nthe storm\n")
    (tmp_path / "good.txt").write_text(f"hello\n{LONG}\n")
    output = tmp_path / "out.jsonl"
    for arguments, message in (
        (["hello", tmp_path / "documents.txt", "-m", folder], "documents.txt, line 2: the document is empty"),
        ([tmp_path / "good.txt", tmp_path / "good.txt", "-m", folder], "good.txt, line 2: the query has 72 tokens"),
        (["hello", tmp_path / "good.txt", "-m", tiny_bert], "has no classifier.weight"),
        (["hello", tmp_path / "good.txt"], "rerank needs a model"),
        (["-", "-", "-m", folder], "cannot both be standard input"),
    ):
        assert message in refused("rerank", *arguments, "-o", output)
        assert not output.exists()
    assert "name the file .jsonl" in refused(
        "rerank", "a", tmp_path / "good.txt", "-m", folder, "-o", tmp_path / "o.csv"
    )
    (tmp_path / "long.txt").write_text(f"{LONG}\nhello\n")
    status, _, err = clearhead("rerank", "hello", tmp_path / "long.txt", "-m", folder)
    assert status == 0
    assert (
        err
        == "clearhead: 1 of the printed documents were truncated to the model's limit of 36 tokens, query included\n"
    )
