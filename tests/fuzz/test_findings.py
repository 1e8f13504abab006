"""What the fuzzers found: wrong types, damaged files and messages that did not name the file."""

import json
import shutil
import struct

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.data.training import write_tiny
from support.models import families, folders
from support.models.tiny import make_bert

from clearhead import MultiVectorEncoder, QuestionAnswerer, TextClassifier, TextEncoder, TextToText
from clearhead.data.corpus import Corpus
from clearhead.data.records import Records
from clearhead.io.json import read_json
from clearhead.pipelines.auto import load_pipeline
from clearhead.train.loop.metrics_logger import read_metrics
from clearhead.train.recipe.load import read_recipe
from clearhead.train.trainer import train
from fuzz.outcomes import Case, judge


def refused(function, *words):
    """Check that a call raises a ValueError of one line with some words."""
    with pytest.raises(ValueError) as error:  # noqa: PT011
        function()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 1000
    for word in words:
        assert str(word) in message, message


def change(path, *keys, **values):
    """Set values in a JSON file, below some keys."""
    data = inner = json.loads(path.read_text())
    for key in keys:
        inner = inner[key]
    inner.update(values)
    path.write_text(json.dumps(data))


def change_tensors(path, function):
    tensors = load_file(path)
    function(tensors)
    save_file(tensors, path)


@pytest.fixture
def bert(tiny_bert, tmp_path):
    return shutil.copytree(tiny_bert, tmp_path / "model")


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    folders.plain("t5", folder)
    return folder


@pytest.fixture(scope="module")
def mbart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mbart")
    folders.plain("mbart", folder)
    return folder


def opened(folder):
    return lambda: load_pipeline(folder)


@pytest.mark.parametrize("value", [[], {}, [[1]]])
def test_wrong_types_in_config_json(t5, tmp_path, value):
    families.make("gte", tmp_path)
    change(tmp_path / "config.json", rope_parameters={"rope_type": value or [0]})
    refused(opened(tmp_path), "config.json", "rope_type=")
    folder = shutil.copytree(t5, tmp_path / "t5")
    for key in ("feed_forward_proj", "num_decoder_layers"):
        before = (folder / "config.json").read_text()
        change(folder / "config.json", **{key: value})
        refused(opened(folder), "config.json")
        (folder / "config.json").write_text(before)


def test_vocabulary_of_any_size(mbart, tmp_path):
    folder = shutil.copytree(mbart, tmp_path / "model")
    change(folder / "config.json", vocab_size=2**63 - 1)
    refused(opened(folder), folder)


def test_pieces_that_are_not_utf8(mbart, tmp_path):
    folder = shutil.copytree(mbart, tmp_path / "copy")
    path = folder / "sentencepiece.bpe.model"
    data = path.read_bytes()
    place = data.index("▁".encode())
    path.write_bytes(data[:place] + b"\xff" + data[place + 1 :])
    refused(opened(folder), path, "damaged")


def test_wrong_source_language(mbart, tmp_path):
    folder = shutil.copytree(mbart, tmp_path / "model")
    change(folder / "tokenizer_config.json", src_lang=["en_XX"])
    load_pipeline(folder)  # as a language that the model does not have


@pytest.mark.parametrize("tensor", [torch.zeros(()), torch.zeros(0, 32), torch.zeros(3)])
def test_heads_without_rows(tmp_path, tensor):
    families.make("bert", tmp_path, "ForQuestionAnswering")
    change_tensors(tmp_path / "model.safetensors", lambda tensors: tensors.update({"qa_outputs.weight": tensor}))
    refused(lambda: QuestionAnswerer.from_pretrained(tmp_path), "model.safetensors", "qa_outputs.weight")


def test_names_of_tensors_are_printable(bert):
    change_tensors(bert / "model.safetensors", lambda tensors: tensors.update({"a\nb": torch.zeros(1)}))
    refused(opened(bert), "model.safetensors", r"'a\nb'")


def test_messages_do_not_repeat_a_long_header(bert):
    header = json.dumps({"x" * 5000: {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}).encode()
    (bert / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    refused(opened(bert), "model.safetensors", "not a safetensors file")


def test_half_surrogates_in_json(bert, tmp_path):
    change(bert / "tokenizer_config.json", cls_token="\ud800")
    refused(opened(bert), "tokenizer_config.json", "surrogate")
    (tmp_path / "a.json").write_text(json.dumps({"bridge": "🌉"}))
    assert read_json(tmp_path / "a.json") == {"bridge": "🌉"}


def test_models_without_room_for_a_text(bert, tmp_path):
    change(bert / "tokenizer_config.json", model_max_length=2)
    refused(lambda: TextEncoder.from_pretrained(bert), bert, "2 tokens", "model_max_length")
    families.make("bert", tmp_path, "ForSequenceClassification")
    change(tmp_path / "tokenizer_config.json", model_max_length=1)
    refused(lambda: TextClassifier.from_pretrained(tmp_path), tmp_path, "1 tokens")


def test_translators_without_room_for_a_text(tmp_path):
    folders.marian(tmp_path)
    change(tmp_path / "tokenizer_config.json", model_max_length=1)
    refused(lambda: TextToText.from_pretrained(tmp_path), tmp_path, "1 tokens", "model_max_length")


def test_positions_beyond_64_bits(tmp_path):
    families.make("xlm-roberta", tmp_path)
    change(tmp_path / "config.json", max_position_embeddings=2**63)
    refused(lambda: TextEncoder.from_pretrained(tmp_path), "the sizes of the model are too large")


@pytest.mark.parametrize("key", ["is_decoder", "unheard_of"])
def test_messages_do_not_repeat_a_long_value(bert, key):
    change(bert / "config.json", **{key: [1] * 5000})
    refused(lambda: TextEncoder.from_pretrained(bert), bert / "config.json", key)


def test_projection_of_integers(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    make_bert(tmp_path)
    sentence_transformers.MultiVectorEncoder(str(tmp_path), device="cpu").save_pretrained(str(tmp_path / "late"))
    path = tmp_path / "late" / "1_Dense" / "model.safetensors"
    change_tensors(path, lambda tensors: tensors.update({name: tensors[name].to(torch.int8) for name in tensors}))
    refused(lambda: MultiVectorEncoder.from_pretrained(tmp_path / "late"), path, "int8")


@pytest.fixture(scope="module")
def arrow(tmp_path_factory):
    """Return an Arrow file and the position of the offsets of its texts."""
    path = tmp_path_factory.mktemp("arrow") / "a.arrow"
    table = pa.table({"text": ["one", "two", "three"], "kept": [["a"], ["b"], []]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    offsets = struct.pack("<4i", 0, 3, 6, 11)
    assert path.read_bytes().count(offsets) == 1
    return path, path.read_bytes().index(offsets)


@pytest.mark.parametrize("offsets", [(0, 3, -6, 11), (0, 3, 2**30, 11), (0, 3, 6, 2**31 - 1), (-(2**31), 3, 6, 11)])
def test_arrow_with_offsets_outside_its_buffers(arrow, tmp_path, offsets):
    path, start = arrow
    data = path.read_bytes()
    damaged = tmp_path / "a.arrow"
    damaged.write_bytes(data[:start] + struct.pack("<4i", *offsets) + data[start + 16 :])
    refused(lambda: list(Corpus([damaged], keep=["kept"])), damaged, "damaged after row 0")
    assert list(Corpus([path], keep=["kept"])) == ["one", "two", "three"]


def test_parquet_and_arrow_errors_have_one_line_and_the_file(arrow, tmp_path):
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"text": ["one"] * 500}), path)
    data = path.read_bytes()
    for start in range(4, len(data) - 8, 7):
        path.write_bytes(data[:start] + b"\xff" * 4 + data[start + 4 :])
        if judge(Case("", lambda: list(Corpus([path])), [str(path)]))[0] not in ("works", "refused"):
            raise AssertionError(f"bytes from {start}")
    damaged = tmp_path / "a.arrow"
    data = bytearray(arrow[0].read_bytes())
    data[8:40] = b"\xff" * 32
    damaged.write_bytes(bytes(data))
    refused(lambda: Corpus([damaged]), damaged, "not an Arrow file")


@pytest.mark.parametrize("value", [1.5, "x", {"a": 1}, True])
def test_json_files_of_datasets_with_other_types(arrow, tmp_path, value):
    shutil.copy(arrow[0], tmp_path / "data.arrow")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": value}))
    refused(lambda: Corpus([tmp_path]), "state.json")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a\nb"}]}))
    refused(lambda: Corpus([tmp_path]), "state.json lists the name 'a\\nb'")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    features = {"features": {"text": {"_type": "ClassLabel", "names": value}}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(features))
    assert list(Corpus([tmp_path])) == ["one", "two", "three"]


def test_messages_do_not_repeat_a_long_header_of_a_table(tmp_path):
    (tmp_path / "a.csv").write_text("x" * 100_000 + ",y\n1,2\n")
    refused(lambda: Corpus([tmp_path / "a.csv"], column="text"), "a.csv", "no column 'text'")
    refused(lambda: Corpus([tmp_path / "a.csv"]), "a.csv", "--column")
    refused(lambda: list(Records(tmp_path / "a.csv", fields=["text"], columns={"text": "t"})), "a.csv")


@pytest.mark.parametrize("content", ["a: *b\n", "a: [\n", "a:\n\t- b\n", "task: x\n---\n", "a: `b`\n"])
def test_yaml_errors_have_one_line(tmp_path, content):
    (tmp_path / "recipe.yaml").write_text(content)
    refused(lambda: read_recipe(tmp_path / "recipe.yaml"), "recipe.yaml")


def test_recipes_without_files_or_with_null_characters(tmp_path):
    for value in ("", [], {}, [""], {"source": ""}):
        refused(lambda value=value: read_recipe(write_tiny(tmp_path, data__train=value)), "run.yaml", "data.train")
    path = write_tiny(tmp_path)
    path.write_text(path.read_text().replace(f"output: {tmp_path}/run", 'output: "a\\0b"'))
    refused(lambda: read_recipe(path), "output", "control character")
    for value in ("a\nb", ["a.tsv", "a\nb"], {"source": "a\nb"}):
        refused(lambda value=value: read_recipe(write_tiny(tmp_path, data__train=value)), "control character")
    refused(lambda: read_recipe(write_tiny(tmp_path, training__keep_last="x" * 5000)), "training.keep_last")
    refused(lambda: read_recipe(write_tiny(tmp_path, tokenizer__path="")), "run.yaml", "tokenizer.path is ''")
    refused(lambda: read_recipe(write_tiny(tmp_path, regularize__r_drop=1e300)), "run.yaml", "regularize.r_drop")
    refused(lambda: read_recipe(write_tiny(tmp_path, objective={1: 2})), "run.yaml", "objective has the key 1")


def test_sizes_of_a_search_name_the_file(mbart, tmp_path):
    folder = shutil.copytree(mbart, tmp_path / "model")
    model = TextToText.from_pretrained(folder, precision="float32", device="cpu")
    options = {"source_lang": "en_XX", "target_lang": "de_DE"}
    for beams in (10**400, 5000):
        refused(lambda beams=beams: model.generate(["a"], beam_size=beams, **options), "generation_config.json")


@pytest.mark.parametrize(
    "content", [b"step,loss\n\xff,1\n", b"step,loss\n1,x\n", b"x,loss\n1,2.0\n", b"step,loss\n,2.0\n"]
)
def test_damaged_metrics_are_named(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    refused(lambda: read_metrics(tmp_path / "metrics.csv"), tmp_path / "metrics.csv", "remove it")


@pytest.mark.slow
def test_errors_of_a_training_name_the_file_or_the_key(tmp_path):
    def train_with(**changes):
        train(read_recipe(write_tiny(tmp_path, **changes)))

    refused(lambda: train_with(model__d_model=9), "model: d_model must be divisible by num_heads")
    refused(lambda: train_with(training__device="x"), "training.device: device 'x'")
    refused(lambda: train_with(training__device="cpu:7"), "training.device: expected auto, cpu, cuda or mps")
    refused(lambda: train_with(data__max_length=1), "data.max_length must be greater than 1")
    refused(lambda: train_with(data__encoding="x" * 5000), "data: encoding")
    labels = {"task": "classification", "data__columns": {"x": 1}, "model": {}}
    refused(lambda: train_with(**labels), "data: columns: no field 'x'")
    (tmp_path / "empty.tsv").write_text("source\ttarget\n \t \n")
    refused(lambda: train_with(data__train=str(tmp_path / "empty.tsv")), "tokenizer: no text to learn from")
    train_with(training__steps=1)
    tokenizer = tmp_path / "run" / "data" / "tokenizer"
    with_tokenizer = {"tokenizer__path": str(tokenizer), "output": str(tmp_path / "two")}
    refused(lambda: train_with(data__train=str(tmp_path / "empty.tsv"), **with_tokenizer), "empty.tsv: no examples")
    change(tokenizer / "tokenizer_config.json", pad_token="<x>")
    refused(lambda: train_with(**with_tokenizer), tokenizer, "no pad token")


def test_sinusoids_of_another_dtype_are_compared(tmp_path):
    folders.plain("pegasus", tmp_path)
    name = "model.decoder.embed_positions.weight"
    change_tensors(tmp_path / "model.safetensors", lambda tensors: tensors.update({name: tensors[name].bool()}))
    refused(
        lambda: load_pipeline(tmp_path),
        tmp_path / "model.safetensors",
        "embed_positions.weight does not hold the sinusoids",
    )


def test_module_in_a_folder_with_a_line_end_is_refused_in_one_line(bert):
    TextEncoder.from_pretrained(bert).save_pretrained(bert)
    path = bert / "modules.json"
    data = json.loads(path.read_text())
    data[1]["path"] = "a\nb"
    path.write_text(json.dumps(data))
    refused(lambda: load_pipeline(bert), path, "'a\\nb/config.json'; expected printable characters")
