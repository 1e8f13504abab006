"""The contest of encoder–decoders: the same sources to targets of the same length."""

import random
from collections.abc import Mapping, Sequence

import torch

from clearhead.bench.contest import Contestant, Work
from clearhead.checkpoints import load_seq2seq
from clearhead.checkpoints.directory import find
from clearhead.generation.search import Source, search
from clearhead.generation.settings import GenerationConfig
from clearhead.memory import check_memory
from clearhead.run.precision import Precision, dtype_for, sibling

Ids = list[int]


def ours(model: str, precision: Precision, threads: int, beams: int, steps: int) -> Work:
    """Clearhead's work: sources, as ids, to the ids of targets of so many tokens."""
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    exact, _ = load_seq2seq(find(model))
    runner = sibling(exact.eval(), dtype_for(precision, device), device)
    settings = GenerationConfig(beam_size=beams, min_new_tokens=steps, max_new_tokens=steps)
    prompt = (exact.config.start_id,)

    def work(sources: Sequence[Ids]) -> list[tuple[int, ...]]:
        return [best.ids for best, *_ in search(runner, [Source(ids, prompt) for ids in sources], settings)]

    return work


def contestants(model: str, threads: int, beams: int, steps: int) -> dict[str, Contestant]:
    """Clearhead in each of its precisions, the exact one first."""
    return {
        f"clearhead {precision}": Contestant(ours, (model, precision, threads, beams, steps))
        for precision in ("float32", "bfloat16")
    }


def made_up(model: str, number: int, length: int, seed: int = 0) -> list[Ids]:
    """Distinct sources of about so many tokens, half as many to half as many again, and an end token."""
    check_memory(number * (8 * length + 200), f"a list of {number} sources", "Use a smaller --number or --length.")
    config = load_seq2seq(find(model))[0].config
    special = {config.pad_id, config.start_id, *config.eos_ids}
    words, chance = [number for number in range(config.vocab_size) if number not in special], random.Random(seed)
    lengths = [chance.randint(max(1, length // 2), max(1, length + length // 2)) for _ in range(number)]
    return [[*chance.choices(words, k=size), config.eos_ids[0]] for size in lengths]


def same(outputs: Mapping[str, list[tuple[int, ...]]]) -> dict[str, int]:
    """How many of each contestant's outputs are the first one's, token for token."""
    first = next(iter(outputs.values()))
    return {name: sum(a == b for a, b in zip(found, first, strict=True)) for name, found in outputs.items()}
