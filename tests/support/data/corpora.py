"""Sentences to encode, and an encoding that is interrupted."""

import random

import pytest

from clearhead.corpus.encode import encode_corpus


def sentences(count, seed=0):
    """Return random sentences of up to 18 words; some are empty."""
    words = [
        "the",
        "old",
        "bridge",
        "was",
        "closed",
        "after",
        "storm",
        "hello",
        "world",
        "this",
        "is",
        "a",
        "test",
        ".",
    ]
    chance = random.Random(seed)
    return [" ".join(chance.choices(words, k=chance.randint(0, 18))) for _ in range(count)]


def interrupted(encoder, corpus, output, options=None, windows=1):
    """Stop a run in the window after the given number of windows of 12 texts, one batch each."""
    calls = 0

    def interrupt(done, tokens, texts):
        nonlocal calls
        calls += 1
        if calls > windows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_corpus(encoder, corpus, output, options, window_texts=12, on_step=interrupt)
