"""The commands `evaluate translation`, `evaluate summarization` and `evaluate classification`."""

import gzip
import json
import os
from functools import partial

import pytest
from sacrebleu.metrics import BLEU, CHRF
from support import forks
from support.command import clearhead, refused
from support.models.families import make

from clearhead.metrics.bleu import translation_scores
from clearhead.metrics.classification import classification_scores
from clearhead.metrics.rouge import summary_scores
from clearhead.metrics.similarity import line_of_pair

SOURCES = ["The old bridge was closed.", "Is it safe?", "", "The old bridge was closed.", "A small boat."]
FIRST = ["Die alte Brücke war zu.", "Ist sie sicher?", "", "Man schloss die alte Brücke.", "Ein kleines Boot."]
SECOND = ["Zu war die alte Brücke.", "Ist das sicher?", "x", "Die Brücke war zu.", "Ein Boot."]
OPTIONS = ["--beam-size", 2, "--max-new-tokens", 6]


def lines(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines(folder / "source", SOURCES)
    lines(folder / "first", FIRST)
    lines(folder / "second", SECOND)
    lines(folder / "hypotheses", [text.upper() for text in FIRST])
    return folder


@pytest.fixture(scope="module")
def generator(marian):
    from clearhead import TextToText

    return TextToText.from_pretrained(marian, precision="float32", device="cpu")


def test_evaluate_existing_translations(data):
    evaluate = [
        "evaluate",
        "translation",
        "--hypotheses",
        data / "hypotheses",
        "-r",
        data / "first",
        "-r",
        data / "second",
    ]
    hypotheses = [text.upper() for text in FIRST]
    for more, options in (([], {}), (["--lowercase", "--tokenize", "none"], {"lowercase": True, "tokenize": "none"})):
        bleu, chrf = BLEU(**options), CHRF(lowercase=options.get("lowercase", False))
        first, second = (metric.corpus_score(hypotheses, [FIRST, SECOND]).score for metric in (bleu, chrf))
        run = clearhead
        assert run(*evaluate, *more) == (
            0,
            f"BLEU {first:.2f}  chrF {second:.2f}  (5 sentences)\n"
            f"BLEU {bleu.get_signature()}\nchrF {chrf.get_signature()}\n",
            "",
        )
    # a SOURCE in addition changes nothing
    _, out, _ = clearhead("evaluate", "translation", data / "source", *evaluate[2:], "--json")
    scores = json.loads(out)
    assert set(scores) == {"bleu", "chrf", "bleu_signature", "chrf_signature", "sentences"}
    assert scores["chrf"] == CHRF().corpus_score(hypotheses, [FIRST, SECOND]).score


def test_evaluate_a_translator(data, marian, generator, tmp_path):
    expected = generator.generate(SOURCES, beam_size=2, max_new_tokens=6)
    output = tmp_path / "out"
    evaluate = ["evaluate", "translation", data / "source", "-r", data / "first", "-m", marian, *OPTIONS]
    status, out, err = clearhead(*evaluate, "--json", "-o", output)
    assert status == 0
    assert output.read_text(encoding="utf-8") == "".join(f"{text}\n" for text in expected)
    assert json.loads(out) == vars(translation_scores(expected, [FIRST]))
    assert "outputs were truncated at the maximum length" in err
    # the written outputs give the same scores
    assert clearhead("evaluate", "translation", "--hypotheses", output, "-r", data / "first", "--json")[1] == out


def test_repeated_sources(data, marian, generator, tmp_path):
    output = tmp_path / "out"
    once = [text for number, text in enumerate(SOURCES) if text not in SOURCES[:number]]
    hypotheses = generator.generate(once, beam_size=2, max_new_tokens=6)
    references = [[*FIRST[:3], FIRST[4]], [FIRST[3], None, None, None]]
    evaluate = ["evaluate", "translation", data / "source", "-r", data / "first", "--join-repeated", "--json"]
    status, out, _ = clearhead(*evaluate, "-m", marian, *OPTIONS, "-o", output)
    assert status == 0
    assert json.loads(out) == vars(translation_scores(hypotheses, references))
    # a line for each line of the source
    assert output.read_text(encoding="utf-8").split("\n") == [*hypotheses[:3], hypotheses[0], hypotheses[3], ""]
    assert clearhead(*evaluate, "--hypotheses", output)[1] == out
    lines(output, ["a", "b", "c", "d", "e"])
    assert "lines 1 and 4 translate the same source differently" in refused(*evaluate, "--hypotheses", output)


def test_missing_extra_names_the_pip_command(data):
    options = ["-r", data / "first", "--hypotheses", data / "hypotheses"]
    for package, arguments in (("sacrebleu", ["translation"]), ("rouge_score", ["summarization", data / "source"])):
        message = refused("evaluate", *arguments, *options, hook=partial(forks.hide_packages, package))
        assert f'{package}: pip install "clearhead[evaluate]"' in message


@pytest.mark.slow
def test_evaluate_translation_errors(data, marian, tmp_path):
    evaluate = ["evaluate", "translation"]
    options = ["-r", data / "first", "--hypotheses", data / "hypotheses"]
    short, empty = lines(tmp_path / "short", FIRST[:3]), lines(tmp_path / "empty", [])
    for arguments, message in [
        ([data / "source", "-r", data / "first"], "either --model or --hypotheses"),
        ([data / "source", *options, "-m", marian], "either --model or --hypotheses"),
        ([data / "source", "-m", marian], "give --reference"),
        (["-r", data / "first", "-m", marian], "--model requires the SOURCE file"),
        ([*options, "--join-repeated"], "--join-repeated requires the SOURCE file"),
        (
            ["-r", short, "--hypotheses", data / "hypotheses"],
            f"{short} has 3 lines, but {data / 'hypotheses'} has 5: its line 4 is {FIRST[3].upper()!r}",
        ),
        ([short, "-r", data / "first", "-m", "no-such-model"], f"{short} has 3 lines, but {data / 'first'} has"),
        ([*options, "-r", short], "its line 4 is"),
        (["-r", empty, "--hypotheses", empty], f"{empty} is empty"),
        (["-r", tmp_path / "no", "--hypotheses", short], "no such file"),
        ([*options, "-o", tmp_path / "o"], "--output requires --model"),
        ([data / "source", "-r", data / "first", "-m", marian, "-o", tmp_path / "no" / "o"], "does not exist"),
        ([*options, "--tokenize", "moses"], "no tokenizer 'moses'. Use one of: none"),
        (
            [data / "source", "-r", data / "first", "-m", marian, "--target-lang", "de"],
            "translates between fixed languages",
        ),
    ]:
        assert message in refused(*evaluate, *arguments)
    assert not os.path.exists(tmp_path / "o")


@pytest.mark.slow
def test_evaluate_existing_summaries(data, tmp_path):
    texts = ["The old bridge was closed. Nobody crossed it.", "A boat came. It was small.", "It rained."]
    golds = ["The bridge was closed.", "A small boat came.", "Rain."]
    source, gold = lines(tmp_path / "docs", texts), lines(tmp_path / "golds", golds)
    hypotheses = lines(tmp_path / "hypotheses", ["A bridge closed.", "Boats came.", "It rained a lot."])
    evaluate = ["evaluate", "summarization", source, "-r", gold]
    scores = summary_scores(hypotheses.read_text().splitlines(), [golds])
    assert clearhead(*evaluate, "--hypotheses", hypotheses) == (
        0,
        f"ROUGE-1 {scores.rouge1:.2f}  ROUGE-2 {scores.rouge2:.2f}  ROUGE-L {scores.rouge_l:.2f}  (3 documents)\n",
        "",
    )
    _, out, _ = clearhead(*evaluate, "--baseline", "first-sentence", "--json", "-o", tmp_path / "leads")
    leads = ["The old bridge was closed.", "A boat came.", "It rained."]
    assert (tmp_path / "leads").read_text().splitlines() == leads
    assert json.loads(out) == vars(summary_scores(leads, [golds]))


@pytest.mark.slow
def test_evaluate_summaries_of_a_jsonl_file(marian, generator, tmp_path):
    from clearhead.pipelines.summarizer import summarize

    rows = [
        {"source": ["The bridge, e. g.", "It was closed."], "target": ["Closed.", "A closed bridge."]},
        {"source": "A boat came. It was small.", "target": "A small boat."},
    ]
    path = lines(tmp_path / "docs.jsonl", map(json.dumps, rows))
    references = [["Closed.", "A small boat."], ["A closed bridge.", None]]
    _, out, _ = clearhead("evaluate", "summarization", path, "--baseline", "first-sentence", "--json")
    assert json.loads(out) == vars(summary_scores(["The bridge, e. g.", "A boat came."], references))
    output = tmp_path / "out"
    _, out, err = clearhead("evaluate", "summarization", path, "-m", marian, *OPTIONS, "--json", "-o", output)
    documents = ["The bridge, e. g. It was closed.", "A boat came. It was small."]
    expected = [summarize(generator, text, beam_size=2, max_new_tokens=6) for text in documents]
    assert output.read_text().splitlines() == [summary.text for summary in expected]
    assert json.loads(out) == vars(summary_scores([summary.text for summary in expected], references))
    assert err.count("\n") == any(not part.complete for summary in expected for part in summary.parts)


@pytest.mark.slow
def test_evaluate_summarization_errors(data, marian, tmp_path):
    docs = lines(tmp_path / "docs", ["A.", "B."])
    golds = lines(tmp_path / "golds", ["a"])
    rows = tmp_path / "rows.jsonl"
    evaluate = ["evaluate", "summarization"]
    for arguments, message in [
        ([docs, "-r", docs], "give exactly one of --model, --hypotheses and --baseline"),
        ([docs, "-r", docs, "-m", marian, "--hypotheses", docs], "one of --model"),
        ([docs, "--baseline", "first-sentence"], "give --reference"),
        ([docs, "-r", golds, "--baseline", "first-sentence"], f"{golds} has 1 lines, but {docs} has 2: its line 2 is"),
        ([docs, "-r", docs, "--hypotheses", golds], f"{golds} has 1 lines for 2 documents in {docs}"),
        (
            [docs, "-r", docs, "--reference-column", "x", "--baseline", "first-sentence"],
            "require a .jsonl file without --reference",
        ),
        ([rows, "--baseline", "first-sentence"], "no such file"),
    ]:
        assert message in refused(*evaluate, *arguments)
    for content, message in [
        ("\n", "is empty"),
        ('{"source": "a"}', "line 1: no column 'target'; it has: source"),
        ('\n{"source": "a", "target": []}', "line 2: column 'target' is []"),
        ('{"source": ["a", 1], "target": "a"}', "line 1: column 'source' is ['a', 1]"),
        ('["a"]', "line 1: a JSON list"),
        ("{", "line 1: not JSON"),
    ]:
        rows.write_text(content)
        assert message in refused(*evaluate, rows, "--baseline", "first-sentence")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    labels = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}
    make("bert", folder, "ForSequenceClassification", **labels)
    return folder


@pytest.mark.slow
def test_evaluate_a_classifier(classifier, tmp_path):
    from clearhead import TextClassifier

    texts = ["hello world", 'the "old bridge', "", "a b c d", "this is, a test", "storm"]
    labels = ["good", "bad", "bad", "odd", "good", "bad"]
    predictions = [one.label for one in TextClassifier.from_pretrained(classifier, precision="float32").classify(texts)]
    scores = classification_scores(predictions, labels, labels=("good", "bad", "odd"))
    rows = list(zip(texts, labels, strict=True))
    files = {
        "a.tsv": "".join(f"{text}\t{label}\n" for text, label in rows),
        "b.csv": "".join('"{}",{}\r\n'.format(text.replace('"', '""'), label) for text, label in rows),
        "c.jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows),
        "d.tsv": "kind\tid\tsaid\r\n" + "".join(f"{label}\t1\t{text}\r\n" for text, label in rows),
    }
    files["e.csv"] = "".join(f'{label},1,"{text.replace(chr(34), 2 * chr(34))}"\n' for text, label in rows)
    for name, content in files.items():
        (tmp_path / name).write_text(content, newline="")
        columns = {"d.tsv": ["said", "kind"], "e.csv": ["2", "0"]}.get(name, [])
        columns = columns and ["--column", columns[0], "--label-column", columns[1]]
        run = clearhead
        status, out, err = run("evaluate", "classification", tmp_path / name, "-m", classifier, "--json", *columns)
        assert (status, err) == (0, ""), (name, err)
        report = json.loads(out)
        assert report["confusion"] == scores.confusion
        assert report["accuracy"] == scores.accuracy
        assert report["labels"]["bad"] == vars(scores.labels["bad"])
    _, out, _ = clearhead("evaluate", "classification", tmp_path / "a.tsv", "-m", classifier)
    assert out.startswith(f"accuracy {scores.accuracy:.2f}  macro F1 {scores.macro_f1:.2f}  (6 texts)\n\nlabel ")
    assert [line.split()[0] for line in out.splitlines()[3:]] == ["good", "bad", "odd"]


def test_evaluate_classification_writes_predictions(classifier, tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"hello, world",good\nthe bridge,odd\n')
    output = tmp_path / "predictions.jsonl"
    arguments = ("evaluate", "classification", tmp_path / "a.csv", "-m", classifier)
    status, out, err = clearhead(*arguments, "--output", output)
    assert status == 0, err
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["text"], row["label"]) for row in rows] == [("hello, world", "good"), ("the bridge", "odd")]
    correct = sum(row["label"] == row["predicted"] for row in rows)
    assert out.startswith(f"accuracy {50 * correct:.2f}")
    assert "must end in .jsonl" in refused(*arguments, "--output", tmp_path / "predictions.csv")


@pytest.mark.slow
def test_evaluate_classification_errors(classifier, tmp_path):
    for name, content, columns, message in [
        ("a.tsv", "x\tgood\ny\tgoo\n", [], "line 2: no label 'goo'; the nearest is 'good' of 3"),
        ("a.tsv", "x\tgood\ny\n", [], "line 2"),
        ("a.tsv", "text\tkind\nx\tgood\n", [], "line 1 looks like a header, but it has no column label"),
        ("a.csv", "said,label\nx,good\n", ["--label-column", "label"], "no column 'text'"),
        ("a.csv", 'x,"good\n', [], "line 1"),
        ("a.tsv", "", [], "is empty"),
        ("a.jsonl", '{"text": "x"}\n', [], "no column 'label'"),
        ("a.txt", "x\tgood\n", [], ".tsv, .csv, .jsonl or .parquet file"),
    ]:
        (tmp_path / name).write_text(content)
        assert message in refused("evaluate", "classification", tmp_path / name, "-m", classifier, *columns)
    (tmp_path / "a.tsv").write_bytes(b"\xff\tgood\n")
    assert "not UTF-8" in refused("evaluate", "classification", tmp_path / "a.tsv", "-m", classifier)
    assert "no such file" in refused("evaluate", "classification", tmp_path / "no.tsv", "-m", classifier)


def test_lines_of_a_packed_file_of_pairs_are_named(tmp_path, tiny_bert):
    path = tmp_path / "pairs.csv.gz"
    path.write_bytes(gzip.compress(b"first,second,score\n\na,b,1\nc,d,2\n"))
    assert line_of_pair(path, 1) == 4
    path.write_bytes(gzip.compress(b"hello,hello,1\nworld,world,2\n"))
    assert f"{path}: all cosines are 1, so their correlation is undefined" in refused(
        "evaluate", "similarity", path, "-m", tiny_bert, "-q"
    )
    path.write_bytes(gzip.compress(b"a,b,2\nc,d,2\n"))
    assert f"{path}: all scores are 2" in refused("evaluate", "similarity", path, "-m", tiny_bert, "-q")


def squad(path, **changes):
    question = {"id": "q7", "question": "who ?", "answers": [{"text": "hello", "answer_start": 0}]}
    context = changes.pop("context", "hello world")
    paragraph = {"context": context, "qas": [question | changes]}
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": [paragraph]}]}))
    return path


@pytest.mark.slow
def test_errors_of_squad_files_name_them(tmp_path):
    make("bert", tmp_path / "reader", "ForQuestionAnswering")
    path, predictions = tmp_path / "squad.json", tmp_path / "predictions.json"

    def answers(*options):
        return refused("evaluate", "answers", path, *options)

    for key in ("id", "question", "context"):
        squad(path, **{key: "a \ud800"})
        assert f"{path} does not have the SQuAD format: data[0].paragraphs[0]" in answers("-m", tmp_path / "reader")
    squad(path, context=" ")
    assert f"{path}: the context of pair 0 is blank" in answers("-m", tmp_path / "reader")
    squad(path, question="who " * 500)
    assert f"{path}: the question of pair 0 has" in answers("-m", tmp_path / "reader")
    squad(path)
    predictions.write_text('{"q8": "hello"}')
    assert f"{predictions}: none of the 1 predictions" in answers("--predictions", predictions)
    predictions.write_text('{"q7": "", "q7": "hello"}')
    assert f"{predictions} is not JSON: the key 'q7' is repeated" in answers("--predictions", predictions)
