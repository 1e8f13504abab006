"""The contest of encoder–decoders: the same sources to targets of the same length."""

import random
from collections.abc import Mapping, Sequence

import torch

from clearhead.benchmark.runner import Candidate, Work
from clearhead.checkpoints import load_seq2seq
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import generate
from clearhead.generation.strategy import EncodedSource
from clearhead.io.hub import resolve_model
from clearhead.memory import check_memory
from clearhead.runtime.allocator import configure_allocator
from clearhead.runtime.inference_copy import inference_copy

Ids = list[int]


def clearhead_worker(model: str, precision: str, threads: int, beams: int, steps: int) -> Work:
    """Clearhead's work: sources, as ids, to the ids of targets of so many tokens."""
    configure_allocator()
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    exact, _ = load_seq2seq(resolve_model(model))
    runner = inference_copy(exact.eval(), precision, device)
    settings = GenerationConfig(beam_size=beams, min_new_tokens=steps, max_new_tokens=steps)
    prompt = (exact.config.start_id,)

    def work(sources: Sequence[Ids]) -> list[tuple[int, ...]]:
        return [best.ids for best, *_ in generate(runner, [EncodedSource(ids, prompt) for ids in sources], settings)]

    return work


def contestants(model: str, threads: int, beams: int, steps: int) -> dict[str, Candidate]:
    """Clearhead in each of its precisions, the exact one first."""
    return {
        f"clearhead {precision}": Candidate(clearhead_worker, (model, precision, threads, beams, steps))
        for precision in ("float32", "bfloat16")
    }


def synthetic(model: str, number: int, length: int, seed: int = 0) -> list[Ids]:
    """Distinct sources of about so many tokens, half as many to half as many again, and an end token."""
    check_memory(number * (8 * length + 200), f"a list of {number} sources", "Use a smaller --number or --length.")
    config = load_seq2seq(resolve_model(model))[0].config
    special = {config.pad_id, config.start_id, *config.eos_ids}
    words, chance = [number for number in range(config.vocab_size) if number not in special], random.Random(seed)
    lengths = [chance.randint(max(1, length // 2), max(1, length + length // 2)) for _ in range(number)]
    return [[*chance.choices(words, k=size), config.eos_ids[0]] for size in lengths]


def exact_matches(outputs: Mapping[str, list[tuple[int, ...]]]) -> dict[str, int]:
    """How many of each contestant's outputs are the first one's, token for token."""
    first = next(iter(outputs.values()))
    return {name: sum(a == b for a, b in zip(found, first, strict=True)) for name, found in outputs.items()}
