"""Benchmark of encoders: texts to vectors."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from clearhead.benchmark.runner import Candidate, Worker
from clearhead.memory import check_memory
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.precision import cpu_precisions
from clearhead.runtime.process import tune_process


def clearhead_worker(model: str, precision: str, threads: int) -> Worker:
    """Build a worker that encodes texts to normalized vectors."""
    tune_process()
    torch.set_num_threads(threads)
    encoder = TextEncoder.from_pretrained(model, precision=precision, device="cpu")
    return lambda texts: encoder.encode(texts, normalize=True)


def candidates(model: str, threads: int) -> dict[str, Candidate]:
    """Return one candidate per precision, float32 first."""
    return {
        f"clearhead {precision}": Candidate(clearhead_worker, (model, precision, threads))
        for precision in cpu_precisions()
    }


def synthetic(encoder: TextEncoder, count: int, length: int, seed: int = 0) -> list[str]:
    """Return random texts from the model's vocabulary, of 0.5 to 1.5 times `length` tokens."""
    check_memory(count * (16 * length + 200), f"a list of {count} texts", "Use a smaller --number or --length.")
    generator, vocabulary = random.Random(seed), encoder.model.config.vocab_size
    lengths = [generator.randint(max(1, length // 2), max(1, length + length // 2)) for _ in range(count)]
    return [encoder.tokenizer.decode([generator.randrange(vocabulary) for _ in range(words)]) for words in lengths]


def min_cosines(outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the smallest cosine between each candidate's vectors and those of the first."""
    first = next(iter(outputs.values()))
    return {name: float((vectors * first).sum(axis=1).min()) for name, vectors in outputs.items()}


def token_counts(encoder: TextEncoder, texts: Sequence[str]) -> dict[str, int]:
    """Return the number of tokens of each text."""
    return {text: len(tokens.ids) for text, tokens in zip(texts, encoder.tokenize(texts), strict=True)}
