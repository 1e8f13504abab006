"""`TextClassifier` and `classify`: probabilities equal transformers'."""

import json
import shutil

import pytest
import torch
from support.command import clearhead, refused, started
from support.models.families import make
from transformers import AutoTokenizer

from clearhead import TextClassifier

TEXTS = [
    "hello world",
    "",
    "the old bridge was closed after the storm",
    "a b c d e f g h i j k l m n o p q r s t u v w",
]
LABELS = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}


@pytest.fixture(scope="module", params=["bert", "modernbert"])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, make(request.param, folder, "ForSequenceClassification", **LABELS)


def logits(folder, theirs):
    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return theirs(tokens["input_ids"], attention_mask=tokens["attention_mask"]).logits


def test_probabilities_equal_transformers(pair):
    folder, theirs = pair
    expected = logits(folder, theirs).softmax(dim=-1)
    classifier = TextClassifier.from_pretrained(folder, precision="float32", device="cpu")
    assert classifier.labels == ("good", "bad", "odd")
    for classifications in (
        classifier.classify(TEXTS),
        classifier.classify(TEXTS, batch_tokens=1),
        list(classifier.stream(TEXTS)),
    ):
        rows = torch.tensor(
            [[output.probabilities[label] for label in classifier.labels] for output in classifications]
        )
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)
        best = expected.argmax(dim=-1).tolist()
        assert [output.label for output in classifications] == [classifier.labels[index] for index in best]
        assert all(output.probability == max(output.probabilities.values()) for output in classifications)
    assert classifier.classify([]) == []
    (alone,) = classifier.classify([TEXTS[0]])
    assert classifier.classify(TEXTS[0]) == alone


def test_multi_label_classification(tmp_path):
    theirs = make("bert", tmp_path, "ForSequenceClassification", problem_type="multi_label_classification", **LABELS)
    classifier = TextClassifier.from_pretrained(tmp_path, precision="float32", device="cpu")
    expected = logits(tmp_path, theirs).sigmoid()
    rows = torch.tensor([list(output.probabilities.values()) for output in classifier.classify(TEXTS)])
    torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)
    classifier.save_pretrained(tmp_path / "saved")
    again = TextClassifier.from_pretrained(tmp_path / "saved", precision="float32", device="cpu")
    assert again.classify(TEXTS) == classifier.classify(TEXTS)


def test_bfloat16_is_close_to_transformers(pair):
    folder, theirs = pair
    classifier = TextClassifier.from_pretrained(folder, precision="bfloat16", device="cpu")
    assert next(classifier.inference_model.encoder.encoder.parameters()).dtype == torch.bfloat16
    assert next(classifier.model.encoder.encoder.parameters()).dtype == torch.float32
    rows = torch.tensor([list(output.probabilities.values()) for output in classifier.classify(TEXTS)])
    torch.testing.assert_close(rows, logits(folder, theirs).softmax(dim=-1), atol=0.1, rtol=0)


@pytest.mark.slow
def test_the_command(pair, tmp_path, tiny_bert):
    folder, theirs = pair
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    status, out, err = started("classify", tmp_path / "texts.txt", "--model", folder)
    assert (status, err) == (0, "")
    lines = [line.split("\t") for line in out.split("\n")[:-1]]
    expected = logits(folder, theirs).softmax(dim=-1)
    assert [label for label, _ in lines] == [("good", "bad", "odd")[index] for index in expected.argmax(dim=-1)]
    assert [float(number) for _, number in lines] == pytest.approx(expected.amax(dim=-1).tolist(), abs=1e-4)
    status, out, _ = clearhead("classify", "-m", folder, "--json", stdin=b"hello world\n")
    output = json.loads(out)
    assert set(output) == {"label", "probability", "probabilities", "truncated"}
    assert sum(output["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert "has no classifier.weight" in refused("classify", "-m", tiny_bert, stdin=b"a\n")


def test_stream_reports_each_batch(pair):
    folder, _ = pair
    classifier = TextClassifier.from_pretrained(folder, precision="float32", device="cpu")
    batches = []
    list(classifier.stream(TEXTS * 4, batch_tokens=16, on_batch=lambda texts, tokens: batches.append((texts, tokens))))
    assert len(batches) > 4
    assert sum(texts for texts, _ in batches) == 16
    assert sum(tokens for _, tokens in batches) == sum(len(text.ids) for text in classifier.tokenizer.encode(TEXTS)) * 4


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["same", "same", "odd"], "2 outputs have the label 'same'; expected different labels"),
        (["a\nb", "bad", "odd"], r"the label 'a\\nb' has a line break or another control character"),
        (["\x1b[31m", "bad", "odd"], r"the label '\\x1b\[31m' has a line break"),
    ],
)
def test_labels_that_cannot_be_told_apart_or_printed_are_refused(pair, tmp_path, labels, words):
    folder = shutil.copytree(pair[0], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": dict(enumerate(labels))}))
    with pytest.raises(ValueError, match=f"config\\.json: {words}"):
        TextClassifier.from_pretrained(folder)
