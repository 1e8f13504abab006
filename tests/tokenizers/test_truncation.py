"""Only the beginning of a long text is tokenized, with the tokens of the whole text."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models import spm
from support.models.tiny import make_bert
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from clearhead.checkpoints import load_tokenizer
from clearhead.tokenizers import truncation
from clearhead.tokenizers.bpe import train_bpe
from clearhead.tokenizers.tokenizer import Tokenizer

WORDS = [
    "the",
    "old",
    "bridge",
    "the old",
    "old bridge",
    "Straße",
    "naïve",
    "ﬁne",
    "x²",
    "12",
    "Ǆ",
    "한국어",
    "日本語",
    "ไทยำ",
    "Σίσυφος",
]
STRANGE = [
    *(" ", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\x00", "\x1f", "▁"),
    *("\u0301", " \u0301", "a\u0301", "\u0600 ", "½ ", "´", "'s", " 's", ".", "?!", "-", "_", "(", "😀", "👩‍👩‍👧"),
    *("[MASK]", "[SEP]", "<mask>", " <mask> ", "</s>", "<s>", "<unk>", ">>deu<<", ">>a b<<", "__de__", "de_DE", "<"),
    *("word" * 40, "ab" * 60, "日" * 50, "." * 50),
]
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.sampled_from(STRANGE), st.text(max_size=4)), max_size=40)
JOINED = st.builds(lambda parts, joint: joint.join(parts), TEXTS, st.sampled_from([" ", " ", ""]))
LETTERS = st.text("ab 1ﬁé´", min_size=20, max_size=60)
CORPUS = ["the old bridge was closed after the storm", "naïve Straße, x² 12 ½", "日本語 한국어 word word ab ab ab"] * 4


def trained(model, trainer, normalizer, pre_tokenizer, added=()):
    backend = Backend(model)
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizer
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(list(added))
    return Tokenizer(backend)


def unigram():
    return trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)


def bpe(**options):
    return trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<mask>"], show_progress=False, **options)


def replace(pattern, by="▁"):
    return normalizers.Replace(pattern, by)


def built():
    """Return tokenizers by name, and whether a beginning of a text is sufficient."""
    pre, norm = pre_tokenizers, normalizers
    nmt = norm.Sequence([norm.Nmt(), norm.NFKC(), replace(Regex(" {2,}"), " ")])
    word_piece = trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]"], show_progress=False)
    byte_level = bpe(initial_alphabet=pre.ByteLevel.alphabet())
    split = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()])
    own = models.BPE(unk_token="<unk>")
    return {
        "wordpiece": (
            trained(models.WordPiece(unk_token="[UNK]"), word_piece, norm.BertNormalizer(), pre.BertPreTokenizer()),
            True,
        ),
        "byte level": (trained(models.BPE(), byte_level, None, pre.ByteLevel(add_prefix_space=False)), True),
        "byte level, NFC": (trained(models.BPE(), byte_level, norm.NFC(), pre.ByteLevel()), True),
        "unigram": (trained(models.Unigram(), unigram(), nmt, pre.Metaspace()), True),
        "unigram, split": (trained(models.Unigram(), unigram(), nmt, split), True),
        "mask with blanks": (
            trained(own, bpe(), norm.Lowercase(), pre.Metaspace(), [AddedToken("<mask>", lstrip=True, rstrip=True)]),
            True,
        ),
        "token of two words": (trained(own, bpe(), None, pre.Metaspace(), ["old bridge"]), False),
        "not split": (trained(own, bpe(), replace(" "), None), False),
        "metaspace, not split": (trained(own, bpe(), None, pre.Metaspace(split=False)), False),
        "byte level, no expression": (trained(models.BPE(), byte_level, None, pre.ByteLevel(use_regex=False)), False),
        "own expression": (trained(own, bpe(), None, pre.Split(Regex(r"\w+ \w+|\s"), "isolated")), False),
        "replaces two words": (trained(own, bpe(), replace("the old", "x"), pre.Whitespace()), False),
        "dropout": (trained(models.BPE(dropout=0.5, unk_token="<unk>"), bpe(), None, pre.Whitespace()), False),
    }


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    tokenizers = built()
    (folder / "bert").mkdir()
    tokenizers["bert"] = (Tokenizer.from_folder(make_bert(folder / "bert")), True)
    tokenizers["own"] = (train_bpe(CORPUS, vocab_size=400), True)
    tokenizers["own encoder"] = (train_bpe(CORPUS, vocab_size=400, architecture="encoder", lowercase=True), True)
    for family, write in {"marian": spm.marian, "m2m_100": spm.m2m100, "bart": spm.bart}.items():
        (folder / family).mkdir()
        write(folder / family)
        tokenizers[family] = (load_tokenizer(folder / family, family), True)
    for family in ("t5", "pegasus", "mbart", "nllb"):
        (folder / family).mkdir()
        spm.plain(family, folder / family, **({"src_lang": "en_XX"} if family == "mbart" else {}))
        tokenizers[family] = (load_tokenizer(folder / family, "m2m_100" if family == "nllb" else family), True)
    return tokenizers


NAMES = [*built(), "bert", "own", "own encoder", "marian", "m2m_100", "bart", "t5", "pegasus", "mbart", "nllb"]


def whole(tokenizer, texts, length):
    """Return the truncated ids of the whole texts, and whether they were truncated."""
    special = 0 if isinstance(tokenizer, Tokenizer) else len(tokenizer.prefix_ids) + len(tokenizer.suffix_ids)
    return [(tokens.ids, tokens.truncated) for tokens in tokenizer._encode(texts, length - special)]


@pytest.fixture
def short():
    """Start with one character for each token, so that most splits are near the last token, and beginnings grow."""
    before, truncation._CHARACTERS_PER_TOKEN = truncation._CHARACTERS_PER_TOKEN, 1
    yield
    truncation._CHARACTERS_PER_TOKEN = before


@pytest.mark.slow
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "dropout"])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(JOINED | LETTERS, min_size=1, max_size=3), length=st.integers(4, 9))
def test_tokens_equal_those_of_the_whole_text(tokenizers, name, texts, length):
    tokenizer, _ = tokenizers[name]
    result = [(tokens.ids, tokens.truncated) for tokens in tokenizer.encode(texts, length)]
    assert result == whole(tokenizer, texts, length)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_used_beginning_is_tokenized(tokenizers, name, monkeypatch):
    tokenizer, cuts = tokenizers[name]
    handed = []
    original = type(tokenizer)._encode

    def counted(self, texts, room):
        handed.append(sum(map(len, texts)))
        return original(self, texts, room)

    monkeypatch.setattr(type(tokenizer), "_encode", counted)
    text = "the old bridge was closed " * 10_000
    (tokens,) = tokenizer.encode([text], 20)
    assert (len(tokens.ids), tokens.truncated) == (20, True)
    assert (sum(handed) < 2000) == cuts


def test_truncated_text_grows_until_it_has_enough_tokens(tokenizers):
    tokenizer, _ = tokenizers["bert"]
    blank = ("a" * 300 + " ") * 40  # each an unknown word
    texts = [blank + "hello world " * 400, "\x00" * 5000 + " a b " * 5000, "hello " + "\u200b" * 3000]
    result = [(tokens.ids, tokens.truncated) for tokens in tokenizer.encode(texts, 60)]
    assert result == whole(tokenizer, texts, 60)


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_lone_surrogate_after_the_first_chunk(tokenizers, name):
    tokenizer, _ = tokenizers[name]
    with pytest.raises(ValueError, match="text 1 has half a surrogate pair at character 60000"):
        tokenizer.encode(["hello", "hello " * 10_000 + "\ud800"], 10)


def test_unknown_component_is_not_split():
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    assert not truncation.splits_at_spaces(backend)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits()])
    assert truncation.splits_at_spaces(backend)
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), replace(Regex("(a b)+"), "x")])
    assert not truncation.splits_at_spaces(backend)
    assert not truncation.split_rules_of_pieces(["▁", "a▁b"])
    assert not truncation.split_rules_of_pieces(["▁a"])
    assert truncation.split_rules_of_pieces(["▁", "▁▁", "▁a", "b"])


@pytest.mark.parametrize("text", ["a" * 300_000, "日本語" * 100_000, "日" + "ab1" * 100_000 + "日" * 9])
def test_text_without_spaces_is_split_if_certain(tokenizers, text, monkeypatch):
    tokenizer, _ = tokenizers["bert"]
    expected = whole(tokenizer, [text], 20)
    handed = []
    original = Tokenizer._encode
    monkeypatch.setattr(
        Tokenizer, "_encode", lambda self, texts, room: [handed.extend(texts), original(self, texts, room)][1]
    )
    (tokens,) = tokenizer.encode([text], 20)
    assert [(tokens.ids, tokens.truncated)] == expected
    assert sum(map(len, handed)) < 2000


def test_unsplittable_text_is_refused_by_the_memory_check(tokenizers, monkeypatch):
    tokenizer, _ = tokenizers["byte level"]
    monkeypatch.setattr("clearhead.memory.available_memory", lambda device=None: 2**30)
    with pytest.raises(ValueError, match=r"10,000,000 characters .* needs at least 1\.7 GiB of memory; 1\.0 GiB"):
        tokenizer.encode(["a" * 10_000_000], 20)
