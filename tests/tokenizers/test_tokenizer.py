"""Lines, tokenizers and batches."""

import inspect
import io
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models.tiny import VOCABULARY
from transformers import AutoTokenizer, BertTokenizer

from clearhead.data.batching import token_batches
from clearhead.data.corpus import Corpus
from clearhead.tokenizers.tokenizer import Tokenizer

line = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(line, min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_lines_round_trip(tmp_path_factory, lines, end, ended):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    body = end.join(lines) + (end if ended else "")
    path.write_bytes(b"\xef\xbb\xbf" + body.encode())
    expected = body.split("\n")
    expected = [text.removesuffix("\r") for text in expected[:-1]] + ([expected[-1]] if expected[-1] else [])
    assert list(Corpus([path])) == expected


def test_only_lf_and_crlf_end_a_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\x0b\x0c\x1c\x85\u2028still one\ntwo\rstill two\n\nfour", encoding="utf-8", newline="")
    assert list(Corpus([path])) == ["one\x0b\x0c\x1c\x85\u2028still one", "two\rstill two", "", "four"]


def test_invalid_utf8_names_the_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nb\xffd\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 2: not UTF-8 at byte 2 \(0xff\)"):
        list(Corpus([path]))
    assert list(Corpus([path], errors="replace")) == ["good", "b\ufffdd"]


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert list(Corpus(["-"])) == ["a", "b"]


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 600))
def test_batches_contain_each_text_once_within_the_limit(lengths, budget):
    batches = list(token_batches(lengths, budget))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= budget
        assert longest <= 32 or all(2 * lengths[index] >= longest for index in batch)
    order = [lengths[index] for batch in batches for index in batch]
    assert order == sorted(order, reverse=True)


def test_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="batch_tokens must be at least 1; got 0"):
        list(token_batches([1], 0))


@pytest.mark.parametrize("source", ["tokenizer.json", "vocab.txt"])
def test_tokens_equal_transformers_from_either_file(tiny_bert, tmp_path, source):
    theirs = BertTokenizer(str(tiny_bert / "vocab.txt"))
    (tmp_path / source).write_bytes((tiny_bert / source).read_bytes())
    ours = Tokenizer.from_folder(tmp_path)

    @given(st.lists(st.one_of(st.text(), st.text("abc hello [PAD]é中"), st.sampled_from(VOCABULARY)), max_size=4))
    def check(texts):
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        assert [tokens.ids for tokens in ours.encode(texts)] == [theirs(text)["input_ids"] for text in texts]
        cut = [theirs(text, truncation=True, max_length=5)["input_ids"] for text in texts]
        truncated = ours.encode(texts, max_length=5)
        assert [tokens.ids for tokens in truncated] == cut
        assert [tokens.truncated for tokens in truncated] == [len(theirs(text)["input_ids"]) > 5 for text in texts]

    check()
    assert ours.ids_to_tokens(ours.encode(["Hello, worlds"])[0].ids) == ["[CLS]", "hello", ",", "world", "##s", "[SEP]"]


@pytest.mark.parity
@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
@pytest.mark.parametrize("value", [True, False])
def test_settings_of_the_normalizer_are_those_of_transformers(minilm_folder, tmp_path, key, value):
    shutil.copytree(minilm_folder, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "model"), Tokenizer.from_folder(tmp_path / "model")
    for text in ("Hello Wörld, ÉTÉ", "今天天气"):
        assert list(ours.encode([text])[0].ids) == theirs(text)["input_ids"]


def test_truncation_on_the_left_is_refused(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation_side": "left"}))
    with pytest.raises(ValueError, match="tokenizer_config.json has truncation_side='left', which is not supported"):
        Tokenizer.from_folder(tmp_path / "model")


def test_threads_may_share_a_tokenizer(minilm):
    tokenizer = minilm.tokenizer
    content = tokenizer.as_json()

    def tokenized(max_length):
        rows = [tokenizer.encode(["hello world " * 200] * 20, max_length) for _ in range(20)]
        assert tokenizer.as_json() == content
        return {len(tokens.ids) for row in rows for tokens in row}

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(tokenized, [5, 9, 40, None])) == [{5}, {9}, {40}, {402}]


def test_fixed_padding_and_truncation_are_disabled(minilm):
    (tokens,) = minilm.tokenizer.encode(["word " * 200])
    assert len(tokens.ids) == 202
    assert len(minilm.tokenize(["word " * 2000])[0].ids) == 256


def test_invalid_texts(minilm):
    tokenizer = minilm.tokenizer
    with pytest.raises(ValueError, match="text 1 is a int"):
        inspect.unwrap(Tokenizer.encode)(tokenizer, ["a", 3])
    with pytest.raises(ValueError, match="text 1 has half a surrogate pair at character 2"):
        tokenizer.encode(["a", "ab\ud800"])
    with pytest.raises(ValueError, match="greater than 2, the number of special tokens"):
        tokenizer.encode(["a"], max_length=2)
