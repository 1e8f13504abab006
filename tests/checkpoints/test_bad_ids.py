"""Token ids in the files of an encoder–decoder without an embedding."""

import json

import pytest
from support.models.folders import marian, plain

from clearhead import TextEncoder, TextToText


def change(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder, *words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        TextToText.from_pretrained(folder)
    for word in words:
        assert word in str(error.value), str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    marian(folder)
    return folder


@pytest.fixture
def folder(model_folder, tmp_path):
    import shutil

    return shutil.copytree(model_folder, tmp_path / "model")


@pytest.mark.parametrize("key", ["decoder_start_token_id", "pad_token_id", "eos_token_id"])
def test_special_ids_of_the_config(folder, key):
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    TextToText.from_pretrained(folder)
    for number in (size, 10**6, 10**30, -1, "1", 1.5, True, [size], [[1]]):
        change(folder / "config.json", **{key: number})
        refused(folder, "config.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", ["decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"]
)
def test_special_ids_of_generation_config(folder, key):
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    (folder / "generation_config.json").write_text("{}")
    TextToText.from_pretrained(folder)
    for number in (size, 10**30, -1, "1", 1.5):
        (folder / "generation_config.json").write_text(json.dumps({key: [[number]] if "bad" in key else number}))
        refused(folder, "generation_config.json")


@pytest.mark.slow
def test_ids_in_vocabulary_files(folder, tmp_path):
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    change(folder / "vocab.json", zebra=size + 3)
    refused(folder, "vocab.json", "'zebra'", f"id {size + 3}", f"0 to {size - 1}")
    change(folder / "vocab.json", zebra=-1)
    refused(folder, "vocab.json", "'zebra'", "-1")
    change(folder / "vocab.json", zebra=10**30)
    refused(folder, "vocab.json", "'zebra'")
    (tmp_path / "t5").mkdir()
    plain("t5", tmp_path / "t5")
    TextToText.from_pretrained(tmp_path / "t5")
    change(tmp_path / "t5" / "tokenizer_config.json", extra_ids=10_000)
    refused(tmp_path / "t5", "spiece.model", "<extra_id_")


def test_ids_of_added_tokens(folder):
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    original = (folder / "tokenizer_config.json").read_text()
    for number in (str(size), str(10**30), "²"):
        change(folder / "tokenizer_config.json", added_tokens_decoder={number: {"content": "<new>"}})
        refused(folder, "tokenizer_config.json", "<new>" if number != "²" else "added_tokens_decoder")
        (folder / "tokenizer_config.json").write_text(original)
    change(folder / "tokenizer_config.json", added_tokens_decoder=["a"])
    refused(folder, "tokenizer_config.json", "added_tokens_decoder")


def test_separate_target_vocabulary(tmp_path):
    # <pad> is 149 in the target vocabulary; source and target share it
    sizes = {"vocab_size": 150, "decoder_vocab_size": 150, "share_encoder_decoder_embeddings": False}
    marian(tmp_path, separate=True, **sizes)
    TextToText.from_pretrained(tmp_path)
    size = 150
    change(tmp_path / "target_vocab.json", zebra=size + 3)
    refused(tmp_path, "target_vocab.json", "'zebra'", f"id {size + 3}")


def test_special_token_without_embedding_is_a_warning(tmp_path, caplog):
    """Like <mask> of facebook/bart-large-cnn, whose config.json has one token fewer than its tokenizer."""
    from support.models.tiny import VOCABULARY, make_bert

    make_bert(tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    extra = {"id": len(VOCABULARY), "content": "<late>", "special": True, "normalized": False}
    data["added_tokens"].append(extra | dict.fromkeys(("single_word", "lstrip", "rstrip"), False))
    path.write_text(json.dumps(data))
    encoder = TextEncoder.from_pretrained(tmp_path)
    assert "tokenizer.json: a text that contains <late> is refused: the token has the id" in caplog.text
    assert encoder.encode(["hello world"]).shape == (1, 32)
    with pytest.raises(ValueError, match=f"got {len(VOCABULARY)}"):
        encoder.encode(["hello <late> world"])
