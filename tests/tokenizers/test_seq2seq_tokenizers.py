"""Tokenizers of encoder–decoder checkpoints equal transformers'."""

import json

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from support.models import spm
from support.models.spm import CLASSES, PLAIN, pair

from clearhead.checkpoints import load_tokenizer
from clearhead.tokenizers.base import TextTokenizer

CASES = [
    *("marian", "marian-codes", "marian-separate", "m2m_100", "bart", "bart-json"),
    *PLAIN,
    *(f"{family}-json" for family in PLAIN),
]
# U+0085 at the end of a text is a space in the `tokenizers` library, and an unknown character in sentencepiece
parts = st.one_of(
    st.text(st.characters(exclude_characters="\x85"), max_size=12),
    st.text(" \t\n▁aeT.ü漢", max_size=12),
    st.sampled_from(["</s>", "<pad>", "<unk>", "<s>", "<mask>", "<mask_2>", "<extra_id_1>", "<extra_id_12>"]),
    st.sampled_from(["en_XX", "__de__", "eng_Latn", ">>fra<<", ">>x<<", "<unk_7>", "The old bridge", "Brücke "]),
)
texts = st.lists(parts, max_size=5).map(lambda chosen: "".join(chosen).encode("utf-8", "replace").decode())


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    return pair(request.param, tmp_path_factory.mktemp(request.param))


def test_ids_tokens_and_truncation_equal_transformers(both):
    ours, theirs = both
    assert isinstance(ours, TextTokenizer)

    @given(texts)
    def check(text):
        expected = theirs(text)["input_ids"]
        (result,) = ours.encode([text])
        assert result.ids == expected
        assert not result.truncated
        assert ours.ids_to_tokens(expected) == theirs.convert_ids_to_tokens(expected)
        (cut,) = ours.encode([text], max_length=6)
        assert cut.ids == theirs(text, truncation=True, max_length=6)["input_ids"]
        assert cut.truncated == (len(expected) > 6)

    check()
    for text in spm.TEXTS:
        assert ours.encode([text])[0].ids == theirs(text)["input_ids"], text
    assert [tokens.ids for tokens in ours.encode(spm.TEXTS)] == [ours.encode([text])[0].ids for text in spm.TEXTS]
    assert ours.encode([]) == []


def test_decoded_text_equals_transformers(both):
    ours, theirs = both
    known = [number for number in range(len(theirs)) if ours.ids_to_tokens([number]) != [""]]

    @given(texts, st.lists(st.sampled_from(known), max_size=12))
    def check(text, ids):
        for numbers in (ours.encode([text])[0].ids, ids):
            expected = theirs.decode(numbers, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert ours.decode(numbers) == expected

    check()
    assert ours.decode([]) == ""
    assert ours.decode([10**6]) == ""
    assert ours.ids_to_tokens([10**6]) == [""]


def test_special_tokens_equal_transformers(both):
    ours, theirs = both
    assert ours.special_ids >= set(theirs.all_special_ids)
    assert ours.decode(sorted(ours.special_ids)) == ""
    for token in ("</s>", "<pad>", "<unk>"):
        assert ours.token_id(token) == theirs.convert_tokens_to_ids(token)
    assert ours.token_id("no such token") is None


def test_saved_tokenizer_opens_in_transformers(both, tmp_path):
    ours, theirs = both
    ours.save(tmp_path, 77)
    if not (tmp_path / "tokenizer.json").exists() and type(theirs) not in CLASSES.values():
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert config["tokenizer_class"] == type(theirs).__name__  # transformers needs protobuf to read these
        placed = {token["content"]: int(number) for number, token in config["added_tokens_decoder"].items()}
        assert placed == {token: theirs.convert_tokens_to_ids(token) for token in placed}
        assert set(placed.values()) >= set(theirs.all_special_ids)
        stripping = {token["content"] for token in config["added_tokens_decoder"].values() if token["lstrip"]}
        assert stripping == {"<mask>"} & set(placed)
        again = None
    else:
        kind = "marian" if isinstance(theirs, transformers.MarianTokenizer) else "m2m_100"
        spm.write_json(tmp_path / "config.json", {"model_type": kind} if type(theirs) in CLASSES.values() else {})
        again = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert again.model_max_length == 77
    for text in spm.TEXTS:
        assert again is None or again(text)["input_ids"] == ours.encode([text])[0].ids
    for name, data in getattr(ours, "files", {}).items():
        assert (tmp_path / name).read_bytes() == data


def test_invalid_texts_and_lengths(tmp_path):
    ours = load_tokenizer(spm.m2m100(tmp_path), "m2m_100")
    with pytest.raises(ValueError, match="text 1 has half a surrogate pair at character 2"):
        ours.encode(["a", "ab\ud800"])
    with pytest.raises(ValueError, match="greater than 2, the number of special tokens; got 2"):
        ours.encode(["a"], max_length=2)


def test_existing_sentinels_are_not_added(tmp_path):
    spm.plain("t5", tmp_path)
    model = spm.spm(spm.ENGLISH, "unigram", 150, True, symbols=("<extra_id_0>", "<extra_id_1>"))
    (tmp_path / "spiece.model").write_bytes(model)
    ours = load_tokenizer(tmp_path, "t5")
    names = [piece for piece, _ in spm.pieces(model)]
    assert ours.token_id("<extra_id_1>") == names.index("<extra_id_1>")
    assert ours.token_id("<extra_id_99>") == len(names)
    assert ours.token_id("<extra_id_2>") == len(names) + 97


def test_mt5_without_sentinels(tmp_path):
    ours = load_tokenizer(spm.plain("t5", tmp_path, extra_ids=0), "mt5")
    assert ours.token_id("<extra_id_0>") is None
    assert max(ours.special_ids) == 2


def test_added_tokens_are_matched_in_texts(tmp_path):
    """Added tokens with ids in the config, or after the other ids."""
    spm.m2m100(tmp_path)
    added = {"900": {"content": "<note>", "special": False}, "899": {"content": "<note>s", "special": False}}
    config = {"added_tokens_decoder": added, "sep_token": None}
    spm.write_json(tmp_path / "tokenizer_config.json", config)
    spm.write_json(tmp_path / "special_tokens_map.json", {"sep_token": "<sep>"})  # which a null does not hide
    ours = load_tokenizer(tmp_path, "m2m_100")
    assert ours.encode(["<note>s"])[0].ids[1:-1] == [899]
    (tokens,) = ours.encode(["a <note> b <sep>"])
    assert 900 in tokens.ids
    assert ours.decode(tokens.ids) == ours.decode(ours.encode(["a"])[0].ids) + "<note> b"
    assert ours.token_id("<sep>") == 901


def test_default_clean_up_keeps_barts_spaces(tmp_path):
    theirs = spm.bart_theirs(spm.bart(tmp_path), clean_up_tokenization_spaces=True)
    ours = load_tokenizer(tmp_path, "bart")
    ids = theirs("The old bridge . It was")["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "The old bridge . It was"
