"""Benchmark of generation: sources to targets of a fixed length."""

import random
from collections.abc import Mapping, Sequence

import torch

from clearhead.benchmark.runner import Candidate, Worker
from clearhead.checkpoints import load_seq2seq
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import generate
from clearhead.generation.strategy import EncodedSource
from clearhead.io.hub import resolve_model
from clearhead.memory import check_memory
from clearhead.runtime.int8.files import Int8Source
from clearhead.runtime.int8.seq2seq import inference_seq2seq
from clearhead.runtime.precision import choose_precision, cpu_precisions
from clearhead.runtime.process import tune_process

Ids = list[int]


def clearhead_worker(model: str, precision: str, threads: int, beams: int, steps: int) -> Worker:
    """Build a worker that generates targets of exactly `steps` tokens from source ids."""
    tune_process()
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    exact, _ = load_seq2seq(resolve_model(model))
    prompt = (exact.config.start_id,)

    def calibrate() -> None:
        sources = [EncodedSource(ids, prompt) for ids in synthetic(model, 16, 20, seed=1)]
        generate(exact, sources, GenerationConfig(beam_size=1, max_new_tokens=steps))

    runner = inference_seq2seq(exact.eval(), choose_precision(precision, device), device, Int8Source(calibrate))
    settings = GenerationConfig(beam_size=beams, min_new_tokens=steps, max_new_tokens=steps)

    def work(sources: Sequence[Ids]) -> list[tuple[int, ...]]:
        return [best.ids for best, *_ in generate(runner, [EncodedSource(ids, prompt) for ids in sources], settings)]

    return work


def candidates(model: str, threads: int, beams: int, steps: int) -> dict[str, Candidate]:
    """Return one candidate per precision, float32 first."""
    return {
        f"clearhead {precision}": Candidate(clearhead_worker, (model, precision, threads, beams, steps))
        for precision in cpu_precisions()
    }


def synthetic(model: str, number: int, length: int, seed: int = 0) -> list[Ids]:
    """Return random sources of 0.5 to 1.5 times `length` tokens and an end token."""
    check_memory(number * (8 * length + 200), f"a list of {number} sources", "Use a smaller --number or --length.")
    config = load_seq2seq(resolve_model(model))[0].config
    special = {config.pad_id, config.start_id, *config.eos_ids}
    words, generator = [number for number in range(config.vocab_size) if number not in special], random.Random(seed)
    lengths = [generator.randint(max(1, length // 2), max(1, length + length // 2)) for _ in range(number)]
    return [[*generator.choices(words, k=size), config.eos_ids[0]] for size in lengths]


def exact_matches(outputs: Mapping[str, list[tuple[int, ...]]]) -> dict[str, int]:
    """Count the outputs of each candidate that equal those of the first, token for token."""
    first = next(iter(outputs.values()))
    return {name: sum(a == b for a, b in zip(own, first, strict=True)) for name, own in outputs.items()}
