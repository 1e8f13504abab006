"""Trained tokenizers: texts round-trip, transformers gives the same ids, and texts cannot spell special tokens."""

import inspect
import json
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models.spm import ENGLISH, GERMAN, TEXTS
from transformers import AutoTokenizer

from clearhead.checkpoints import load_tokenizer
from clearhead.tokenizers.bpe import tokens_per_word, train_bpe
from clearhead.tokenizers.tokenizer import Tokenizer

LINES = (ENGLISH + GERMAN).splitlines()
LITERALS = ["<s> </s> <pad> <unk>", "[CLS] [PAD][MASK]", "a</s>b <0x41><pad>", "</s>", ">>de<< x"]
# only the library normalizes characters that are newer than this Python's Unicode
texts = st.text(st.characters(exclude_categories=("Cs", "Cn"), exclude_characters="▁"))


def trained(layout="encoder-decoder", lowercase=False, lines=LINES, size=400):
    return train_bpe(lines, vocab_size=size, architecture=layout, lowercase=lowercase)


TRAINED = {layout: trained(layout) for layout in ("encoder-decoder", "encoder")}
LOWER = trained(lowercase=True)


def ids_of(tokenizer, text):
    return tokenizer.encode([text])[0].ids


@given(text=texts | st.sampled_from(TEXTS).map(lambda text: text.replace("▁", "")) | st.sampled_from(LITERALS))
@pytest.mark.parametrize("layout", TRAINED)
def test_encode_and_decode_round_trip(layout, text):
    tokenizer = TRAINED[layout]
    text = unicodedata.normalize("NFC", text)
    ids = ids_of(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.target_ids(text)) == text
    around = (1, 1) if layout == "encoder" else (0, 1)
    inner = ids[around[0] : len(ids) - around[1]]
    assert not tokenizer.special_ids.intersection(inner), "neither unknown nor special"


@given(text=texts)
def test_lower_case(text):
    once = LOWER.decode(ids_of(LOWER, text))
    assert LOWER.decode(ids_of(LOWER, once)) == once
    if text.isascii():
        assert once == text.lower()


def test_spaces_of_tokenized_text_are_kept():
    text = 'zwei junge , weisse Männer sind " draussen " ( im Freien ) .'
    assert TRAINED["encoder-decoder"].decode(ids_of(TRAINED["encoder-decoder"], text)) == text


def test_ids_of_an_encoder_decoder():
    tokenizer = TRAINED["encoder-decoder"]
    size = tokenizer.backend.get_vocab_size()
    assert size == 400
    assert [tokenizer.token_id(token) for token in ("</s>", "<unk>", "<0x00>", "<pad>")] == [0, 1, 2, size - 1]
    ids = ids_of(tokenizer, "the bridge")
    assert ids[-1] == 0
    assert tokenizer.target_ids("the bridge") == ids[:-1]
    assert ids_of(tokenizer, "") == [0]
    assert tokenizer.special_ids == {0, 1, size - 1}
    # the same word at the start and inside
    assert tokenizer.target_ids("bridge") == tokenizer.target_ids("the bridge")[1:]


def test_ids_of_an_encoder():
    backend = TRAINED["encoder"].backend
    assert [backend.id_to_token(number) for number in range(6)] == [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        "<0x00>",
    ]
    pair = backend.encode("the bridge", "the boat")
    assert [token for token in pair.tokens if token.startswith("[")] == ["[CLS]", "[SEP]", "[SEP]"]
    cut = pair.tokens.index("[SEP]") + 1
    assert pair.type_ids == [0] * cut + [1] * (len(pair.ids) - cut)


@pytest.mark.parametrize("layout", TRAINED)
def test_saved_tokenizer_equals_transformers(layout, tmp_path):
    ours = TRAINED[layout]
    ours.save(tmp_path, None)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    again = load_tokenizer(tmp_path, "bert" if layout == "encoder" else "marian")
    assert theirs.model_max_length == again.max_length == 512
    for text in [*TEXTS, *LITERALS, *LINES]:
        ids = ids_of(ours, text)
        assert theirs(text)["input_ids"] == ids == ids_of(again, text)
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids) == again.decode(ids)
    pair = theirs("the bridge", "the boat")
    assert pair["input_ids"] == ours.backend.encode("the bridge", "the boat").ids
    assert ("token_type_ids" in pair) == (layout == "encoder")
    assert set(theirs.all_special_ids) == set(ours.special_ids)
    named = {"pad", "unk", "cls", "sep", "mask"} if layout == "encoder" else {"pad", "unk", "eos"}
    for role in named:
        token = getattr(theirs, f"{role}_token")
        assert ours.token_id(token) == getattr(theirs, f"{role}_token_id")
    theirs.save_pretrained(tmp_path / "back")
    back = Tokenizer.from_folder(tmp_path / "back")
    assert [ids_of(back, text) for text in LITERALS] == [ids_of(ours, text) for text in LITERALS]


def test_text_of_special_tokens_of_other_checkpoints(tiny_bert):
    """A literal [PAD] is the special token, as in transformers, unless the config disables it."""
    tokenizer = Tokenizer.from_folder(tiny_bert)
    assert ids_of(tokenizer, "a [PAD]") == AutoTokenizer.from_pretrained(tiny_bert)("a [PAD]")["input_ids"]
    assert tokenizer.token_id("[PAD]") in ids_of(tokenizer, "a [PAD]")


def test_no_special_token_is_learned_from_a_text():
    lines = ["</s> <pad> <unk> <0x41> [CLS]"] * 50 + ["▁▁ ▁"] * 50
    tokenizer = train_bpe(lines, vocab_size=1000)
    assert tokenizer.decode(ids_of(tokenizer, lines[0])) == lines[0]
    # a learned <0x41> would be decoded to A
    assert "<0x41>" not in tokenizer.ids_to_tokens(ids_of(tokenizer, lines[0]))


def test_same_texts_same_vocabulary(tmp_path):
    """Also test another process, because the library hashes its tables with a random seed."""
    code = (
        "import sys; from clearhead.tokenizers.bpe import train_bpe\n"
        "print(train_bpe(sys.stdin.read().splitlines(), vocab_size=400).backend.to_str())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(LINES), capture_output=True, text=True, check=True
    )
    assert done.stdout == TRAINED["encoder-decoder"].backend.to_str() + "\n"
    assert trained().backend.to_str() == TRAINED["encoder-decoder"].backend.to_str()
    merges = json.loads(done.stdout)["model"]["merges"]
    assert len(merges) > 50


def test_most_frequent_pairs_are_merged():
    """By hand: in "ab xab yab" a b comes three times, every other pair once."""
    tokenizer = train_bpe(["ab xab yab"], vocab_size=265)  # 3 special, 256 bytes, ▁ a b x y, and one merge
    assert json.loads(tokenizer.backend.to_str())["model"]["merges"] == [["a", "b"]]
    assert tokenizer.ids_to_tokens(tokenizer.target_ids("xab")) == ["▁", "x", "ab"]


def test_small_texts_give_small_vocabularies(caplog):
    tokenizer = train_bpe(["the old bridge"], vocab_size=1000)
    size = tokenizer.backend.get_vocab_size()
    assert f"the texts are too few for a vocabulary of 1000 tokens: it has {size}" in caplog.text
    assert tokenizer.decode(ids_of(tokenizer, "the old bridge")) == "the old bridge"


def test_tokens_per_word():
    tokenizer = train_bpe(["the old bridge"] * 2, vocab_size=400)
    assert tokens_per_word(tokenizer, ["the old bridge", "", "the bridge"]) == 1
    # a word of letters that were never merged
    assert tokens_per_word(tokenizer, ["bh"]) == 3
    with pytest.raises(ValueError, match="no words"):
        tokens_per_word(tokenizer, [" "])


def test_bad_input():
    train = inspect.unwrap(train_bpe)
    for given_, words in [
        ({"texts": []}, "no text to learn from"),
        ({"texts": ["", ""]}, "no text to learn from"),
        ({"texts": "a text"}, "Put it in a list"),
        ({"texts": ["a", 3]}, "text 1 is a int"),
        ({"texts": ["a\ud800"]}, "text 0 has half a surrogate pair at character 1"),
        ({"vocab_size": 10}, "a vocabulary of 10 is too small: .* has 3 characters, .* Use 262 or more"),
        ({"vocab_size": 261}, "Use 262 or more"),
        ({"vocab_size": 262, "min_frequency": 0}, "min_frequency must be 1 or more; got 0"),
        ({"max_length": 0}, "max_length must be 1 or more; got 0"),
        ({"architecture": "decoder"}, "expected the architecture encoder-decoder or encoder; got 'decoder'"),
    ]:
        with pytest.raises(ValueError, match=words):
            train(**({"texts": ["ab ab"], "vocab_size": 262} | given_))
    assert train(["ab ab"], vocab_size=262).backend.get_vocab_size() == 262


def test_killed_process_leaves_no_tokenizer_without_its_settings(tmp_path, monkeypatch):
    def killed(path, data):
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.tokenizers.tokenizer.write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        trained().save(tmp_path, None)
    assert not any(tmp_path.iterdir())
