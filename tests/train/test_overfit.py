"""Every task memorizes 32 artificial examples; our pipelines and transformers load the saved model."""

import math
import random

import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder
from support.data.training_data import SIZES, recipe, write_data

from clearhead import QuestionAnswerer, Reranker, TextClassifier, TextEncoder, TextToText, checkpoints
from clearhead.data.records import Records
from clearhead.train.trainer import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def learned(files, task, folder, *, steps, rate=0.005, **sections):
    """Train without regularizers and validate on the training data; return (folder, scores, rows)."""
    sections["optimizer"] = {"learning_rate": rate, "warmup_steps": 10, "schedule": "linear"}
    sections["training"] = {"steps": steps}
    sections["model"] = SIZES | {"d_model": 32, "ffn_hidden": 64} | sections.get("model", {})
    sections["validation"] = sections.get("validation", {}) | {"every": steps}
    sections["data"] = {"batch_tokens": 2000} | sections.get("data", {})
    spec = recipe(files, task, output=folder / "run", held_out=True, **sections)
    trained = train(spec)
    fields = {"text-to-text": ("source", "target"), "classification": ("text", "label")}
    if getattr(spec.objective, "loss", None) != "margin-mse":
        fields["reranking"] = ("query", "document", "label")
    rows = list(Records(spec.data.train, fields=fields[task])) if task in fields else []
    return trained.folder, trained.scores, [row.values for row in rows]


@pytest.mark.parametrize("layout", ["marian", "bart"])
def test_text_to_text(data, tmp_path, layout):
    validation = {"metrics": ["bleu"], "max_new_tokens": 30}
    model = {"architecture": layout, "num_layers": 1}
    folder, scores, rows = learned(
        data, "text-to-text", tmp_path, steps=260, rate=0.01, validation=validation, model=model
    )
    assert scores["loss"] < 0.05
    assert scores["bleu"] > 98
    sources, targets = [row["source"] for row in rows], [row["target"] for row in rows]
    ours = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    greedy = ours.generate(sources, beam_size=1, max_new_tokens=30)
    assert sum(one == other for one, other in zip(greedy, targets, strict=True)) >= 31

    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(sources, padding=True, return_tensors="pt")
    assert [ids[keep.bool()].tolist() for ids, keep in zip(inputs.input_ids, inputs.attention_mask, strict=True)] == [
        tokens.ids for tokens in ours.tokenizer.encode(sources, None)
    ]
    model, _ = checkpoints.load_seq2seq(folder)
    decoder_input = torch.randint(0, model.config.vocab_size, (len(sources), 7))
    with torch.no_grad():
        logits = theirs(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, decoder_input_ids=decoder_input
        ).logits
        mine = model.eval()(inputs.input_ids, decoder_input, inputs.attention_mask.bool()[:, None, None])
    assert (mine - logits).norm() < 1e-5 * logits.norm()
    for beams in (1, 5):
        with torch.no_grad():
            output = theirs.generate(**inputs, num_beams=beams, max_new_tokens=30, do_sample=False)
        texts = [text.strip() for text in tokenizer.batch_decode(output, skip_special_tokens=True)]
        assert texts == [text.strip() for text in ours.generate(sources, beam_size=beams, max_new_tokens=30)]


def test_masked_language_model(data, tmp_path):
    # each text repeats one word, so the masked tokens follow from the others
    draws = random.Random(1)
    words = ["red", "green", "blue", "dog", "cat", "tree"]
    lines = [" ".join([draws.choice(words)] * 8) for _ in range(32)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    folder, scores, _ = learned(
        data, "masked-language-model", tmp_path, steps=250, data={"train": str(tmp_path / "a.txt")}
    )
    # of 8 words with several tokens each
    assert scores["loss"] < 0.1
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = checkpoints.load_masked_lm(folder)[0].eval()
    inputs = tokenizer(lines, padding=True, return_tensors="pt")
    keep = inputs.attention_mask.bool()
    with torch.no_grad():
        logits = theirs(**inputs).logits[keep]
        mine = model(inputs.input_ids, keep[:, None, None])[keep]
    assert (mine - logits).norm() < 1e-5 * logits.norm()
    _same_ids(folder, tokenizer, lines)


def _same_ids(folder, tokenizer, texts):
    from clearhead.tokenizers.tokenizer import Tokenizer

    assert tokenizer(texts)["input_ids"] == [tokens.ids for tokens in Tokenizer.from_folder(folder).encode(texts, 512)]


def test_classification(data, tmp_path):
    folder, scores, rows = learned(data, "classification", tmp_path, steps=120)
    assert scores["loss"] < 0.05
    assert scores["accuracy"] == 100
    texts = [row["text"] for row in rows]
    predictions = TextClassifier.from_pretrained(folder, precision="float32", device="cpu").classify(texts)
    assert [prediction.label for prediction in predictions] == [row["label"] for row in rows]
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        shares = torch.softmax(theirs(**tokenizer(texts, padding=True, return_tensors="pt")).logits, -1)
    assert [theirs.config.id2label[int(row.argmax())] for row in shares] == [row["label"] for row in rows]
    for prediction, row in zip(predictions, shares, strict=True):
        assert prediction.probability == pytest.approx(row.max().item(), abs=1e-5)
    _same_ids(folder, tokenizer, texts)


def test_span_answers(data, tmp_path):
    folder, scores, _ = learned(data, "span-answers", tmp_path, steps=250)
    assert scores["loss"] < 0.1
    assert scores["exact_match"] > 95
    rows = [
        row.values for row in Records(str(data / "q.tsv"), fields=("question", "context", "answer", "answer_start"))
    ]
    pairs = [(row["question"], row["context"]) for row in rows]
    answers = QuestionAnswerer.from_pretrained(folder, precision="float32", device="cpu").answers(pairs)
    assert sum(answer.text == row["answer"] for answer, row in zip(answers, rows, strict=True)) >= 31
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = checkpoints.load_span_classifier(folder)[0].eval()
    inputs = tokenizer([one for one, _ in pairs], [two for _, two in pairs], padding=True, return_tensors="pt")
    keep = inputs.attention_mask.bool()
    with torch.no_grad():
        out = theirs(**inputs)
        begin, end = model(inputs.input_ids, keep[:, None, None], inputs.token_type_ids)
    for mine, logits in ((begin, out.start_logits), (end, out.end_logits)):
        assert (mine - logits)[keep].norm() < 1e-5 * logits[keep].norm()


@pytest.mark.parametrize("loss", ["contrastive", "regression"])
def test_sentence_embeddings(data, tmp_path, loss):
    spec = {"objective": {"loss": loss}}
    if loss == "contrastive":
        lines = sorted(set((data / "p.tsv").read_text(encoding="utf-8").splitlines()))
        (tmp_path / "p.tsv").write_text(
            "".join("\t".join(line.split("\t")[:2]) + "\n" for line in lines), encoding="utf-8"
        )
        spec["data"] = {"train": str(tmp_path / "p.tsv")}
    folder, scores, _ = learned(data, "sentence-embeddings", tmp_path, steps=250, **spec)
    assert scores["loss"] < 0.05
    encoder = TextEncoder.from_pretrained(folder, precision="float32", device="cpu")
    rows = [line.split("\t") for line in (data / "p.tsv").read_text(encoding="utf-8").splitlines()]
    one, two = (encoder.encode([row[column] for row in rows]) for column in (0, 1))
    cosines = (one * two).sum(-1)
    if loss == "regression":
        assert scores["spearman"] > 0.95
        for cosine, row in zip(cosines, rows, strict=True):
            assert math.isclose(cosine, int(row[2]) / 5, abs_tol=0.25)
    else:
        assert cosines.mean() > 0.6
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    texts = [row[0] for row in rows]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = theirs(**inputs).last_hidden_state
    keep = inputs.attention_mask[:, :, None]
    means = torch.nn.functional.normalize((hidden * keep).sum(1) / keep.sum(1), dim=-1)
    torch.testing.assert_close(torch.from_numpy(one), means, rtol=0, atol=1e-5)
    _same_ids(folder, tokenizer, texts)


def test_reranking_and_its_distillation(data, tmp_path):
    folder, scores, rows = learned(data, "reranking", tmp_path / "labels", steps=200)
    assert scores["loss"] < 0.1
    assert scores["reciprocal_rank"] == 1
    pairs = [(row["query"], row["document"]) for row in rows]
    reranker = Reranker.from_pretrained(folder, precision="float32", device="cpu")
    ours = reranker.score(pairs)
    assert ((ours > 0.5) == [row["label"] == "1" for row in rows]).all()
    theirs = CrossEncoder(str(folder), device="cpu").predict(pairs)
    torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(theirs), rtol=0, atol=1e-5)

    # a student learns the margins between documents that the teacher tells apart
    logits = torch.logit(torch.from_numpy(ours.astype("float64"))).tolist()
    triples = [
        "\t".join([query, one, two, f"{first:.4f}", f"{second:.4f}"])
        for (query, one), first in zip(pairs, logits, strict=True)
        for (other, two), second in zip(pairs, logits, strict=True)
        if query == other and first > second + 1
    ]
    (tmp_path / "triples.tsv").write_text("".join(f"{line}\n" for line in triples), encoding="utf-8")
    spec = {"objective": {"loss": "margin-mse"}, "data": {"train": str(tmp_path / "triples.tsv")}}
    folder, scores, _ = learned(data, "reranking", tmp_path / "margins", steps=200, **spec)
    assert scores["correct_order"] > 0.95
    student = Reranker.from_pretrained(folder, precision="float32", device="cpu")
    assert student.settings.activation == "identity"


def test_reranking_with_squared_errors(data, tmp_path):
    _, scores, _ = learned(data, "reranking", tmp_path, steps=200, objective={"loss": "mse"})
    assert scores["loss"] < 0.02
    assert scores["spearman"] > 0.8
