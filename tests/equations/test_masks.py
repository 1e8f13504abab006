"""Masks: polarity, symbolic and dense forms, conversions and errors."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attention import dense, problems

from clearhead import MultiHeadAttention, masks, scaled_dot_product


@given(problems())
def test_dense_masks_equal_the_definition(problem):
    q, k, _, mask = problem
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    checked = masks.as_mask(mask, batch=shape[0], heads=shape[1], queries=shape[2], keys=shape[3])
    result = masks.additive(checked, queries=shape[2]).expand(shape)
    torch.testing.assert_close(result, dense(mask, shape[2], shape[3], shape[0], shape[1]))


def test_the_square_subsequent_mask():
    inf = float("-inf")
    expected = torch.tensor([[0.0, inf, inf], [0.0, 0.0, inf], [0.0, 0.0, 0.0]])
    assert torch.equal(masks.additive(masks.causal(3)), expected)
    assert torch.equal(masks.additive(masks.causal(3)), torch.nn.Transformer.generate_square_subsequent_mask(3))


def test_last_query_is_at_the_last_key():
    step = masks.additive(masks.causal(4), queries=1)
    assert torch.equal(step, torch.zeros(1, 4))


def test_long_causal_padding_mask_stores_no_matrix():
    mask = masks.padding(torch.ones(2, 8192, dtype=torch.bool)) & masks.causal(8192) & masks.window(8192, 128)
    assert sum(part.numel() for part in (mask.keep_BM, mask.bias) if part is not None) == 2 * 8192
    assert masks.as_mask(mask, batch=2, heads=8, queries=8192, keys=8192) is mask


@given(st.integers(1, 6), st.integers(0, 2**16))
def test_conjunction_is_commutative_and_keeps_both(length, seed):
    generator = torch.Generator().manual_seed(seed)
    one = masks.padding(torch.rand((2, length), generator=generator) < 0.5)
    other = masks.causal(length) & masks.Mask(length=length, bias=torch.randn(length, length, generator=generator))
    both = masks.additive(one & other)
    assert torch.equal(both, masks.additive(other & one))
    torch.testing.assert_close(both, masks.additive(one).expand_as(both) + masks.additive(other))


@given(problems())
def test_torch_nn_round_trip(problem):
    q, k, _, mask = problem
    batch, heads, queries, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    checked = masks.as_mask(mask, batch=batch, heads=heads, queries=queries, keys=keys)
    attn_mask, key_padding = masks.to_torch_nn(checked, batch=batch, queries=queries, keys=keys, num_heads=heads)
    assert attn_mask is None or attn_mask.shape in ((queries, keys), (batch * heads, queries, keys))
    assert key_padding is None or key_padding.shape == (batch, keys)
    back = masks.from_torch_nn(attn_mask, key_padding, num_heads=heads)
    shape = (batch, heads, queries, keys)
    torch.testing.assert_close(masks.additive(back, queries).expand(shape), dense(mask, queries, keys, batch, heads))


def test_torch_nn_polarity_is_inverted():
    blocked = torch.tensor([[False, True]])
    assert torch.equal(masks.from_torch_nn(None, blocked).keep_BM, ~blocked)
    attn_mask, _ = masks.to_torch_nn(masks.causal(2), batch=1, queries=2, keys=2)
    assert attn_mask.tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 3, 4, 4), (1, 4), (2, 1, 1, 4)])
def test_torch_nn_accepts_converted_masks(shape):
    allowed = torch.rand(shape) < 0.5
    allowed[..., 0] = True
    theirs = torch.nn.MultiheadAttention(6, 3, batch_first=True)
    x = torch.randn(2, 4, 6)
    attn_mask, padding = masks.to_torch_nn(allowed, batch=2, queries=4, keys=4, num_heads=3)
    result, _ = theirs(x, x, x, attn_mask=attn_mask, key_padding_mask=padding)
    ours = MultiHeadAttention(6, 3)
    ours.load_state_dict(
        {"qkv.weight": theirs.in_proj_weight, "qkv.bias": theirs.in_proj_bias}
        | {"out.weight": theirs.out_proj.weight, "out.bias": theirs.out_proj.bias}
    )
    torch.testing.assert_close(ours(x, allowed), result, atol=1e-5, rtol=1e-5)


def test_invalid_masks_are_errors():
    with pytest.raises(ValueError, match="got int64"):
        masks.Mask(length=4, bias=torch.tensor([[1, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r"\(batch, 4\).*got bool of shape \(1, 3\)"):
        masks.Mask(length=4, keep_BM=torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match="&"):
        masks.causal(4) & torch.ones(4, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="got a list"):
        inspect.unwrap(masks.as_mask)([[1]], batch=1, heads=1, queries=1, keys=1)
    with pytest.raises(ValueError, match="0 and 1"):
        masks.from_transformers(torch.zeros(1, 3))


def test_transformers_polarity():
    assert masks.from_transformers(torch.tensor([[1, 1, 0]])).keep_BM.tolist() == [[True, True, False]]


def test_positions_count_from_the_first_kept_key():
    keep = torch.tensor([[False, False, True, True], [True, True, True, False]])
    assert masks.padding(keep).positions().tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    # the same padding as a (B, 1, 1, M) tensor, of bools and of 0 and −∞, and as torch.nn's float padding
    added = masks.additive(masks.padding(keep))
    for tensor in (keep[:, None, None], added):
        same = masks.as_mask(tensor, batch=2, heads=1, queries=4, keys=4)
        assert same.positions().tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert masks.from_torch_nn(None, added[:, 0, 0]).positions().tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    # other floats are a bias
    assert masks.as_mask(added.clamp(min=-1e9), batch=2, heads=1, queries=4, keys=4).positions() is None
    assert masks.padding(torch.ones(2, 0, dtype=torch.bool)).positions() is None


def test_mask_of_two_dimensions_has_queries_and_keys():
    """Also where a batch has as many texts as tokens, and a padding mask would have the same shape."""
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    x, attention = torch.randn(3, 3, 8), MultiHeadAttention(8, 4)
    torch.testing.assert_close(attention(x, mask), attention(x, masks.causal(3)))
    assert not torch.allclose(attention(x, mask), attention(x, masks.padding(mask)))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(3, 3, dtype=torch.long), "got int64 of shape (3, 3)"),
        (torch.ones(2, 3, dtype=torch.int32), "from_transformers"),
        (torch.ones(2, 3, dtype=torch.bool), "(queries, keys)"),
        (torch.ones(3, dtype=torch.bool), "got bool of shape (3,)"),
        (torch.ones(5, 1, 3, 3, dtype=torch.bool), "(2, 4, 3, 3)"),
        (torch.ones(1, 2, 1, 3, 3), "got float32"),
        (masks.causal(4), "4 keys"),
        (masks.padding(torch.ones(3, 3, dtype=torch.bool)), "3 sequences"),
    ],
)
def test_errors_of_wrong_masks_describe_them(mask, words):
    x = torch.randn(2, 3, 8)
    with pytest.raises(ValueError, match="mask") as error:
        MultiHeadAttention(8, 4)(x, mask)
    assert words in str(error.value)
    q = torch.randn(2, 4, 3, 2)
    with pytest.raises(ValueError, match="mask"):
        scaled_dot_product(q, q, q, mask)


def test_padding_must_be_bool_and_a_radius_nonnegative():
    with pytest.raises(ValueError, match="ids != pad_id"):
        inspect.unwrap(masks.padding)(torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="radius"):
        masks.window(4, -1)
    with pytest.raises(ValueError, match="3 and over 4 keys"):
        masks.causal(3) & masks.causal(4)
