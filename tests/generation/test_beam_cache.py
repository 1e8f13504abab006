"""The beams of a sentence share a cache row, with the results of separate rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Decoder, DecoderCache, masks
from clearhead.generation.beam_cache import BeamDecoderCache

seeds = st.integers(0, 2**16)


@pytest.mark.slow
@given(seeds, st.integers(1, 3), st.integers(1, 4), st.integers(0, 3), st.integers(1, 12), st.booleans())
def test_beams_that_share_a_cache_row_equal_separate_rows(seed, sentences, num_beams, prompt, steps, relative):
    torch.manual_seed(seed)
    decoder = Decoder(8, 12, 2, 0.0, 2, relative_buckets=6 if relative else 0, relative_max_distance=9).eval()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    memory, shared, own = torch.randn(sentences, 3, 8), BeamDecoderCache(2), DecoderCache(2)
    length = prompt
    with torch.no_grad():
        if prompt:
            x = torch.randn(sentences, prompt, 8)
            outputs = decoder(x, memory, masks.causal(prompt), None, shared)
            expected = decoder(x.repeat_interleave(num_beams, dim=0), memory, masks.causal(prompt), None, own)
            torch.testing.assert_close(outputs.repeat_interleave(num_beams, dim=0), expected, atol=2e-5, rtol=2e-5)
        shared.expand_beams(num_beams)
        for _ in range(steps):
            new = int(torch.randint(1, 3, ()))
            length += new
            x, mask = torch.randn(len(memory) * num_beams, new, 8), masks.causal(length)
            outputs = decoder(x, memory, mask, None, shared)
            torch.testing.assert_close(outputs, decoder(x, memory, mask, None, own), atol=2e-5, rtol=2e-5)
            assert shared.length == own.length == length
            alive = int(torch.randint(1, num_beams + 1, ()))  # the fewer continue, the more slots are dead
            rows = torch.randint(alive, (len(memory), num_beams)) + torch.arange(len(memory))[:, None] * num_beams
            shared.reorder(rows.flatten())
            own.reorder(rows.flatten())
            if len(memory) > 1 and torch.rand(()) < 0.5:
                staying = torch.randperm(len(memory))[: len(memory) - 1]
                rows = (staying[:, None] * num_beams + torch.arange(num_beams)).flatten()
                memory = memory[staying]
                shared.reorder(rows, staying)
                own.reorder(rows, staying)


def test_slots_outside_of_every_ancestry_are_dropped():
    decoder, cache, memory = Decoder(8, 12, 2, 0.0, 2).eval(), BeamDecoderCache(2), torch.randn(2, 3, 8)
    with torch.no_grad():
        decoder(torch.randn(2, 5, 8), memory, masks.causal(5), None, cache)
        cache.expand_beams(4)
        assert cache.layers[0].attention.num_slots == 5  # tokens common to all beams are stored once
        for step in range(40):
            decoder(torch.randn(8, 1, 8), memory, masks.causal(6 + step), None, cache)
            cache.reorder(torch.tensor([1, 1, 1, 1, 6, 6, 6, 6]))
            live = cache.length  # one slot per token
            assert live <= cache.layers[1].attention.num_slots <= max(1.5 * live, 9)
            assert cache.layers[1].attention.keys.shape == (2, 2, cache.layers[1].attention.num_slots, 4)
