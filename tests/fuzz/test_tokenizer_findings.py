"""What the fuzzers found in tokenizers: ids and types without an embedding, and templates without the text."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import tokenizers
from support.data.training import write_tiny
from support.models import families, folders
from support.models.tiny import make_bert

from clearhead import TextEncoder
from clearhead.pipelines.auto import load_pipeline
from clearhead.tokenizers.vocabulary_files import load_json
from clearhead.train.recipe.load import read_recipe
from clearhead.train.trainer import train
from fuzz.test_findings import change, opened, refused

NOTHING_LEFT = {"normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": ""}, "added_tokens": []}
"""Parts of a tokenizer that removes all characters."""


@pytest.fixture
def bert(tiny_bert, tmp_path):
    return shutil.copytree(tiny_bert, tmp_path / "model")


@pytest.mark.parametrize(("head", "labels"), [("QuestionAnswering", 2), ("SequenceClassification", 1)])
def test_token_type_without_an_embedding_is_refused_with_the_file(tmp_path, head, labels):
    families.make("bert", tmp_path, f"For{head}", num_hidden_layers=1, num_labels=labels)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    for part in data["post_processor"]["pair"]:
        next(iter(part.values()))["type_id"] = 2
    path.write_text(json.dumps(data))
    refused(lambda: load_pipeline(tmp_path), path, "the type 2", "0 to 1")
    data["post_processor"]["pair"] = []
    path.write_text(json.dumps(data))
    refused(lambda: load_pipeline(tmp_path), path, "the template 'pair' of the post_processor has the texts none")
    data["post_processor"]["pair"] = [{"Sequence": {"id": text, "type_id": 0}} for text in "AB"]
    data |= NOTHING_LEFT
    path.write_text(json.dumps(data))
    path.with_name("tokenizer_config.json").write_text("{}")
    refused(lambda: load_pipeline(tmp_path), path, "gives no tokens for a pair")


def test_number_in_place_of_a_switch_of_wordpiece_is_refused(bert):
    (bert / "tokenizer.json").unlink(missing_ok=True)
    change(bert / "tokenizer_config.json", strip_accents=1)
    refused(lambda: load_pipeline(bert), "strip_accents=1; expected true or false")


def test_tokenizer_without_tokens_for_a_text_is_refused_with_the_file(bert):
    path = bert / "tokenizer.json"
    data = json.loads(path.read_text())
    data["post_processor"]["single"] = []
    path.write_text(json.dumps(data))
    refused(lambda: load_pipeline(bert), path, "the template 'single' of the post_processor has the texts none")
    data["post_processor"]["single"] = [{"Sequence": {"id": "A", "type_id": 0}}]
    data |= NOTHING_LEFT
    path.write_text(json.dumps(data))
    path.with_name("tokenizer_config.json").write_text("{}")
    refused(lambda: load_pipeline(bert), path, "gives no tokens for a text of its own")


def test_blank_as_a_token_without_an_embedding_is_refused_with_the_file(bert):
    path = bert / "tokenizer.json"
    data = json.loads(path.read_text())
    data["added_tokens"][2]["content"] = " "
    path.write_text(json.dumps(data))
    refused(lambda: load_pipeline(bert), path, "token ' ' has the id")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "value", "word"),
    [
        (("model", "vocab", "<0x02>"), 2**31, "ids up to 2,147,483,648"),
        (("post_processor", "special_tokens", "</s>", "ids"), [2**31], "the id 2147483648"),
    ],
)
def test_ids_of_a_recipes_tokenizer_must_have_tokens(tmp_path, keys, value, word):
    recipe = read_recipe(write_tiny(tmp_path))
    with contextlib.suppress(StopIteration):
        train(recipe, on_step=stop)
    path = tmp_path / "run" / "data" / "tokenizer" / "tokenizer.json"
    data = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    assert keys[-1] in inner
    inner[keys[-1]] = value
    path.write_text(json.dumps(data))
    refused(lambda: train(recipe, resume=True), path.parent, word)


def stop(*_):
    raise StopIteration


def test_tokenizer_of_another_script_needs_no_token_for_english(tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"漢": 0, "字": 1}, []))
    folder = shutil.copytree(make_bert(tmp_path / "bert"), tmp_path / "other")
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert TextEncoder.from_pretrained(folder).encode(["漢字"]).any()


@pytest.mark.slow
def test_message_about_a_long_token_is_short(bert):
    (bert / "tokenizer.json").unlink(missing_ok=True)
    with (bert / "vocab.txt").open("a") as file:
        file.write("x" * 10**6)
    refused(lambda: load_pipeline(bert), bert / "vocab.txt", "has the id")


def test_sentencepiece_model_of_2_gb_is_refused(tmp_path):
    folders.marian(tmp_path)
    with (tmp_path / "source.spm").open("r+b") as file:
        file.truncate(2**31)
    refused(lambda: load_pipeline(tmp_path), tmp_path / "source.spm", "too large for a sentencepiece model")


def test_tokenizers_that_would_panic(bert):
    before = (bert / "tokenizer.json").read_text()
    change(bert / "tokenizer.json", "post_processor", special_tokens={})
    refused(opened(bert), "tokenizer.json", "post_processor", "[CLS]")
    (bert / "tokenizer.json").write_text(before)
    change(bert / "tokenizer.json", "model", vocab={"a": 0, "[CLS]": 2, "[SEP]": 3})
    data = json.loads((bert / "tokenizer.json").read_text())
    (bert / "tokenizer.json").write_text(json.dumps(data | {"added_tokens": []}))
    refused(opened(bert), "tokenizer.json", "not a usable tokenizer")


@pytest.mark.parametrize(
    ("merges", "prefix", "word"),
    [
        ([["a", "##b"]], "##", None),
        ([["a", "##b"]], "a long prefix", "merges '##b', which does not start with the prefix 'a long prefix'"),
        (["a b"], "é", "merges 'b'"),
        ([["a"]], "é", "is not a tokenizer"),
    ],
)
def test_merges_without_the_prefix_would_panic(bert, merges, prefix, word):
    data = json.loads((bert / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"] | {"a": 500, "b": 501, "ab": 502, "##b": 503}
    data["model"] = {"type": "BPE", "vocab": vocab, "merges": merges, "continuing_subword_prefix": prefix}
    (bert / "tokenizer.json").write_text(json.dumps(data))
    if word is None:
        assert load_json(bert / "tokenizer.json").token_to_id("ab") == 502
    else:
        refused(lambda: load_json(bert / "tokenizer.json"), "tokenizer.json", word)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_empty_texts_without_special_tokens(bert, pooling):
    data = json.loads((bert / "tokenizer.json").read_text())
    (bert / "tokenizer.json").write_text(json.dumps(data | {"post_processor": None}))
    encoder = TextEncoder.from_pretrained(bert, precision="float32", device="cpu")
    assert not encoder.encode(["", ""], pooling=pooling).any()
    np.testing.assert_array_equal(
        encoder.encode(["", "hello"], pooling=pooling)[0], encoder.encode("", pooling=pooling)
    )


@pytest.mark.parametrize("longest", [2**32, 2**63 - 1])
def test_words_of_any_length_have_a_token(bert, longest):
    path = bert / "tokenizer.json"
    data = json.loads(path.read_text())
    text = "many words " * 500 + "w" * 5000
    expected = TextEncoder.from_pretrained(bert).encode([text])
    data["model"]["max_input_chars_per_word"] = longest  # more than a regular expression can repeat
    path.write_text(json.dumps(data))
    np.testing.assert_array_equal(TextEncoder.from_pretrained(bert).encode([text]), expected)


def test_merges_of_another_vocabulary(tmp_path):
    folders.bart(tmp_path)
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    with (tmp_path / "merges.txt").open("a") as file:
        file.write("x " + "[" * 100_000 + "\n")
    refused(opened(tmp_path), "merges.txt")
