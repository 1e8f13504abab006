"""Kernels in float32: attention over packed sequences, and GELU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models.int8 import needs_kernels
from torch.nn import functional

from clearhead import masks, scaled_dot_product
from clearhead.kernels.attention import attention_backend, scaled_dot_product_attention
from clearhead.kernels.native import library

pytestmark = needs_kernels

LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=6)


def packed_heads(lengths, heads, width, seed=0):
    """Return queries, keys and values (1, H, T, K) as a projection to all three writes them."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(1, sum(lengths), 3, heads, width, generator=generator)
    return [qkv[:, :, part].transpose(1, 2) for part in range(3)]


def native(q, k, v, lengths, scale=None):
    with torch.inference_mode(), attention_backend("native_packed"):
        return scaled_dot_product_attention(q, k, v, masks.packed(lengths), scale=scale)


@given(
    lengths=LENGTHS, heads=st.integers(1, 3), width=st.sampled_from([16, 32, 48]), scale=st.sampled_from([None, 0.3])
)
def test_attention_computes_the_equation(lengths, heads, width, scale):
    q, k, v = packed_heads(lengths, heads, width)
    expected, _ = scaled_dot_product(q, k, v, masks.packed(lengths), scale=scale)
    torch.testing.assert_close(native(q, k, v, lengths, scale), expected, atol=2e-6, rtol=1e-5)


@given(lengths=LENGTHS, seed=st.integers(0, 5))
def test_sequence_does_not_depend_on_those_packed_with_it(lengths, seed):
    parts = packed_heads(lengths, 2, 16, seed)
    together = native(*parts, lengths).split(lengths, dim=2)
    for index, alone in enumerate(zip(*(part.split(lengths, dim=2) for part in parts), strict=True)):
        assert torch.equal(native(*alone, [lengths[index]]), together[index])


def test_nan_stays_in_its_sequence():
    q, k, v = packed_heads([5, 20], 2, 16)
    k[0, 0, 3] = torch.nan
    values = native(q, k, v, [5, 20])
    assert values[0, 0, :5].isnan().all()
    assert values[0, 1].isfinite().all()
    assert values[0, 0, 5:].isfinite().all()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 40_000])
def test_gelu(size):
    isa = library.isa()
    x = torch.linspace(-20, 20, size)
    torch.testing.assert_close(library.gelu(x, isa), functional.gelu(x.double()).float(), atol=5e-7, rtol=0)


def test_gelu_of_values_that_are_not_finite():
    assert library.gelu(torch.tensor([torch.nan, torch.inf, -torch.inf]), library.isa()).isnan().all()


@pytest.mark.parametrize("isa", library.supported())
def test_instruction_sets_give_the_same_bits(isa):
    q, k, v = packed_heads([7, 33], 2, 32)
    x, lengths = torch.randn(3, 50) * 4, torch.tensor([7, 33], dtype=torch.int32)
    expected = [library.gelu(x, "avx2"), library.packed_attention(q[0], k[0], v[0], lengths, 0.2, "avx2")]
    for one, other in zip(
        expected, [library.gelu(x, isa), library.packed_attention(q[0], k[0], v[0], lengths, 0.2, isa)], strict=True
    ):
        assert torch.equal(one, other)
