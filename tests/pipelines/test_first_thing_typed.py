"""What people type first in Python: each row is an expression with its result, or with the error and its fix."""

import inspect
import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.models.families import make

import clearhead
from clearhead import GenerationConfig, QuestionAnswerer, TextClassifier, TextEncoder, TextToText


class Column:
    """A column of a data frame, which is iterable."""

    def __init__(self, *texts):
        self.texts = texts

    def __iter__(self):
        return iter(self.texts)


class DataFrame(Column):
    """Iterating over a data frame gives the names of its columns."""

    columns = ("text",)


@pytest.fixture(scope="module")
def encoder():
    return TextEncoder.from_pretrained(precision="float32", device="cpu")


@pytest.fixture(scope="module")
def translator():
    return TextToText.from_pretrained(precision="float32", device="cpu")


@pytest.fixture(scope="module")
def names(encoder, translator):
    return {"encoder": encoder, "translator": translator, "np": np, "torch": torch, "Column": Column}


WORKS = [
    ('encoder.encode("Hello").shape', (384,)),
    ('encoder.encode(["Hello"]).shape', (1, 384)),
    ('encoder.encode([]).shape', (0, 384)),
    ('encoder.encode(("Hello", "Hi")).shape', (2, 384)),
    ('encoder.encode(np.array(["Hello", "Hi"])).shape', (2, 384)),
    ('encoder.encode(text for text in ["Hello", "Hi"]).shape', (2, 384)),
    ('encoder.encode(Column("Hello", "Hi")).shape', (2, 384)),
    ('encoder.encode({"a": "Hello"}.values()).shape', (1, 384)),
    ('encoder.encode("Hello", pooling="tokens").shape', (3, 384)),
    ('[rows.shape for rows in encoder.encode(["Hello"], pooling="tokens")]', [(3, 384)]),
    ('type(encoder.encode("Hello", convert_to_tensor=True)).__name__', "Tensor"),
    ('encoder.encode(["Hello"], batch_size=32, show_progress_bar=False, convert_to_numpy=True).shape', (1, 384)),
    ('bool((encoder.encode("Hello", batch_size=1) == encoder.encode("Hello")).all())', True),
    ('round(float(np.linalg.norm(encoder.encode("Hi", normalize_embeddings=True))), 5)', 1.0),
    ('encoder.encode(["Hello", "Hi"], precision="binary").shape', (2, 48)),
    ('str(encoder.encode("Hello", precision="ubinary").dtype)', "uint8"),
    ('str(encoder.encode(["Hello", "Hi"], precision="int8", convert_to_tensor=True).dtype)', "torch.int8"),
    ('[type(row).__name__ for row in encoder.encode(["Hello"], convert_to_numpy=False)]', ["Tensor"]),
    ('encoder.encode("Hello", convert_to_numpy=False).shape', (384,)),
    ('encoder.encode([], precision="int8").shape', (0, 384)),
    ('encoder.similarity("A cat sleeps.", ["A cat is asleep.", "It rains."]).argmax()', 0),
    ('encoder.similarity(encoder.encode(["a", "b"]), encoder.encode(["a", "b", "c"])).shape', (2, 3)),
    ('encoder.similarity(torch.ones(2, 4), 2 * torch.ones(4)).tolist()', [1.0, 1.0]),
    ('encoder.similarity(torch.ones(2, 4), torch.ones(3, 4)).topk(2).indices.shape', (2, 2)),
    ('encoder.similarity(np.ones(4), [np.ones(4), -np.ones(4)]).tolist()', [1.0, -1.0]),
    ('encoder.similarity([torch.ones(4), torch.ones(4)], list(np.ones((3, 4)))).shape', (2, 3)),
    ('encoder.similarity(*encoder.encode(["a", "b"], convert_to_tensor=True)).shape', ()),
    ('translator.generate("Good morning!")', "Guten Morgen!"),
    ('translator.generate(["Good morning!"])', ["Guten Morgen!"]),
    ('translator.generate([])', []),
    ('translator.generate(text for text in ["Good morning!", ""])', ["Guten Morgen!", ""]),
    ('translator.generate("Good morning!", num_beams=2, max_new_tokens=20)', "Guten Morgen!"),
    ('translator.generate("Good morning!", return_details=True).text', "Guten Morgen!"),
    ('translator.generate("Good morning!", prefixes="Schönen")', "Schönen Morgen!"),
    ("repr(encoder)", "TextEncoder('all-MiniLM-L6-v2', 22.7M parameters, float32, cpu)"),
    ("repr(translator)", "TextToText('tatoeba-en-de', 8.9M parameters, float32, cpu)"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "expected"), WORKS, ids=[row[0] for row in WORKS])
def test_first_thing_typed_works(expression, expected, names):
    assert eval(expression, names) == expected


WRONG_TEXTS = [
    ("None", "expected a text or a list of texts, got None"),
    ("7", "expected a text or a list of texts, got int"),
    ("numpy.array('Hello')", "expected a text or a list of texts, got ndarray"),
    ("pathlib.Path('a.txt')", "expected a text or a list of texts, got a path. Read the file: path.read_text()"),
    ("b'Hello'", 'expected texts, got bytes. Decode them: data.decode("utf-8")'),
    ("{'a': 'Hello'}", "expected texts, got a dict. Pass its values: list(texts.values())"),
    ("{'Hello'}", "expected texts in an order, got a set. Pass a list"),
    ("[b'Hello']", 'text 0 is a bytes; expected a string. Decode it: data.decode("utf-8")'),
    ("[['Hello', 'Hi']]", "text 0 is a list; expected a string"),
    ("['Hello', None]", "text 1 is a NoneType; expected a string. Missing values: drop them, or replace them"),
    ("['Hello', float('nan')]", "text 1 is a float; expected a string. Missing values: drop them, or replace them"),
]
SCRIPT = """
import numpy, pathlib
from clearhead import TextEncoder, TextToText
for call in (TextEncoder.from_pretrained().encode, TextToText.from_pretrained().generate):
    for texts in ({}):
        try:
            call(texts)
        except ValueError as error:
            print(error)
"""


@pytest.mark.slow
def test_wrong_texts_are_refused_with_the_fix():
    # in another process, because the type checks of the tests would refuse some of them first
    script = SCRIPT.format(", ".join(texts for texts, _ in WRONG_TEXTS))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(WRONG_TEXTS)
    for line, (_, message) in zip(lines, 2 * WRONG_TEXTS, strict=True):
        assert line.startswith(message)


def test_data_frame_is_refused(names):
    for call in ("encoder.encode", "translator.generate"):
        with pytest.raises(ValueError, match=r'got a DataFrame. Pass one column, such as table\["text"\]'):
            eval(call, names)(DataFrame("text"))


REFUSED = [
    ('encoder.encode("x", output_value="token_embeddings")', TypeError, 'Use pooling="tokens"'),
    ('encoder.encode("x", device="cuda")', TypeError, "Choose the device when the model is loaded"),
    ('encoder.encode("x", normalise=True)', TypeError, "did you mean 'normalize'?"),
    ('translator.generate("Hi", num_return_sequences=3)', ValueError, "need return_details=True"),
    ('translator.generate("Hi", n_best=3)', TypeError, "Use num_return_sequences with return_details=True"),
    ('type(encoder).from_pretrained(device="gpu")', ValueError, "'gpu' cannot be used: expected auto, cpu, cuda"),
    ('list(translator.generate_iter("Hi"))', ValueError, "got a single string. Put it in a list"),
    ('next(encoder.stream("Hi"))', ValueError, "got a single string. Put it in a list"),
    ('next(encoder.stream({"a": "Hi"}))', ValueError, "Pass its values"),
    ('encoder.encode("x", normalize=False, normalize_embeddings=True)', ValueError, "normalize=False contradicts"),
    ('translator.generate("x", show_progress_bar=True)', TypeError, "use `clearhead translate --output`"),
    ('encoder.encode("x", batch_size=0)', ValueError, "batch_size must be at least 1; got 0"),
    ('encoder.encode("x", precision="bfloat16")', ValueError, "TextEncoder.from_pretrained(..., precision=...)"),
    ('encoder.encode("x", precision="int8")', ValueError, "cannot be computed from a single vector"),
    ('encoder.encode("x", precision="int8", pooling="tokens")', ValueError, "gives vectors in float32"),
    ('encoder.encode("x", prompt_name="query")', ValueError, "the model has no prompts; got prompt_name='query'"),
    ('encoder.similarity_pairwise(np.ones((2, 4)), np.ones((3, 4)))', ValueError, "as many vectors in both arguments"),
    ('encoder.encode(iter(["Hello", np.ones(3)]))', ValueError, "text 1 is a ndarray; expected a string"),
    ('encoder.similarity(np.ones((2, 3)), np.ones((2, 4)))', ValueError, "width 3 cannot be compared with those of 4"),
    ('translator.generate("x", num_beams=2, beam_size=3)', ValueError, "beam_size=3 contradicts num_beams=2"),
    ('translator.generate("x", num_beam_groups=2)', TypeError, "Diverse beam search is not supported"),
    ('translator.generate("x", src_lang="en")', TypeError, "Use source_lang"),
    ('translator.generate("x", batch_size=8)', TypeError, "Batches are formed by tokens"),
    ('translator.generate("x", temprature=2)', TypeError, "did you mean 'temperature'?"),
    ('translator.generate(["x"], prefixes=["a", "b"])', ValueError, "got 1 texts and 2 prefixes"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "kind", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_unknown_keyword_is_refused_with_our_word(expression, kind, message, names):
    with pytest.raises(kind) as refusal:
        eval(expression, names)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_column_of_pandas_is_encoded_and_its_missing_values_are_named(encoder):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["Hello", "Hi", None]})
    assert encoder.encode(frame["text"].dropna()).shape == (2, 384)
    for wrong, message in ((frame["text"], "text 2 is a"), (frame, "Pass one column")):
        with pytest.raises(ValueError, match=message):
            encoder.encode(wrong)


def test_truncation_is_one_warning_per_call(encoder, translator, tmp_path, caplog):
    labels = {"id2label": {0: "good", 1: "bad"}, "label2id": {"good": 0, "bad": 1}}
    make("bert", tmp_path, "ForSequenceClassification", **labels)
    classifier = TextClassifier.from_pretrained(tmp_path)
    long = "hello " * 600
    with caplog.at_level(logging.WARNING):
        encoder.encode([long, "short", *[long] * 7], max_length=9)
        translator.generate([long, "short", ""], beam_size=1, max_new_tokens=1)
        results = classifier.classify([long, "hello"])
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "8 of 9 texts were truncated to 9 tokens (text 0, 2, 3, 4, 5 and 3 more). Split them, or set max_length "
        "(up to 512)",
        "1 of 3 texts were truncated to 512 tokens (text 0). Split them, or set strict=True to raise an error",
        f"1 of 2 texts were truncated to {classifier.max_length} tokens (text 0). Split them",
    ]
    assert [result.truncated for result in results] == [True, False]
    assert classifier.classify("hello") == results[1]
    assert repr(classifier).startswith(f"TextClassifier('{tmp_path}', 0.0M parameters, ")


def test_help_shows_every_option(translator):
    from clearhead.generation.config import GenerationOptions
    from clearhead.pipelines import summarizer

    assert {"normalize_embeddings", "batch_size"} <= inspect.signature(TextEncoder.encode).parameters.keys()
    public = [getattr(clearhead, name) for name in clearhead.__all__]
    own = [item for kind in public if inspect.isclass(kind) for item in vars(kind).items()]
    methods = [method for name, method in own if name != "__replace__"]  # of dataclasses, since Python 3.13
    for function in filter(inspect.isfunction, (*public, *methods)):
        assert not any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values()), function
    for function in (translator.generate, translator.stream, translator.generate_iter, summarizer.summarize):
        parameters = inspect.signature(function).parameters
        assert GenerationOptions.__annotations__.keys() <= parameters.keys()
        assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    options = set(GenerationOptions.__annotations__) - {"num_beams"}
    assert options <= inspect.signature(GenerationConfig).parameters.keys()


def test_span_reader_has_a_description(tmp_path):
    make("bert", tmp_path, "ForQuestionAnswering")
    reader = QuestionAnswerer.from_pretrained(tmp_path)
    assert repr(reader).startswith(f"QuestionAnswerer('{tmp_path}', ")
