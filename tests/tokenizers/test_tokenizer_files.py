"""Tokenizer files of encoder–decoders: which class they select, and errors that name the file."""

import base64
import contextlib
import importlib.util
import io
import json
import random
import shutil

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from support.models import spm
from support.models.spm import TYPES, pair

from clearhead.checkpoints import load_tokenizer
from clearhead.tokenizers import languages
from clearhead.tokenizers.bpe import train_bpe
from clearhead.tokenizers.sentencepiece import SentencePieceTokenizer
from clearhead.tokenizers.tokenizer import Tokenizer


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
    with pytest.raises(ValueError, match=r"target\.spm is damaged, or not a sentencepiece model"):
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


@pytest.mark.parametrize(("value", "expected"), [(512, 512), (10**30, None), (True, None), (None, None)])
def test_maximum_length(tmp_path, value, expected):
    assert load_tokenizer(spm.marian(tmp_path, model_max_length=value), "marian").max_length == expected


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


@pytest.fixture
def bert_folder(tiny_bert, tmp_path):
    return shutil.copytree(tiny_bert, tmp_path / "bert")


def changed(folder, **parts):
    """Return a folder with BERT's tokenizer as a tokenizer.json with other parts."""
    backend = Tokenizer.from_folder(folder).backend
    spm.write_json(folder / "tokenizer.json", json.loads(backend.to_str()) | parts)
    return folder


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Sequence", "normalizers": [replace({"String": "o"}, "o" * 50)] * 2},
        {"type": "Sequence", "normalizers": [replace({"Regex": "|x"}, "y")] * 20},
        replace({"String": "ab"}, "x" * 1000),
        {"type": "Prepend", "prepend": "x" * 10**6},
    ],
    ids=["strings", "regular expressions", "one", "prepend"],
)
def test_normalizers_that_multiply_a_text_are_refused(bert_folder, normalizer):
    with pytest.raises(ValueError, match=r"tokenizer\.json: the normalizer can make a text .* times longer"):
        Tokenizer.from_folder(changed(bert_folder, normalizer=normalizer))


def test_decoders_that_multiply_a_text_are_refused(bert_folder):
    decoder = {"type": "Sequence", "decoders": [replace({"String": "o"}, "o" * 50)] * 5}
    with pytest.raises(ValueError, match=r"tokenizer\.json: the decoder can make a text .* times longer"):
        Tokenizer.from_folder(changed(bert_folder, decoder=decoder))


def test_usual_replacements_are_accepted(bert_folder):
    pairs = [({"String": "``"}, '"'), ({"String": "\n\n"}, " "), ({"Regex": " {2,}"}, " "), ({"String": " "}, "▁")]
    normalizer = {"type": "Sequence", "normalizers": [replace(*pair) for pair in pairs]}
    assert Tokenizer.from_folder(changed(bert_folder, normalizer=normalizer)).encode(["hello"])


@pytest.mark.parametrize(("name", "texts"), [("single", "ABA"), ("single", "B"), ("pair", "ABA"), ("pair", "A")])
def test_templates_that_repeat_or_omit_a_text_are_refused(bert_folder, capfd, name, texts):
    pieces = {"single": "A", "pair": "AB"} | {name: texts}
    template = {key: [{"Sequence": {"id": one, "type_id": 0}} for one in value] for key, value in pieces.items()}
    folder = changed(bert_folder, post_processor={"type": "TemplateProcessing", "special_tokens": {}, **template})
    listed = ", ".join(texts)
    with pytest.raises(
        ValueError,
        match=rf"tokenizer\.json: the template '{name}' of the post_processor has the texts {listed}; expected A",
    ):
        Tokenizer.from_folder(folder)
    assert capfd.readouterr().err == ""  # no panic of the library


def test_regular_expression_that_gives_up_on_a_text_is_an_error(bert_folder):
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = Tokenizer.from_folder(changed(bert_folder, pre_tokenizer=split))
    for tokenize in (lambda text: tokenizer.encode([text]), tokenizer.target_ids):
        with pytest.raises(ValueError, match=r"tokenizer\.json cannot take one of the texts: .*retry-limit"):
            tokenize("a" * 28 + "!")


def precompiled(charsmap):
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


@pytest.fixture(scope="session")
def charsmaps():
    """The tables of all rules of sentencepiece."""
    found = []
    for rule in ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the old bridge was closed"] * 20),
            model_writer=model,
            vocab_size=30,
            normalization_rule_name=rule,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        parsed = sentencepiece_model_pb2.ModelProto()
        parsed.ParseFromString(model.getvalue())
        found.append(parsed.normalizer_spec.precompiled_charsmap)
    return found


def test_charsmaps_of_sentencepiece_are_accepted(bert_folder, charsmaps):
    for charsmap in charsmaps:
        tokenizer = Tokenizer.from_folder(changed(bert_folder, normalizer=precompiled(charsmap)))
        assert tokenizer.backend.normalizer.normalize_str("\uff21\ufb01") in ("Afi", "afi")


def test_damaged_charsmaps_are_refused(bert_folder, charsmaps, capfd):
    """The library crashes at some of them, and prints a traceback of its own."""
    good = charsmaps[0]
    size = int.from_bytes(good[:4], "little")
    damaged = [b"", b"abc", bytes(4), bytes(512), good[:1000], good[: size + 4], good[: size + 500]]
    damaged += [number.to_bytes(4, "little") + good[4:] for number in (size - 2, 400, 2**31)]
    damaged += [good[: size + 4] + b"\xff\xfe\0", random.Random(0).randbytes(5000)]
    for charsmap in damaged:
        with pytest.raises(ValueError, match=r"tokenizer\.json: the precompiled_charsmap of the normalizer is damaged"):
            Tokenizer.from_folder(changed(bert_folder, normalizer=precompiled(charsmap)))
    assert capfd.readouterr().err == ""


@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_a_changed_byte_of_a_charsmap_is_refused_or_harmless(bert_folder, charsmaps, position, value):
    charsmap = bytearray(charsmaps[0])
    charsmap[int(position * len(charsmap))] ^= value
    with contextlib.suppress(ValueError):
        backend = Tokenizer.from_folder(changed(bert_folder, normalizer=precompiled(bytes(charsmap)))).backend
        everything = "".join(map(chr, range(0x20, 0xD800)))
        backend.normalizer.normalize_str(everything)  # a panic is not a ValueError


def test_dropout_of_a_tokenizer_is_off(tmp_path):
    train_bpe(["the old bridge was closed", "a new bridge opens"] * 9, vocab_size=300).save(tmp_path, None)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    intact = Tokenizer.from_folder(tmp_path).encode(["the old bridge"])[0].ids
    content["model"]["dropout"] = 0.9
    spm.write_json(tmp_path / "tokenizer.json", content)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert all(tokenizer.encode(["the old bridge"])[0].ids == intact for _ in range(9))
