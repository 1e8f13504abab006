"""Broken model folders: one message names the file or the tensor."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models.tiny import make_bert

from clearhead import TextEncoder
from clearhead.checkpoints import checkpoint_type, load_encoder, load_seq2seq
from clearhead.checkpoints.convert import convert
from clearhead.io import hub


@pytest.fixture
def folder(tiny_bert, tmp_path):
    return shutil.copytree(tiny_bert, tmp_path / "model")


def change_config(folder, **changes):
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(data | changes))


def change_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refused(folder, *words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        TextEncoder.from_pretrained(folder)
    for word in words:
        assert word in str(error.value), str(error.value)
    assert "\n" not in str(error.value)


NAME = "encoder.layer.1.output.dense.weight"


def test_missing_unexpected_and_misshapen_tensors(folder):
    change_weights(folder, lambda tensors: tensors.pop(NAME))
    refused(folder, NAME, "missing", "model.safetensors")
    change_weights(folder, lambda tensors: tensors.update({NAME: torch.zeros(32, 48), "extra.weight": torch.zeros(1)}))
    refused(folder, "extra.weight", "unexpected")
    change_weights(folder, lambda tensors: (tensors.pop("extra.weight"), tensors.update({NAME: torch.zeros(48, 32)})))
    refused(folder, NAME, "(48, 32)", "(32, 48)")
    change_weights(
        folder,
        lambda tensors: tensors.update({NAME: torch.zeros(32, 48), "embeddings.position_ids": torch.zeros(1, 24)}),
    )
    load_encoder(folder)  # buffers of old files, which follow from the config


def test_tensors_of_other_dtypes_and_non_finite_values(folder):
    name = "encoder.layer.0.attention.self.key.bias"
    change_weights(folder, lambda tensors: tensors.update({name: torch.zeros(32, dtype=torch.int64)}))
    refused(folder, name, "torch.int64")
    change_weights(folder, lambda tensors: tensors.update({name: torch.full((32,), float("nan"))}))
    refused(folder, name, "NaN")
    change_weights(folder, lambda tensors: tensors.update({name: torch.zeros(32), f"bert.{name}": torch.zeros(32)}))
    refused(folder, name, "twice")


def test_invalid_values_in_json_files(folder):
    pooling = {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    transformer = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps([transformer, pooling]))
    (folder / "1_Pooling").mkdir()
    for name, content, words in (
        ("1_Pooling/config.json", {"pooling_mode": 5}, "[5]"),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}, None),
        ("sentence_bert_config.json", {"max_seq_length": "12"}, "max_seq_length='12'"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length=0"),
        ("sentence_bert_config.json", {"max_seq_length": 12}, None),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts=['a']"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "default_prompt_name='q'"),
        ("config_sentence_transformers.json", {}, None),
        ("model.safetensors.index.json", {"weight_map": {"a": 3}}, None),
    ):
        (folder / name).write_text(json.dumps(content))
        if words is None:
            TextEncoder.from_pretrained(folder)
        else:
            refused(folder, name, words)
    (folder / "model.safetensors").unlink()
    refused(folder, "no weight_map")
    (folder / "config.json").write_text("[" * 100_000)
    refused(folder, "config.json is not valid JSON")
    (folder / "config.json").write_text('{"model_type": "bert", "model_type": "bert"}')
    refused(folder, "config.json is not valid JSON: the key 'model_type' is repeated")


@pytest.mark.parametrize("kept", ["tokenizer.json", "vocab.txt"])
def test_folder_with_one_tokenizer_file_is_saved_for_other_libraries(folder, tmp_path, kept):
    from sentence_transformers import SentenceTransformer

    expected = TextEncoder.from_pretrained(folder, precision="float32").encode(["a", "b c"])
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        if name != kept:
            (folder / name).unlink(missing_ok=True)
    TextEncoder.from_pretrained(folder, precision="float32").save_pretrained(tmp_path / "saved")
    vectors = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(["a", "b c"])
    assert abs(vectors - expected).max() < 2e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"do_lower_case": "yes"}, "do_lower_case='yes'"),
        ({"unk_token": ["x"]}, r"\['x'\]"),
        ({"unk_token": {"a": 1}}, r"\{'a': 1\}"),
    ],
)
def test_odd_tokenizer_configs(folder, changes, words):
    (folder / "tokenizer.json").unlink()
    data = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(data | changes))
    with pytest.raises(ValueError, match=words):
        TextEncoder.from_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(data))
    (folder / "vocab.txt").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"vocab\.txt is not UTF-8"):
        TextEncoder.from_pretrained(folder)


def test_missing_part_of_a_stacked_tensor(folder):
    name = "encoder.layer.0.attention.self.key.weight"
    change_weights(folder, lambda tensors: tensors.update({name: torch.zeros(31, 32)}))
    refused(folder, name, "(31, 32)", "(32, 32)")


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    refused(folder, "model.safetensors", "is truncated, or not a safetensors file")


def test_corrupt_header(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[20:30] = b"\xff" * 10
    path.write_bytes(bytes(data))
    refused(folder, "model.safetensors", "is truncated, or not a safetensors file")


def test_no_weights_no_config_no_tokenizer(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "no weights", "model.safetensors")
    (folder / "config.json").unlink()
    refused(folder, "no config.json")


def test_no_tokenizer_or_a_broken_one(folder):
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, "tokenizer.json is not a tokenizer")
    (folder / "tokenizer.json").unlink()
    refused(folder, "no tokenizer.json and no vocab.txt")
    (folder / "vocab.txt").write_text("a\nb\n")
    refused(folder, "vocab.txt", "[UNK]")


def test_broken_json(folder):
    (folder / "config.json").write_text('{"model_type": "bert",')
    refused(folder, "config.json is not valid JSON")
    (folder / "config.json").write_text("[]")
    refused(folder, "expected an object")


def test_unknown_architectures_and_keys_that_change_the_result(folder):
    original = (folder / "config.json").read_text()
    for changes, words in (
        ({"model_type": "llama"}, ("'llama'", "bert")),
        ({"position_embedding_type": "relative_key"}, ("relative_key", "absolute")),
        ({"is_decoder": True}, ("is_decoder=True",)),
        ({"hidden_act": "swiglu"}, ("hidden_act='swiglu'", "gelu")),
        ({"mystery_scale": 2.0}, ("mystery_scale=2.0",)),
        ({"vocab_size": 10**8}, ("embeddings.word_embeddings.weight", "100000000")),
        ({"vocab_size": 10**12}, ("embeddings.word_embeddings.weight", "1000000000000")),
        ({"hidden_size": 10**30}, ("hidden_size=1000", "config.json")),
        ({"num_hidden_layers": -(10**30)}, ("num_hidden_layers=-1000", "config.json")),
        ({"max_position_embeddings": 2**63}, ("max_position_embeddings=9223", "config.json")),
        ({"intermediate_size": 2**28 - 1, "hidden_size": 2**28 - 4}, ("model.safetensors",)),
        ({"pad_token_id": 10**30}, ("pad_token_id=1000", "config.json")),
        ({"pad_token_id": 99999}, ("pad_id=99999", "config.json")),
        ({"layer_norm_eps": 10**400}, ("layer_norm_eps=1000", "greater than any float")),
        ({"hidden_dropout_prob": 10**400}, ("hidden_dropout_prob=1000", "config.json")),
        ({"hidden_size": 32.0}, ("hidden_size=32.0", "an integer")),
        ({"hidden_act": ["gelu"]}, ("hidden_act=['gelu']",)),
        ({"model_type": ["bert"]}, ("model_type=['bert']",)),
        ({"layer_norm_eps": float("nan")}, ("eps must be above 0",)),
        ({"type_vocab_size": -1}, ("num_token_types",)),
        ({"num_hidden_layers": 1_000_000}, ("1000000 layers",)),
        ({"scale_attention": False}, ("scale_attention=False",)),
        ({"num_attention_heads": 5}, ("divisible", "config.json")),
        ({"hidden_size": None}, ("lacks hidden_size",)),
        ({"hidden_size": "wide"}, ("hidden_size='wide'", "expected a number")),
        ({"num_hidden_layers": 0}, ("num_layers must be at least 1",)),
    ):
        change_config(folder, **changes)
        refused(folder, *words)
        (folder / "config.json").write_text(original)
    change_config(folder, gradient_checkpointing=True, mystery_that_is_off=None, torch_dtype="float16")
    load_encoder(folder)


def test_error_names_missing_shard(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(weights, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "model-00001-of-00002.safetensors")
    save_file({name: weights[name] for name in list(weights)[1:]}, folder / "model-00001-of-00002.safetensors")
    refused(folder, next(iter(weights)))


def test_pickled_weights_are_refused_and_converted(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    refused(folder, f"clearhead convert {folder}")
    assert convert(folder) == folder / "model.safetensors"
    converted = load_file(folder / "model.safetensors")
    assert converted.keys() == weights.keys()
    assert all(torch.equal(converted[name], weights[name]) for name in weights)
    TextEncoder.from_pretrained(folder)
    with pytest.raises(ValueError, match="exists already"):
        convert(folder)


class Harm:
    def __reduce__(self):
        return (open, ("harm.txt", "w"))


def test_converting_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (pickle.dumps({"a": Harm()}, protocol=2), b"not a pickle", b""):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ValueError, match=r"pytorch_model\.bin .*(code or objects|truncated)"):
            convert(tmp_path)
    assert not (tmp_path / "harm.txt").exists()
    for odd in ({3: torch.zeros(1)}, {"a": torch.zeros(2, 2).to_sparse()}, {"__metadata__": torch.zeros(1)}):
        torch.save(odd, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match="more than named, dense tensors"):
            convert(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="contains no tensors"):
        convert(tmp_path)
    torch.save({"epoch": 3}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="more than named, dense tensors"):
        convert(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_tied_and_sharded_pickles_convert(tmp_path):
    make_bert(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = list(weights)
    tied = weights[names[0]]
    torch.save({names[0]: tied, "cls.predictions.decoder.weight": tied}, tmp_path / "pytorch_model-1.bin")
    torch.save({name: weights[name] for name in names[1:]}, tmp_path / "pytorch_model-2.bin")
    shards = {"cls.predictions.decoder.weight": "pytorch_model-1.bin", names[0]: "pytorch_model-1.bin"}
    shards |= dict.fromkeys(names[1:], "pytorch_model-2.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    convert(tmp_path)
    assert load_encoder(tmp_path)


def test_exported_graphs_are_not_weights(folder):
    (folder / "model.safetensors").rename(folder / "encoder_model.onnx")
    refused(folder, "holds ONNX graphs, not weights", "--runtime onnx")


def test_file_is_not_a_model(tmp_path):
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        hub.resolve_model(tmp_path / "model.bin")


def test_unsupported_sentence_transformers_modules(folder):
    modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    pooling = {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    dense = {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    refused(folder, "modules.json has no pooling")
    (folder / "modules.json").write_text(json.dumps([*modules, pooling, dense]))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    refused(folder, "lasttoken", "mean, cls, max")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": ["mean", "max"]}))
    refused(folder, "['mean', 'max']")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    refused(folder, "models.Dense")
    normalize = {"idx": 2, "path": "", "type": "sentence_transformers.models.Normalize"}
    for order in ([*modules, normalize, pooling], [*modules, pooling, normalize, pooling], [pooling, *modules]):
        (folder / "modules.json").write_text(json.dumps(order))
        refused(folder, "modules.json has the modules", "in this order")
    (folder / "modules.json").write_text("{}")
    refused(folder, "not a JSON array")
    (folder / "modules.json").write_text(json.dumps([*modules, pooling]))
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    refused(folder, "do_lower_case")


def change_json(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_architectures_that_are_not_a_list(tmp_path):
    for value in (5, "BertModel", {}, None):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": value}))
        assert checkpoint_type(tmp_path) == "encoder"


def test_tokens_without_embedding_are_refused(folder):
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    original = (folder / "tokenizer.json").read_text()
    added = {"id": size, "content": "<new>", "single_word": False, "lstrip": False, "rstrip": False}
    added |= {"normalized": False, "special": False}
    for change in (
        lambda data: data["model"]["vocab"].update({"zebra": size + 7}),
        lambda data: data["added_tokens"].append(added),
        lambda data: data["post_processor"]["special_tokens"]["[CLS]"].update(ids=[size + 7]),
    ):
        change_json(folder / "tokenizer.json", change)
        refused(folder, "tokenizer.json", f"0 to {size - 1}")
        (folder / "tokenizer.json").write_text(original)
    (folder / "tokenizer.json").unlink()
    with (folder / "vocab.txt").open("a") as file:
        file.write("zebra\n")
    refused(folder, "vocab.txt", "'zebra'", f"id {size}", f"0 to {size - 1}")


def test_tokenizer_with_gaps_in_its_ids_trains(folder, tmp_path):
    from support.data.training_data import recipe, write_data

    from clearhead.train.tasks.registry import create_task

    write_data(tmp_path)
    change_json(tmp_path / "encoder" / "tokenizer.json", lambda data: data["model"]["vocab"].update({"zebra": 400}))
    task = create_task(recipe(tmp_path, "masked-language-model"), tmp_path)
    assert task.config.vocab_size == 401


@pytest.mark.parametrize("load", [load_encoder, load_seq2seq])
def test_run_without_a_model_is_named(tmp_path, load):
    (tmp_path / "recipe.yaml").write_text("task: classification")
    with pytest.raises(ValueError, match="is a training run that has not saved a model yet; continue it with --resume"):
        load(tmp_path)


def test_pickles_that_were_cut_are_named(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({f"{name}": torch.randn(40, 40) for name in range(4)}, path)
    content = path.read_bytes()
    for size in range(0, len(content), 397):
        path.write_bytes(content[:size])
        with pytest.raises((ValueError, OSError), match=r"pytorch_model\.bin"):
            convert(tmp_path)
