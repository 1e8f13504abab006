"""The pipelines give the dictionaries of transformers 4, as recorded, and of transformers 5 where it has the task."""

import json
import shutil

import pytest
import torch
import transformers
from integrations import record_transformers4
from support.models import folders
from support.models.families import make

import clearhead

pytestmark = pytest.mark.slow

LABELS = {"id2label": {0: "good", 1: "bad", 2: "new"}, "label2id": {"good": 0, "bad": 1, "new": 2}}
TEXT, PAIR = "hello world", {"text": "the old bridge", "text_pair": "was closed"}


def approximately(value):
    """Return a nested value whose numbers are compared with a tolerance."""
    if isinstance(value, list):
        return [approximately(item) for item in value]
    if isinstance(value, dict):
        return {key: approximately(item) for key, item in value.items()}
    return pytest.approx(value, rel=1e-3, abs=2e-6) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def results(tmp_path_factory, minilm_folder):
    folder = tmp_path_factory.mktemp("recorded")
    translator = clearhead.TextToText.from_pretrained().name
    record_transformers4.write_models(folder, clearhead.io.hub.resolve_model(translator), minilm_folder)
    return dict(record_transformers4.calls(folder, clearhead.pipeline))


RESULTS = json.loads(record_transformers4.RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("call", RESULTS)
def test_results_equal_the_recorded_ones_of_transformers_4(results, call):
    assert results[call] == approximately(RESULTS[call])
    assert set(results) == set(RESULTS)


@pytest.fixture(scope="module", params=["bert", "distilbert", "modernbert"])
def classifier(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    make(request.param, folder, "ForSequenceClassification", **LABELS)
    return both("text-classification", folder)


def both(task, folder, **options):
    """Return our pipeline and that of transformers."""
    return (
        clearhead.pipeline(task, model=folder, device="cpu", **options),
        transformers.pipeline(task, model=str(folder), device="cpu", **options),
    )


CALLS = [
    (TEXT, {}),
    ([TEXT, "a test!"], {}),
    ([TEXT], {}),
    (TEXT, {"top_k": 1}),
    (TEXT, {"top_k": None}),
    ([TEXT, "a test!"], {"top_k": 2}),
    (PAIR, {}),
    ([PAIR, PAIR], {"top_k": None}),
    ([[["the old bridge", "was closed"]]], {}),
    (TEXT, {"function_to_apply": "sigmoid", "top_k": None}),
    ([TEXT], {"function_to_apply": "none", "batch_size": 4}),
]


@pytest.mark.parametrize(("inputs", "options"), CALLS, ids=str)
def test_classes_equal_those_of_transformers(classifier, inputs, options):
    ours, theirs = classifier
    assert ours(inputs, **options) == approximately(theirs(inputs, **options))


@pytest.mark.parametrize(
    ("problem", "labels"),
    [("regression", 1), ("regression", 3), ("multi_label_classification", 3), (None, 1)],
)
def test_problem_type_decides_the_scores(tmp_path, problem, labels):
    make("bert", tmp_path, "ForSequenceClassification", problem_type=problem, num_labels=labels)
    ours, theirs = both("sentiment-analysis", tmp_path, top_k=None)
    assert ours([TEXT, "a test!"]) == approximately(theirs([TEXT, "a test!"]))
    assert ours(TEXT) == approximately(theirs(TEXT))


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_features_equal_those_of_transformers(tmp_path, family):
    make(family, tmp_path)
    ours, theirs = both("feature-extraction", tmp_path)
    for inputs in (TEXT, [TEXT, "a test!"]):
        assert ours(inputs) == approximately(theirs(inputs))
    torch.testing.assert_close(ours(TEXT, return_tensors=True), theirs(TEXT, return_tensors=True), rtol=1e-4, atol=1e-5)


def test_truncation_has_no_effect(classifier, caplog):
    """A text that is too long is truncated, with a warning; transformers fails without `truncation=True`."""
    ours, _ = classifier
    results = []
    for options in ({}, {"truncation": False}, {"truncation": True}):
        caplog.clear()
        results.append(ours("hello " * 600, **options))
        assert "1 of 1 texts were truncated" in caplog.text
    assert results[0] == results[1] == results[2]


def test_options_without_effect(tmp_path):
    """Batches are formed by tokens, and there is one framework and one kind of tokenizer."""
    make("bert", tmp_path, "ForSequenceClassification", **LABELS)
    plain = clearhead.pipeline("text-classification", model=tmp_path, device="cpu")
    ignored = {"framework": "tf", "use_fast": False, "token": "a"}
    ours = clearhead.pipeline("text-classification", model=tmp_path, device="cpu", **ignored)
    texts = [TEXT, "a test!", "a"]
    for options in ({}, {"batch_size": 1}, {"batch_size": 64}, {"num_workers": 9}, {"padding": "max_length"}):
        assert ours(texts, **options) == plain(texts), options
    translate = clearhead.pipeline("translation", model=clearhead.TextToText.from_pretrained().name, device="cpu")
    for options in (
        *({"clean_up_tokenization_spaces": True}, {"batch_size": 1}, {"num_workers": 9}),
        *({"padding": "max_length"}, {"truncation": True}),
    ):
        assert translate([TEXT, "a ."], **options) == translate([TEXT, "a ."]), options


def test_options_without_effect_on_features_and_answers(tmp_path):
    make("bert", tmp_path, "ForQuestionAnswering")
    features, read = (
        clearhead.pipeline(task, model=tmp_path, device="cpu") for task in ("feature-extraction", "question-answering")
    )
    asked = {"question": "a test?", "context": TEXT}
    for options in ({"batch_size": 1}, {"num_workers": 9}, {"padding": "max_length"}, {"truncation": True}):
        assert features([TEXT, "a"], **options) == features([TEXT, "a"]), options
        assert read(**asked, **options) == read(**asked), options


def test_spans_without_probability_are_left_out(tmp_path):
    """With weights this large all probability is on a few spans; transformers adds others to reach `top_k`."""
    model = make("bert", tmp_path, "ForQuestionAnswering")
    with torch.no_grad():
        model.qa_outputs.weight *= 1e4
    model.save_pretrained(tmp_path)
    read = clearhead.pipeline("question-answering", model=tmp_path, device="cpu")
    answers = read(question="hello?", context="the old bridge was closed by the mayor", top_k=20)
    answers = answers if isinstance(answers, list) else [answers]
    assert 1 <= len(answers) < 20
    assert all(answer["score"] > 0 for answer in answers)


def test_generators_are_answered_one_by_one(classifier):
    ours, _ = classifier
    results = ours(text for text in [TEXT] * 70)
    assert next(results) == approximately(ours([TEXT])[0])
    assert len(list(results)) == 69


def test_languages_of_a_multilingual_model(tmp_path):
    folders.plain("nllb", tmp_path)
    texts, codes = ["The old bridge"], {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    translate = clearhead.pipeline("translation", model=tmp_path, max_length=12, num_beams=2, **codes)
    expected = translate.model.generate(
        texts, source_lang="eng_Latn", target_lang="deu_Latn", num_beams=2, max_length=12
    )
    assert translate(texts) == [{"translation_text": expected[0]}]
    assert translate(texts, tgt_lang="fra_Latn") != translate(texts)


def test_length_of_a_call_replaces_the_default():
    translate = clearhead.pipeline("translation", model="tatoeba-en-de")
    assert translate("Where can I buy a ticket?", max_length=4)[0]["translation_text"] == "Wo kann ich"


def test_model_that_samples(tmp_path):
    """It samples one sequence; do_sample=False searches with the beams of the pipeline."""
    shutil.copytree(clearhead.io.hub.resolve_model("tatoeba-en-de"), tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    data = json.loads(path.read_text())
    text = "Where can I buy a ticket?"
    searched = clearhead.pipeline("translation", model=tmp_path / "model")(text)
    path.write_text(json.dumps(data | {"do_sample": True, "num_beams": 1, "temperature": 3.0}))
    translate = clearhead.pipeline("translation", model=tmp_path / "model")
    expected = clearhead.TextToText.from_pretrained(tmp_path / "model", precision="float32").generate(text, seed=3)
    assert translate(text, seed=3) == [{"translation_text": expected}] != searched
    assert len({one["translation_text"] for one in translate(text, num_return_sequences=8)}) > 1
    assert translate(text, do_sample=False) == translate(text, num_beams=4) == searched
    path.write_text(json.dumps(data | {"do_sample": True, "num_beams": 4}))
    with pytest.raises(ValueError, match="generation_config.json: sampling draws one token at a time and requires"):
        clearhead.pipeline("translation", model=tmp_path / "model")


REFUSED = [
    ("clearhead.pipeline('ner', model='x')", ValueError, "task must be one of text-classification, question-answering"),
    ("clearhead.pipeline('translation', model='x', tokenizer='y')", ValueError, "Leave tokenizer out"),
    ("clearhead.pipeline('translation', model='x', trust_remote_code=True)", TypeError, "The model's folder decides"),
    ("clearhead.pipeline('translation', model='tatoeba-en-de', top=3)", TypeError, "no option 'top'; did you mean 'top_p'"),
    ("translate('x', return_tensors=True)", TypeError, "The result holds texts and numbers only"),
    ("translate('x', stop_sequence='.')", TypeError, "Cut the text of the result"),
    ("translate('x', generation_config=None)", TypeError, "Pass its options as keywords"),
    ("translate('x', num_beam_groups=2)", TypeError, "num_beam_groups"),
    ("features('x', tokenize_kwargs={'max_length': 4})", TypeError, "truncated at the maximum length of the model"),
    ("translate(7)", ValueError, "expected a text or a list of texts, got int"),
    ("translate(['x', 7])", ValueError, "text 1 is a int; expected a string"),
    ("classify({'txt': 'x'})", ValueError, "input 0 has the keys txt; expected text and text_pair"),
    ("classify([['a', 'b']])", ValueError, "input 0 is a list; expected a text"),
    ("classify('a', top_k=0)", ValueError, "top_k must be at least 1, or None for all labels; got 0"),
    ("classify('a', function_to_apply='soft')", ValueError, "did you mean 'softmax'?"),
    ("read()", ValueError, "expected a question and a context"),
    ("read(question='a', context=' ')", ValueError, "the context of input 0 is blank; expected words"),
    ("read(question=['a', 'b'], context=['c'])", ValueError, "got 2 questions and 1 contexts"),
    ("read({'question': 'a'})", ValueError, 'expected {"question": ..., "context": ...}'),
    ("read(question='a ' * 30, context='b ' * 30)", ValueError, "Shorten the question"),
    ("read(question='a', context='b', top_k=0)", ValueError, "top_k must be at least 1; got 0"),
]  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory, qa_folder):
    folder = tmp_path_factory.mktemp("names")
    make("bert", folder, "ForSequenceClassification", **LABELS)
    return {
        "clearhead": clearhead,
        "translate": clearhead.pipeline("translation", model="tatoeba-en-de"),
        "features": clearhead.pipeline("feature-extraction", model=folder),
        "classify": clearhead.pipeline("text-classification", model=folder),
        "read": clearhead.pipeline("question-answering", model=qa_folder),
    }


@pytest.mark.parametrize(("expression", "kind", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_wrong_calls_are_refused_in_one_line(names, expression, kind, message):
    with pytest.raises(kind) as refusal:
        eval(expression, names)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
