"""Tokenizers of encoder–decoder checkpoints equal transformers'."""

import importlib.util
import json

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from support import spm

from clearhead.checkpoints import load_tokenizer
from clearhead.tokenizers import languages
from clearhead.tokenizers.base import TextTokenizer
from clearhead.tokenizers.sentencepiece import SentencePieceTokenizer
from clearhead.tokenizers.tokenizer import Tokenizer

CLASSES = {"marian": transformers.MarianTokenizer, "m2m_100": transformers.M2M100Tokenizer}
PLAIN = ["t5", "pegasus", "mbart", "mbart50", "nllb"]
TYPES = {"mbart50": "mbart", "nllb": "m2m_100"}
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


def pair(case, folder):
    """Return our tokenizer and transformers', from the same files."""
    family, _, kind = case.partition("-")
    if family in CLASSES:
        if family == "marian":
            spm.marian(folder, codes=("fra", "deu") if kind == "codes" else (), separate=kind == "separate")
        else:
            spm.m2m100(folder)
        return load_tokenizer(folder, family), CLASSES[family].from_pretrained(folder)
    if family == "bart":
        reference = spm.bart_theirs(spm.bart(folder))
    else:
        reference = spm.theirs(family, published=kind != "json")
    if kind == "json":
        for path in folder.iterdir():
            path.unlink()
        reference.save_pretrained(folder)
    elif family in PLAIN:
        spm.plain(family, folder)
    return load_tokenizer(folder, TYPES.get(family, family)), reference


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


@pytest.mark.parametrize(
    ("family", "source", "target", "words"),
    [
        ("m2m_100", "de", "fr", ["__de__", "</s>"]),
        ("mbart", "de_DE", "ro_RO", ["</s>", "de_DE"]),
        ("mbart50", "de_DE", "sl_SI", ["de_DE", "</s>"]),
        ("nllb", "deu_Latn", "zul_Latn", ["deu_Latn", "</s>"]),
        ("mbart-json", "de_DE", "ro_RO", ["</s>", "de_DE"]),
        ("mbart50-json", "de_DE", "sl_SI", ["de_DE", "</s>"]),
        ("nllb-json", "deu_Latn", "zul_Latn", ["deu_Latn", "</s>"]),
    ],
)
def test_language_tokens_equal_transformers(tmp_path, family, source, target, words):
    ours, theirs = pair(family, tmp_path)
    configured = ours.for_languages(source, target)
    theirs.src_lang = source
    assert (configured.source, configured.target) == (source, target)
    assert configured.tokenizer.ids_to_tokens(configured.tokenizer.encode([""])[0].ids) == words
    for text in spm.TEXTS:
        expected = theirs(text)["input_ids"]
        assert configured.tokenizer.encode([text])[0].ids == expected
        cut = theirs(text, truncation=True, max_length=5)["input_ids"]
        assert configured.tokenizer.encode([text], max_length=5)[0].ids == cut
    assert configured.tokenizer.languages == ours.languages
    # the token that transformers' translation pipeline forces
    inputs = theirs._build_translation_inputs("x", src_lang=source, tgt_lang=target, return_tensors=None)
    # the first mBART starts the target with its language instead
    assert (configured.forced_bos_token_id or configured.start_id) == inputs["forced_bos_token_id"]
    # the original tokenizer is unchanged
    assert ours.encode(["x"])[0].ids != configured.tokenizer.encode(["x"])[0].ids
    # the saved files contain the languages
    configured.tokenizer.save(tmp_path, None)
    again = load_tokenizer(tmp_path, TYPES.get(family.split("-")[0], family.split("-")[0]))
    assert again.encode(["x"]) == configured.tokenizer.encode(["x"])
    assert again.for_languages(None, None).forced_bos_token_id == configured.forced_bos_token_id


def test_languages_of_the_families(tmp_path):
    results = {}
    for family in ("m2m_100", "mbart", "mbart50", "nllb", "t5", "pegasus"):
        (tmp_path / family).mkdir()
        results[family] = pair(family, tmp_path / family)[0].languages
    assert results == {
        "m2m_100": languages.M2M100_CODES["m2m100"],
        "mbart": languages.MBART_CODES,
        "mbart50": languages.MBART50_CODES,
        "nllb": languages.NLLB_CODES,
        "t5": (),
        "pegasus": (),
    }


@pytest.mark.parametrize("written", ["TokenizersBackend", "class with Fast", None])
@pytest.mark.parametrize("family", ["mbart", "mbart50", "nllb"])
def test_families_with_the_same_model_type(tmp_path, family, written):
    reference = spm.theirs(family)
    reference.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = f"{type(reference).__name__}Fast" if written == "class with Fast" else written
    spm.write_json(tmp_path / "tokenizer_config.json", config)
    ours = load_tokenizer(tmp_path, TYPES.get(family, family))
    assert ours.encode(["The bridge"])[0].ids == reference("The bridge")["input_ids"]


def test_config_json_may_name_the_tokenizer_class(tmp_path):
    spm.plain("mbart50", tmp_path, tokenizer_class=None)
    assert len(load_tokenizer(tmp_path, "mbart").languages) == len(languages.MBART_CODES)
    spm.write_json(tmp_path / "config.json", {"tokenizer_class": "MBart50Tokenizer"})
    assert len(load_tokenizer(tmp_path, "mbart").languages) == len(languages.MBART50_CODES)


def test_legacy_nllb_puts_the_language_last(tmp_path):
    reference = spm.theirs("nllb", legacy_behaviour=True)
    reference.save_pretrained(tmp_path / "json")
    (tmp_path / "plain").mkdir()
    spm.plain("nllb", tmp_path / "plain", legacy_behaviour=True)
    for name in ("json", "plain"):
        ours = load_tokenizer(tmp_path / name, "m2m_100")
        assert ours.encode(["The bridge"])[0].ids == reference("The bridge")["input_ids"]
        assert ours.ids_to_tokens(ours.encode([""])[0].ids) == ["</s>", "eng_Latn"]


def test_marian_prepends_the_target_language(tmp_path):
    ours, theirs = pair("marian-codes", tmp_path)
    assert ours.languages == ("fra", "deu")
    configured = ours.for_languages(None, "deu")
    assert (configured.forced_bos_token_id, configured.source, configured.target) == (None, None, "deu")
    for text in (*spm.TEXTS[:12], ">>fra<< twice", ">>no\ncode<< x"):
        assert ours.encode([text])[0].ids == theirs(text)["input_ids"]
        assert configured.tokenizer.encode([text])[0].ids == theirs(f">>deu<< {text}")["input_ids"]
    cut = theirs(">>deu<< The old bridge", truncation=True, max_length=4)["input_ids"]
    assert configured.tokenizer.encode(["The old bridge"], max_length=4)[0].ids == cut
    with pytest.raises(ValueError, match="takes a target language only; leave the source language out: 'en'"):
        ours.for_languages("en", "deu")
    with pytest.raises(ValueError, match="Choose the target language: fra, deu$"):
        ours.for_languages(None, None)


def test_bilingual_marian_has_no_language_tokens(tmp_path):
    ours, _ = pair("marian", tmp_path)
    assert ours.languages == ()
    assert ours.for_languages(None, None).forced_bos_token_id is None
    with pytest.raises(
        ValueError, match="translates between fixed languages; leave out source_lang=.en. and target_lang=.de."
    ):
        ours.for_languages("en", "de")


def test_wrong_and_missing_languages(tmp_path):
    ours = load_tokenizer(spm.m2m100(tmp_path, language_codes="wmt21"), "m2m_100")
    with pytest.raises(
        ValueError, match="does not support the language 'xx'. Use one of: en, ha, is, ja, cs, ru, zh, de$"
    ):
        ours.for_languages("xx", "de")
    with pytest.raises(ValueError, match="does not support the language 'en_XX'"):
        ours.for_languages(None, "en_XX")
    with pytest.raises(ValueError, match="Choose the target language: en, ha"):
        ours.for_languages("en", None)
    with pytest.raises(ValueError, match="does not support the language ''"):
        ours.for_languages("", "de")
    spm.m2m100(tmp_path, language_codes="wmt21", src_lang="de", tgt_lang="is")
    configured = load_tokenizer(tmp_path, "m2m_100").for_languages(None, None)
    assert (configured.source, configured.target) == ("de", "is")


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("marian", "target.spm"),
        ("marian", "source.spm"),
        ("marian", "vocab.json"),
        ("marian-separate", "target_vocab.json"),
        ("m2m_100", "sentencepiece.bpe.model"),
        ("t5", "spiece.model"),
        ("nllb", "sentencepiece.bpe.model"),
    ],
)
def test_error_names_missing_file(tmp_path, family, name):
    pair(family, tmp_path)
    (tmp_path / name).unlink()
    kind = family.split("-")[0]
    with pytest.raises(ValueError, match=f"has no {name}; its tokenizer needs .*{name}.*or a tokenizer.json"):
        load_tokenizer(tmp_path, TYPES.get(kind, kind))


@pytest.mark.parametrize("data", [b"", b"no model", None])
def test_error_names_broken_sentencepiece_model(tmp_path, data):
    spm.marian(tmp_path)
    path = tmp_path / "target.spm"
    path.write_bytes(path.read_bytes()[:1000] if data is None else data)
    with pytest.raises(ValueError, match=r"target\.spm is truncated, or not a sentencepiece model"):
        load_tokenizer(tmp_path, "marian")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("vocab.json", {"</s>": 0, "<unk>": "1"}, "gives '<unk>' the id '1'"),
        ("vocab.json", {"</s>": 0}, "vocab.json has no <unk>"),
        ("vocab.json", {"<unk>": 0}, "vocab.json has no </s>"),
        ("vocab.json", [1], "JSON list"),
        ("tokenizer_config.json", {"eos_token": 3}, "has a special token 3"),
        ("tokenizer_config.json", {"additional_special_tokens": [["x"]]}, r"has a special token \['x'\]"),
    ],
)
def test_invalid_marian_files(tmp_path, name, data, words):
    spm.write_json(spm.marian(tmp_path) / name, data)
    with pytest.raises(ValueError, match=words):
        load_tokenizer(tmp_path, "marian")


@pytest.mark.parametrize(
    ("family", "config", "words"),
    [
        ("t5", {"extra_ids": "many"}, "extra_ids='many'"),
        ("pegasus", {"offset": 0}, "offset=0; only 103 is supported"),
        ("m2m_100", {"language_codes": "mine"}, "language_codes='mine'. Use one of: m2m100, wmt21"),
    ],
)
def test_invalid_tokenizer_configs(tmp_path, family, config, words):
    pair(family, tmp_path)
    spm.write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": None} | config)
    with pytest.raises(ValueError, match=words):
        load_tokenizer(tmp_path, family)


def test_without_sentencepiece_the_extra_is_named(tmp_path, monkeypatch):
    spm.marian(tmp_path)
    original = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sentencepiece" else original(name))
    with pytest.raises(ValueError, match=r'source\.spm needs sentencepiece: pip install "clearhead\[seq2seq\]"'):
        load_tokenizer(tmp_path, "marian")


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


@pytest.mark.parametrize(("value", "expected"), [(512, 512), (10**30, None), (True, None), (None, None)])
def test_maximum_length(tmp_path, value, expected):
    assert load_tokenizer(spm.marian(tmp_path, model_max_length=value), "marian").max_length == expected


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


@pytest.mark.parametrize("prefix", [False, True])
def test_barts_plain_files(tmp_path, prefix):
    theirs = spm.bart_theirs(spm.bart(tmp_path, add_prefix_space=prefix), add_prefix_space=prefix)
    ours = load_tokenizer(tmp_path, "bart")
    for text in spm.TEXTS:
        assert ours.encode([text])[0].ids == theirs(text)["input_ids"]
    (tmp_path / "merges.txt").write_text("a b c d\n")
    with pytest.raises(ValueError, match=r"vocab\.json and merges\.txt are not a byte-level BPE"):
        load_tokenizer(tmp_path, "bart")
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ValueError, match="no vocab.json with a merges.txt"):
        load_tokenizer(tmp_path, "bart")


def test_default_clean_up_keeps_barts_spaces(tmp_path):
    theirs = spm.bart_theirs(spm.bart(tmp_path), clean_up_tokenization_spaces=True)
    ours = load_tokenizer(tmp_path, "bart")
    ids = theirs("The old bridge . It was")["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "The old bridge . It was"


def test_special_tokens_of_the_config(tmp_path):
    backend = spm.theirs("t5").backend_tokenizer
    data = json.loads(backend.to_str())
    data["added_tokens"] = []
    spm.write_json(tmp_path / "tokenizer.json", data)
    spm.write_json(tmp_path / "special_tokens_map.json", {"eos_token": "</s>", "pad_token": {"content": "<pad>"}})
    ours = load_tokenizer(tmp_path, "t5")
    assert isinstance(ours, Tokenizer)
    assert ours.special_ids == {0, 1}
    assert ours.ids_to_tokens(ours.encode(["a<pad>"])[0].ids)[-2:] == ["<pad>", "</s>"]


def test_tokenizer_of_an_encoder(tiny_bert):
    ours = load_tokenizer(tiny_bert, "bert")
    assert isinstance(ours, Tokenizer)
    assert not isinstance(ours, SentencePieceTokenizer)
    assert ours.encode(["Hello, worlds"]) == Tokenizer.from_folder(tiny_bert).encode(["Hello, worlds"])
    assert ours.decode(ours.encode(["Hello, worlds"])[0].ids) == "hello, worlds"
    assert ours.languages == ()
