"""The command `tokenizer train`."""

import json

import pytest
import torch
from support.command import clearhead, refused, started
from support.models.seq2seq import make
from support.models.spm import ENGLISH, GERMAN
from transformers import AutoTokenizer

from clearhead.tokenizers.bpe import tokens_per_word, train_bpe
from clearhead.tokenizers.tokenizer import Tokenizer


def files(folder):
    (folder / "train.en").write_text(ENGLISH, encoding="utf-8")
    (folder / "train.de").write_text(GERMAN, encoding="utf-8")
    return [folder / "train.en", folder / "train.de"]


@pytest.mark.slow
def test_tokenizer_of_both_languages_in_a_translator(tmp_path):
    sources, folder = files(tmp_path), tmp_path / "model"
    tokenizer = train_bpe([*ENGLISH.splitlines(), *GERMAN.splitlines()], vocab_size=400)
    train = ["tokenizer", "train", *sources, "--output", folder, "--vocab-size", 400]
    rate = tokens_per_word(tokenizer, [*ENGLISH.splitlines(), *GERMAN.splitlines()])
    assert started(*train) == (0, f"400 tokens, {rate:.2f} per word, to {folder}\n", "")
    assert Tokenizer.from_folder(folder).backend.to_str() == tokenizer.backend.to_str()
    # again into the same folder, as data
    _, out, _ = clearhead(*train, "--json")
    assert json.loads(out) == {"vocab_size": 400, "tokens_per_word": rate, "output": str(folder)}
    ids = {"pad_token_id": 399, "decoder_start_token_id": 399, "eos_token_id": 0}
    theirs = make("marian", folder, lively=True, vocab_size=400, decoder_vocab_size=400, **ids)
    text = "The old bridge </s> of stone, 漢"
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        output = theirs.generate(**tokens, num_beams=2, max_new_tokens=8)
    expected = AutoTokenizer.from_pretrained(folder).decode(output[0], skip_special_tokens=True)
    options = ["--beam-size", 2, "--max-new-tokens", 8, "--precision", "float32", "--json"]
    status, out, _ = clearhead("translate", "-m", folder, *options, stdin=text.encode())
    assert status == 0
    assert json.loads(out)["text"] == expected
    assert json.loads(out)["token_ids"] == output[0, 1:].tolist()
    assert "contains config.json; give a new or empty folder" in refused(*train)


def test_encoder_tokenizer(tmp_path):
    rows = "".join(json.dumps({"body": line}) + "\n" for line in ENGLISH.splitlines())
    (tmp_path / "a.jsonl").write_text(rows)
    options = ["--vocab-size", 300, "--for", "encoder", "--lowercase", "--column", "body", "--max-length", 64]
    status, _, err = clearhead("tokenizer", "train", tmp_path / "a.jsonl", "-o", tmp_path / "out", *options)
    assert (status, err) == (0, "")
    tokenizer = Tokenizer.from_folder(tmp_path / "out")
    assert tokenizer.ids_to_tokens(tokenizer.encode(["THE"])[0].ids)[:2] == ["[CLS]", "▁the"]
    assert tokenizer.max_length == 64


def test_warning_for_a_small_vocabulary(tmp_path):
    sources = files(tmp_path)
    train = ["tokenizer", "train", *sources, "-o", tmp_path / "out", "--vocab-size", 9000]
    status, out, err = clearhead(*train)  # log messages appear on standard error only here
    size = Tokenizer.from_folder(tmp_path / "out").backend.get_vocab_size()
    assert (status, err.count("\n")) == (0, 1)
    assert (
        f"too few for a vocabulary of 9000 tokens: it has {size}, because no other pair of tokens occurs 2 times" in err
    )
    assert out.startswith(f"{size} tokens, ")
    assert int(clearhead(*train, "--min-frequency", 1)[1].split()[0]) > size


@pytest.mark.slow
def test_tokenizer_train_errors(tmp_path):
    source, *_ = files(tmp_path)
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "bytes").write_bytes(b"\xff\n")
    for arguments, message in [
        ([source, "-o", tmp_path / "out", "--vocab-size", 100], "a vocabulary of 100 is too small"),
        ([tmp_path / "no", "-o", tmp_path / "out", "--vocab-size", 400], "no such file"),
        ([tmp_path / "empty", "-o", tmp_path / "out", "--vocab-size", 400], "no text to learn from"),
        ([tmp_path / "bytes", "-o", tmp_path / "out", "--vocab-size", 400], "line 1: not UTF-8"),
        (["-", "-o", tmp_path / "out", "--vocab-size", 400], "standard input"),
        ([source, "-o", source, "--vocab-size", 400], "is a file; give a folder"),
        ([source, "-o", tmp_path / "no" / "out", "--vocab-size", 400], "does not exist"),
        ([source, "-o", "/", "--vocab-size", 400], "the output is /; expected a file or folder in it"),
        ([source, "-o", tmp_path, "--vocab-size", 400], "contains bytes; give a new or empty folder"),
        ([source, "-o", tmp_path / "out", "--vocab-size", 400, "--min-frequency", 0], "min_frequency must be 1"),
    ]:
        assert message in refused("tokenizer", "train", *arguments)
    assert not (tmp_path / "out").exists()


def test_output_may_be_the_working_directory(tmp_path):
    sources, folder = files(tmp_path), tmp_path / "out"
    folder.mkdir(mode=0o700)
    train = ["tokenizer", "train", *sources, "--output", ".", "--vocab-size"]
    for size in (400, 410):  # a new tokenizer, and one in place of it
        assert clearhead(*train, size, cwd=folder)[0] == 0
        assert Tokenizer.from_folder(folder).backend.get_vocab_size() == size
    (folder / ".tokenizer.json.abcdefgh.part").write_text("of a killed run")
    assert clearhead(*train[:-2], folder, "--vocab-size", 400)[0] == 0
    assert {path.name for path in folder.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_links_in_a_circle_are_refused_in_one_line(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    error = refused("tokenizer", "train", *files(tmp_path), "-o", tmp_path / "one", "--vocab-size", 300)
    assert error == f"clearhead: error: {tmp_path / 'one'}: Too many levels of symbolic links\n"


def test_files_without_text_are_named(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    error = refused("tokenizer", "train", tmp_path / "a.txt", "-o", tmp_path / "model", "--vocab-size", 400)
    assert f"{tmp_path / 'a.txt'}: no text to learn from; all lines are blank" in error
