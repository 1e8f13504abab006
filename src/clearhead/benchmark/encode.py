"""The contest of encoders: the same texts to vectors."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from clearhead.benchmark.runner import Candidate, Work
from clearhead.memory import check_memory
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.allocator import configure_allocator


def clearhead_worker(model: str, precision: str, threads: int) -> Work:
    """Clearhead's work: texts to vectors of length 1."""
    configure_allocator()
    torch.set_num_threads(threads)
    encoder = TextEncoder.from_pretrained(model, precision=precision, device="cpu")
    return lambda texts: encoder.encode(texts, normalize=True)


def contestants(model: str, threads: int) -> dict[str, Candidate]:
    """Clearhead in each of its precisions, the exact one first."""
    return {
        f"clearhead {precision}": Candidate(clearhead_worker, (model, precision, threads))
        for precision in ("float32", "bfloat16")
    }


def synthetic(encoder: TextEncoder, number: int, length: int, seed: int = 0) -> list[str]:
    """Texts of about so many tokens, half as many to half as many again, of the model's own words."""
    check_memory(number * (16 * length + 200), f"a list of {number} texts", "Use a smaller --number or --length.")
    chance, vocabulary = random.Random(seed), encoder.model.config.vocab_size
    lengths = [chance.randint(max(1, length // 2), max(1, length + length // 2)) for _ in range(number)]
    return [encoder.tokenizer.decode([chance.randrange(vocabulary) for _ in range(words)]) for words in lengths]


def cosines(outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The smallest cosine of each contestant's vectors with the first one's."""
    first = next(iter(outputs.values()))
    return {name: float((found * first).sum(axis=1).min()) for name, found in outputs.items()}


def tokens_of(encoder: TextEncoder, texts: Sequence[str]) -> dict[str, int]:
    """How many tokens each text has."""
    return {text: len(tokens.ids) for text, tokens in zip(texts, encoder.tokenize(texts), strict=True)}
