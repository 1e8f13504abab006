"""NaN or infinity in a model's outputs raises an error that names the text, its line and the model."""

import pickle
import shutil

import numpy as np
import pytest
from support.command import clearhead, refused
from support.models import families, overflow
from support.models.folders import marian
from support.models.tiny import make_bert

from clearhead import QuestionAnswerer, TextClassifier, TextEncoder, TextToText
from clearhead.finite import NonFiniteError, check_finite
from clearhead.runtime.vectors import EncodeOptions

TEXTS = ["hello world", "the old bridge", "after the storm", "this is a test"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models that overflow for texts with the word storm, or for all texts."""
    root = tmp_path_factory.mktemp("overflow")
    for name in ("bert", "classifier", "reader", "broken", "long", "translator", "broken-translator"):
        (root / name).mkdir()
    overflow.at_word(make_bert(root / "bert"), "storm")
    overflow.everywhere(make_bert(root / "broken"))
    overflow.large_norm(make_bert(root / "long"))
    for name, head in {"classifier": "ForSequenceClassification", "reader": "ForQuestionAnswering"}.items():
        families.make("bert", root / name, head)
        overflow.at_word(root / name, "storm")
    marian(root / "broken-translator")
    overflow.everywhere(root / "broken-translator")
    overflow.translator(root / "translator")
    return root


def encoder(folders, name="bert"):
    return TextEncoder.from_pretrained(folders / name, precision="float32", device="cpu")


def check_message(error, *words):
    message = str(error.value)
    for word in words:
        assert word in message, message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "tokens"])
@pytest.mark.parametrize("normalize", [False, True])
def test_non_finite_vector_is_an_error(folders, pooling, normalize):
    with pytest.raises(NonFiniteError) as error:
        encoder(folders).encode(TEXTS, pooling=pooling, normalize=normalize)
    check_message(error, "text 2: ", "'after the storm'", "NaN or infinity", str(folders / "bert"), "float32")
    assert isinstance(error.value, ValueError)
    finite = [text for text in TEXTS if "storm" not in text]
    good = encoder(folders).encode(finite, pooling=pooling, normalize=normalize)
    assert all(np.isfinite(vector).all() for vector in good)


def test_overflowing_norm_raises(folders):
    plain = encoder(folders, "long").encode(TEXTS, normalize=False)
    assert np.isfinite(plain).all()
    with pytest.raises(NonFiniteError):
        encoder(folders, "long").encode(TEXTS, normalize=True)


def test_encode_tokens_and_stream(folders):
    model = encoder(folders)
    with pytest.raises(NonFiniteError) as error:
        model.encode_tokens(model.tokenize(TEXTS))
    check_message(error, "text 2: ", "after the storm")
    with pytest.raises(NonFiniteError) as error:
        list(model.stream(["hello"] * 10 + TEXTS, EncodeOptions(), window=3))
    check_message(error, "text 12: ", "'after the storm'")


def test_message_shortens_text_and_suggests_float32(folders):
    model = TextEncoder.from_pretrained(folders / "bert", precision="bfloat16", device="cpu")
    with pytest.raises(NonFiniteError) as error:
        model.encode(["the storm\n" * 1000])
    message = check_message(error, "bfloat16", "--precision float32")
    assert len(message) < 400 + len(str(folders))


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("name", ["translator", "broken-translator"])
def test_non_finite_output_is_an_error(folders, beam_size, do_sample, name):
    model = TextToText.from_pretrained(folders / name, precision="float32", device="cpu")
    options = {"max_new_tokens": 5} | ({"do_sample": True} if do_sample else {"beam_size": beam_size})
    texts = ["", "hello", "the storm"] if name == "translator" else ["", "the storm"]
    with pytest.raises(NonFiniteError) as error:
        model.generate(texts, **options)
    check_message(error, f"text {len(texts) - 1}: ", "'the storm'", str(folders / name))
    with pytest.raises(NonFiniteError):
        list(model.stream("the storm", max_new_tokens=5))
    with pytest.raises(NonFiniteError) as error:
        list(model.generate_iter(["hello"] * 3 * (name == "translator") + ["the storm"], window=2, **options))
    check_message(error, "text 3: " if name == "translator" else "text 0: ")
    if name == "translator":
        assert model.generate(["hello"], **options)


def test_labels(folders):
    model = TextClassifier.from_pretrained(folders / "classifier", precision="float32", device="cpu")
    with pytest.raises(NonFiniteError) as error:
        model.classify(TEXTS)
    check_message(error, "text 2: ", "'after the storm'", str(folders / "classifier"))
    with pytest.raises(NonFiniteError) as error:
        list(model.stream(TEXTS))
    check_message(error, "text 2: ")


def test_answers(folders):
    model = QuestionAnswerer.from_pretrained(folders / "reader", device="cpu")
    pairs = [("hello", "the old bridge " * 30), ("is this a test", "after the storm")]
    with pytest.raises(NonFiniteError) as error:
        model.answers(pairs, max_length=12, stride=2)
    check_message(error, "text 1: ", "'is this a test'", str(folders / "reader"))
    assert model.answers(pairs[:1], max_length=12, stride=2)


def test_error_is_picklable_and_finite_array_passes():
    error = NonFiniteError("vector", 3, text="a", location="b", model="c", precision="bfloat16")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.index == 3
    check_finite(np.zeros((2, 3)), "vector", [0, 1])
    with pytest.raises(NonFiniteError):
        check_finite(np.array([[0.0], [-np.inf]]), "vector", [0, 1])


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n\nworld\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "hello"}\n\n{"text": "after the storm"}\n', encoding="utf-8")
    (tmp_path / "c.txt").write_text("hello\nafter the storm\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("output", ["v.npy", "v.jsonl", "v.parquet", None])
def test_encode_names_file_and_line(folders, lines, output):
    destination = [] if output is None else ["--output", lines / output]
    model = ["--model", folders / "bert", "--precision", "float32"]
    line = refused("encode", lines / "a.txt", lines / "b.jsonl", *model, *destination)
    assert f"{lines / 'b.jsonl'}, line 3: " in line
    assert "'after the storm'" in line
    assert str(folders / "bert") in line
    assert not output or not (lines / output).exists()
    line = refused("encode", *model, *destination, stdin=b"hello\nafter the storm\n")
    assert "standard input, line 2: " in line


@pytest.mark.slow
def test_resumed_encode_names_line(folders, lines):
    source, output = lines / "long.txt", lines / "v.npy"
    good = "hello\n" * 5000
    source.write_text(good + "after the storm\n" + "hello\n" * 10, encoding="utf-8")
    model = ["--model", folders / "bert", "--precision", "float32"]
    for resume in ([], ["--resume"]):
        status, _, err = clearhead("encode", source, "-o", output, *model, *resume)
        assert status == 1
        assert f"{source}, line 5001: " in err


@pytest.mark.slow
def test_translate_summarize_classify_and_answer_name_file_and_line(folders, lines):
    translator = ["--model", folders / "translator", "--precision", "float32", "--max-new-tokens", 3]
    assert f"{lines / 'c.txt'}, line 2: " in refused("translate", lines / "c.txt", *translator)
    assert f"{lines / 'b.jsonl'}, line 3: " in refused("translate", lines / "b.jsonl", *translator, "--json")
    line = refused("summarize", *translator, lines / "c.txt", stdin=b"")
    assert f"{lines / 'c.txt'}: " in line
    line = refused("classify", "--model", folders / "classifier", lines / "a.txt", lines / "b.jsonl")
    assert f"{lines / 'b.jsonl'}, line 3: " in line
    reader = ["--model", folders / "reader", "--question", "hello", "--context"]
    assert f"{lines / 'c.txt'}: " in refused("answer", *reader, lines / "c.txt")


@pytest.mark.slow
def test_evaluate_names_file_and_line(folders, lines):
    pairs = lines / "pairs.csv"
    rows = "hello,world,1\n\nthe bridge,after the storm,2\nhello,test,3\n"
    pairs.write_text(rows)
    assert f"{pairs}, line 3: " in refused("evaluate", "similarity", pairs, "--model", folders / "bert")
    pairs.write_text(f"first,second,score\n{rows}")
    assert f"{pairs}, line 4: " in clearhead("evaluate", "similarity", pairs, "--model", folders / "bert")[2]
    labels = lines / "labels.tsv"
    labels.write_text("hello\tLABEL_0\nafter the storm\tLABEL_1\n")
    assert f"{labels}, line 2: " in refused("evaluate", "classification", labels, "--model", folders / "classifier")
    beside = ["--reference", lines / "c.txt", "--model", folders / "translator", "--max-new-tokens", 3]
    assert f"{lines / 'c.txt'}, line 2: " in refused("evaluate", "translation", lines / "c.txt", *beside)
    assert f"{lines / 'c.txt'}, line 2: " in refused("evaluate", "summarization", lines / "c.txt", *beside)


def test_evaluate_answers_names_the_question(folders, lines):
    question = {"id": "q7", "question": "is this a test", "answers": [{"text": "storm", "answer_start": 10}]}
    data = {
        "version": "1.1",
        "data": [{"title": "a", "paragraphs": [{"context": "after the storm", "qas": [question]}]}],
    }
    source = lines / "squad.json"
    source.write_text(__import__("json").dumps(data))
    line = refused("evaluate", "answers", source, "--model", folders / "reader")
    assert f"{source}, question q7: " in line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "broken", "translator", "broken-translator"])
def test_view_and_attention_maps_name_text_and_model(folders, tmp_path, name):
    model = ["--model", folders / name]
    for command in (["view", "-o", tmp_path / "v.html"], ["trace", "--attention", "1.0"]):
        line = refused(command[0], "the storm", *model, *command[1:])
        assert f"the model {folders / name} produced NaN or infinity" in line
        assert "'the storm'" in line
        assert "text 0: " in line
        assert not (tmp_path / "v.html").exists()
        if "broken" not in name:
            assert clearhead(command[0], "hello", *model, *command[1:])[0] == 0
            (tmp_path / "v.html").unlink(missing_ok=True)


@pytest.mark.slow
def test_encode_with_ray_names_file_and_line(folders, lines):
    pytest.importorskip("ray")
    shutil.copy(lines / "c.txt", lines / "d.txt")
    model = ["--model", folders / "bert", "--precision", "float32", "--device", "cpu"]
    status, _, err = clearhead(
        "encode", lines / "c.txt", "-o", lines / "out", "--engine", "ray", "--workers", 1, *model
    )
    assert status == 1
    assert f"{lines / 'c.txt'}, line 2: " in err
