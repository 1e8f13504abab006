"""The page's tokenizer gives the ids and texts of the Python one."""

import json
import random

import pytest
from support.models import folders, spm
from support.pages.web import node
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from clearhead.checkpoints import load_tokenizer
from clearhead.export.sample_texts import TEXTS
from clearhead.export.web.tokenizer import web_tokenizer
from clearhead.io.hub import resolve_model
from clearhead.tokenizers.tokenizer import Tokenizer

NAUGHTY = [
    *(
        "",
        " ",
        "  a  b ",
        "\t\n x",
        "</s> <unk> <pad>",
        "a▁b ▁▁ c",
        "🙂👩‍👩‍👧",
        "שלום עולם",
        "مرحبا",
        "<script>alert(1)</script>",
    ),
    *(
        "Σίσυφος ΣΊΣΥΦΟΣ",
        "\u0085x\ufeffy\u200bz",
        "e\u0301é",
        "ﬁ Ⅳ ①",
        "中文 abc",
        "[MASK] x[SEP] a [MASK]",
        "\x00\x01\x0b\x7f",
    ),
    *(
        "İstanbul ǅ",
        "a" * 300,
        "don't can't I'm",
        "𝔘𝔫𝔦",
        "１２３",
        "a\u00a0b\u3000c",
        "—–-‐",
        "I\u0307",
        "\ufffd",
        "한국어",
        "$^+|`~",
    ),
    *("<mask>x < mask>", "   <mask>   y", "word " * 100),
]


def random_texts(count):
    """Return texts of random characters: ASCII, Latin, and the other planes below emoji."""
    draw = random.Random(0)
    ranges = ((32, 127), (32, 0x250), (0x370, 0x530), (0x3000, 0xA000), (0xAC00, 0xD7A0), (0x1F300, 0x1F600))
    return [
        "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(draw.randrange(1, 20))) for _ in range(count)
    ]


def compare(tokenizer, max_length, more=()):
    texts = [*TEXTS, *NAUGHTY, *more, *random_texts(300)]
    expected = [[one.ids, one.truncated, tokenizer.decode(one.ids)] for one in tokenizer.encode(texts, max_length)]
    results = node("tokenize.mjs", {"spec": web_tokenizer(tokenizer), "texts": texts, "maxLength": max_length})
    for text, result, wanted in zip(texts, results, expected, strict=True):
        assert result == wanted, text


@pytest.mark.parametrize("max_length", [None, 6])
@pytest.mark.parametrize("model", ["tatoeba-en-de", "all-MiniLM-L6-v2"])
def test_shipped_tokenizers(model, max_length):
    compare(Tokenizer.from_folder(resolve_model(model)), max_length)


def test_byte_level(tmp_path):
    folders.bart(tmp_path)
    compare(load_tokenizer(tmp_path, "bart"), 40)


@pytest.mark.parametrize("folder", [{}, {"separate": True}, {"codes": ("de", "fr")}])
def test_sentencepiece_files(tmp_path, folder):
    spm.marian(tmp_path, **folder)
    compare(load_tokenizer(tmp_path, "marian"), 20, [*spm.TEXTS, ">>de<< The old bridge", "a >>fr<< b", ">>xx<<x"])


def unigram(charsmap=None):
    pieces = ["<unk>", "▁", "▁the", "▁old", "bridge", "▁bridge", "e", "a", "t", "o", "ab", "abc", "bc", "c", "b", "🙂"]
    backend = Backend(models.Unigram([(piece, -1.0 - 0.37 * index) for index, piece in enumerate(pieces)], 0, False))
    steps = [normalizers.NFKC(), normalizers.Replace(" ", " ")]
    backend.normalizer = normalizers.Sequence(steps if charsmap is None else [normalizers.Precompiled(charsmap)])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return Tokenizer(backend, {"unk_token": "<unk>"})


def test_unigram():
    compare(unigram(), None)


def test_unsupported_part_is_named():
    tokenizer = unigram()
    tokenizer.backend.pre_tokenizer = pre_tokenizers.Digits()
    with pytest.raises(ValueError, match="the pre_tokenizer Digits, which a web page does not support"):
        web_tokenizer(tokenizer)


def test_half_a_surrogate_pair_is_replaced():
    tokenizer = Tokenizer.from_folder(resolve_model("tatoeba-en-de"))
    spec = web_tokenizer(tokenizer)
    (result,) = node("tokenize.mjs", {"spec": spec, "texts": ["a \ud83d b"], "maxLength": None})
    assert result[0] == tokenizer.encode(["a \ufffd b"])[0].ids
    assert json.dumps(spec)
