"""Packed sequences against separate ones, in attention and in every encoder family."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models.families import FAMILIES, make

from clearhead import masks, scaled_dot_product
from clearhead.checkpoints import load_encoder
from clearhead.kernels.attention import scaled_dot_product_attention

lengths_of_texts = st.lists(st.integers(1, 20), min_size=1, max_size=5)


@pytest.mark.slow
@given(lengths=lengths_of_texts, seed=st.integers(0, 2**16), causal=st.booleans(), window=st.none() | st.integers(0, 5))
def test_attention(lengths, seed, causal, window):
    torch.manual_seed(seed)
    q, k, v = torch.randn(3, 1, 2, sum(lengths), 4).unbind()
    bias = torch.randn(1, 2, max(lengths), max(lengths))
    mask = masks.Mask(length=sum(lengths), lengths=tuple(lengths), causal=causal, window=window, bias=bias)
    expected, start = [], 0
    for length in lengths:
        own = masks.Mask(length=length, causal=causal, window=window, bias=bias[:, :, :length, :length])
        part = slice(start, start + length)
        expected.append(scaled_dot_product(q[:, :, part], k[:, :, part], v[:, :, part], own)[0])
        start += length
    together = torch.cat(expected, dim=2)
    torch.testing.assert_close(scaled_dot_product(q, k, v, mask)[0], together, atol=1e-5, rtol=1e-5)
    leaf = q.clone().requires_grad_()
    result = scaled_dot_product_attention(leaf, k, v, mask)
    torch.testing.assert_close(result, together, atol=1e-5, rtol=1e-5)
    result.square().sum().backward()
    other = q.clone().requires_grad_()
    scaled_dot_product(other, k, v, mask)[0].square().sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad, atol=1e-5, rtol=1e-5)


@given(lengths=st.lists(st.sampled_from([0, 1, 2, 3, 16, 33]), min_size=1, max_size=8), seed=st.integers(0, 2**16))
def test_values_are_bit_identical_whichever_sequences_are_packed_together(lengths, seed):
    torch.manual_seed(seed)
    q, k, v = torch.randn(3, 1, 2, sum(lengths), 8).unbind()
    with torch.no_grad():
        result = scaled_dot_product_attention(q, k, v, masks.packed(lengths)).split(lengths, dim=2)
        each = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
        for length, parts, values in zip(lengths, each, result, strict=True):
            assert torch.equal(scaled_dot_product_attention(*parts, masks.packed([length])), values)
            if length:
                torch.testing.assert_close(values, scaled_dot_product(*parts)[0], atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    make(request.param, folder)
    return load_encoder(folder)[0]


@pytest.mark.slow
@given(lengths=lengths_of_texts, seed=st.integers(0, 2**16))
@settings(max_examples=12)
def test_packing_padding_and_order_do_not_change_vectors(model, lengths, seed):
    torch.manual_seed(seed)
    texts = [torch.randint(model.config.vocab_size, (length,)) for length in lengths]

    def padded(model, texts, length):
        ids = torch.full((len(texts), length), model.config.pad_id)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
        keep = torch.arange(length) < torch.tensor([len(text) for text in texts])[:, None]
        hidden = model(ids, masks.padding(keep))
        return [row[: len(text)] for row, text in zip(hidden, texts, strict=True)]

    def packed(model):
        return model(torch.cat(texts)[None], masks.packed(lengths))[0].split(lengths)

    double = copy.deepcopy(model).double()
    with torch.inference_mode():
        expected = padded(model, texts, 32)
        order = torch.randperm(len(texts)).tolist()
        shuffled = padded(model, [texts[number] for number in order], 40)
        alone = [padded(model, [text], max(16, len(text)))[0] for text in texts]
        exact = padded(double, texts, 32)
        packed_results = packed(model), packed(double)
    back = [shuffled[order.index(number)] for number in range(len(texts))]
    # the packed kernel adds in another order: in float32 that is a rounding error, which float64 shows to be nothing else
    for results, reference, bound in (
        *((results, expected, 1e-6) for results in (back, alone)),
        (packed_results[0], expected, 1e-5),
        (packed_results[1], exact, 1e-13),
    ):
        for one, other in zip(results, reference, strict=True):
            assert (one.mean(dim=0) - other.mean(dim=0)).norm() / other.mean(dim=0).norm() < bound


def test_mismatched_packed_masks_are_errors():
    with pytest.raises(ValueError, match="5 tokens do not fill 6 keys"):
        masks.Mask(length=6, lengths=(2, 3))
    with pytest.raises(ValueError, match="require a batch of one row"):
        masks.as_mask(masks.packed([2, 3]), batch=2, heads=1, queries=5, keys=5)
    with pytest.raises(ValueError, match="cannot be joined"):
        masks.packed([2, 3]) & masks.packed([3, 2])
