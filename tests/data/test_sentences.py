"""Splitting of long texts at sentence boundaries, without loss and within the limit."""

from hypothesis import given
from hypothesis import strategies as st

from clearhead.data.sentences import sentences, split_by_tokens


def words(texts):
    return [len(text.split()) for text in texts]


def test_sentences():
    text = 'It rained. "Did it?" It did! Dr. No said: 3.5 mm…\n\nA title\n\n今日は。雨です。 ok'
    assert sentences(text) == [
        "It rained.",
        '"Did it?"',
        "It did!",
        "Dr. No said: 3.5 mm…",
        "A title",
        "今日は。",
        "雨です。",
        "ok",
    ]
    assert sentences("") == sentences(" \n ") == []


@given(st.text(alphabet="ab .!?\n", max_size=80))
def test_only_whitespace_is_lost(text):
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 12))
def test_parts_are_complete_and_of_similar_length(lengths, limit):
    text = " ".join(" ".join(["w"] * length) + "." for length in lengths)
    parts = split_by_tokens(text, words, limit)
    assert all(count <= limit for count in words(parts))
    assert " ".join(parts).split() == text.split()
    if max(lengths) <= limit:  # no sentence is cut
        assert all(part.endswith(".") for part in parts)
    if max(lengths) == 1:
        fewest = -(-len(lengths) // limit)
        assert len(parts) == fewest
        assert max(words(parts)) - min(words(parts)) <= 1


def test_overlong_word_is_split():
    assert split_by_tokens("aaaabbbb", lambda texts: [len(text) for text in texts], 4) == ["aaaa", "bbbb"]
