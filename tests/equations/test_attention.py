"""Explicit attention against its definition, and every fast kernel against explicit attention."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from support.attention import assert_within, dense, problems

from clearhead import masks, scaled_dot_product
from clearhead.equations.attention import (
    masked,
    merge_heads,
    output,
    project,
    repeat_heads,
    scores,
    softmax,
    split_heads,
    weighted_sum,
)
from clearhead.kernels import stepwise_attention
from clearhead.kernels.attention import scaled_dot_product_attention

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def by_hand(q, k, v, mask):
    """Compute attention from its definition, one query at a time, in float64."""
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    added = dense(mask, queries, keys, batch, heads).double()
    values = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                row = [
                    float(q[b, h, i].double() @ k[b, h, j].double()) / math.sqrt(q.shape[-1]) + float(added[b, h, i, j])
                    for j in range(keys)
                ]
                top = max(row)
                if top == float("-inf"):
                    continue
                weights = [math.exp(score - top) for score in row]
                values[b, h, i] = sum(w * v[b, h, j].double() for j, w in enumerate(weights)) / sum(weights)
    return values


@given(problems())
@settings(max_examples=25)
def test_explicit_attention_equals_the_definition(problem):
    q, k, v, mask = problem
    values, weights = scaled_dot_product(q, k, v, mask)
    torch.testing.assert_close(values.double(), by_hand(q, k, v, mask), atol=1e-5, rtol=1e-5)
    sums = weights.sum(dim=-1)
    dead = (dense(mask, q.shape[2], k.shape[2], q.shape[0], q.shape[1]) == float("-inf")).all(dim=-1)
    torch.testing.assert_close(sums, (~dead).float())


def gradients(function, tensors, mask):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    values = function(*leaves, mask)
    values.square().sum().backward()
    return values.detach(), [leaf.grad for leaf in leaves]


@pytest.fixture(params=["short", "long"])
def gradient_by(request, monkeypatch):
    """Test the CPU kernels of short and of long sequences at small sizes."""
    if request.param == "long":
        monkeypatch.setattr(stepwise_attention, "_is_short", lambda call: False)


@pytest.mark.usefixtures("gradient_by")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_equals_explicit_in_values_and_gradients(dtype):
    bound = TOLERANCE[dtype]

    @given(problems(dtype=dtype))
    def check(problem):
        q, k, v, mask = problem
        explicit, explicit_grads = gradients(lambda *args: scaled_dot_product(*args)[0], (q, k, v), mask)
        values, fused_grads = gradients(scaled_dot_product_attention, (q, k, v), mask)
        with torch.no_grad():  # another kernel may be chosen
            inferred = scaled_dot_product_attention(q, k, v, mask)
        assert_within([values, inferred, *fused_grads], [explicit, explicit, *explicit_grads], bound)

    check()


@pytest.mark.parametrize("kind", ["none", "padding", "bool", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_split_by_size_equal_whole_batches(monkeypatch, dtype, kind):
    q, k, v = torch.randn(3, 5, 2, 20, 8, dtype=dtype).unbind()
    mask = {
        "none": None,
        "padding": masks.padding(torch.arange(20) < torch.tensor([[20], [1], [0], [7], [19]])),
        "bool": torch.rand(1, 2, 20, 20) < 0.7,
        "causal": masks.causal(20),
    }[kind]
    with torch.no_grad():
        together = scaled_dot_product_attention(q, k, v, mask)
        for texts in (1, 2, 4):
            monkeypatch.setattr(stepwise_attention, "MAX_SCORES", texts * 2 * 20 * 20)
            result = scaled_dot_product_attention(q, k, v, mask)
            bound = 1e-6 if dtype == torch.float32 else 0.01
            torch.testing.assert_close(result, together, atol=bound, rtol=bound)


def test_packed_sequences_do_not_affect_each_other():
    q, k, v = torch.randn(3, 1, 2, 12, 8).unbind()
    mask = masks.packed([3, 5, 4])
    with torch.no_grad():
        healthy = scaled_dot_product_attention(q, k, v, mask)
        for broken in (float("nan"), float("inf")):
            for tensor in (k, v):
                kept = tensor[:, :, 3:8].clone()
                tensor[:, :, 3:8] = broken
                values = scaled_dot_product_attention(q, k, v, mask)
                tensor[:, :, 3:8] = kept
                for others in (slice(0, 3), slice(8, 12)):
                    assert torch.equal(values[:, :, others], healthy[:, :, others])
                assert not torch.equal(values[:, :, 3:8], healthy[:, :, 3:8])


@given(problems(dtype=torch.bfloat16))
@settings(max_examples=20)
def test_fused_equals_explicit_in_bfloat16(problem):
    q, k, v, mask = problem
    exact = scaled_dot_product(q.float(), k.float(), v.float(), mask)[0]
    # 8 bits of mantissa: a relative error of 2^-8, for values below 4
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, mask).float(), exact, atol=0.03, rtol=0.03)


@pytest.mark.usefixtures("gradient_by")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["bool", "float", "padding"])
def test_fully_masked_row_gives_zeros_without_nan(dtype, kind):
    q, k, v = torch.randn(3, 2, 2, 5, 8, dtype=dtype).unbind()
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    allowed[1, :, 3] = False
    mask = {
        "bool": allowed,
        "float": torch.where(allowed, 0.0, float("-inf")).to(dtype),
        "padding": masks.padding(torch.tensor([[True] * 5, [False] * 5])),
    }[kind]
    dead = (1, slice(None), slice(None) if kind == "padding" else 3)
    for function in (lambda *args: scaled_dot_product(*args)[0], scaled_dot_product_attention):
        values, grads = gradients(function, (q, k, v), mask)
        assert (values[dead] == 0).all()
        assert all(grad.isfinite().all() for grad in grads)
        assert (grads[0][dead] == 0).all()
        assert values.isfinite().all()
    assert (scaled_dot_product(q, k, v, mask)[1][dead] == 0).all()


def test_finite_float_mask_is_added():
    q, k, v = torch.randn(3, 1, 2, 4, 8).unbind()
    everywhere = torch.full((4, 4), -1e9)
    explicit, grads = gradients(lambda *args: scaled_dot_product(*args)[0], (q, k, v), everywhere)
    values, fused_grads = gradients(scaled_dot_product_attention, (q, k, v), everywhere)
    # -1e9 + score is -1e9 in float32: all weights are equal
    torch.testing.assert_close(explicit, v.mean(dim=2, keepdim=True).expand_as(v))
    torch.testing.assert_close(values, explicit)
    for one, other in zip(fused_grads, grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("number", [-1e9, -1e4])
def test_finite_float_mask_is_added_in_16_bits(dtype, number):
    q, k, v = torch.randn(3, 1, 2, 4, 8).to(dtype).unbind()
    mask = torch.full((4, 4), number)
    mask[:, 0] += 1 if number > -1e5 else 0
    expected = scaled_dot_product(q.double(), k.double(), v.double(), mask.double())[0]
    if number == -1e9:  # -1e9 + score is -1e9 in float32
        expected = v.double().mean(dim=2, keepdim=True).expand_as(expected)
    for result in (scaled_dot_product(q, k, v, mask)[0], scaled_dot_product_attention(q, k, v, mask)):
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, atol=0.02, rtol=0.02)


@given(problems())
@settings(max_examples=20)
def test_attention_steps_compose_to_attention(problem):
    q, k, v, mask = problem
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    s = scores(q, k)
    torch.testing.assert_close(s, torch.einsum("bhlk,bhmk->bhlm", q, k) / q.shape[-1] ** 0.5)
    torch.testing.assert_close(masked(s, mask), s + dense(mask, shape[2], shape[3], shape[0], shape[1]))
    a = softmax(masked(s, mask))
    alive = a.sum(dim=-1) > 0
    torch.testing.assert_close(a[alive], torch.softmax(masked(s, mask), dim=-1)[alive])
    values, weights = scaled_dot_product(q, k, v, mask)
    assert torch.equal(weights, a)
    assert torch.equal(values, weighted_sum(a, v))


def test_projections_equal_linear_layers():
    x, layer = torch.randn(2, 5, 12), torch.nn.Linear(12, 36)
    torch.testing.assert_close(project(x, layer.weight, layer.bias), layer(x))
    torch.testing.assert_close(project(x, layer.weight), x @ layer.weight.T)
    mix = torch.nn.Linear(12, 12)
    torch.testing.assert_close(output(x, mix.weight, mix.bias), mix(x))


def test_attention_does_not_change_its_arguments():
    q, k, v = torch.randn(3, 1, 2, 4, 8).unbind()
    mask = torch.randn(4, 4)
    before = [tensor.clone() for tensor in (q, k, v, mask)]
    scaled_dot_product(q, k, v, mask)
    scaled_dot_product_attention(q, k, v, mask)
    assert all(torch.equal(one, other) for one, other in zip((q, k, v, mask), before, strict=True))


def test_splitting_and_merging_heads_are_inverse():
    x = torch.randn(2, 5, 12)
    assert torch.equal(merge_heads(split_heads(x, 3)), x)
    assert torch.equal(split_heads(x, 3)[1, 2, 4], x[1, 4, 8:12])


def test_fused_dropout_drops_the_weights():
    ones = torch.ones(1, 1, 400, 50)
    eye = torch.eye(50)[None, None]
    dropped = scaled_dot_product_attention(ones[..., :4], torch.ones(1, 1, 50, 4), eye, drop_prob=0.25)
    # with V the identity the values are the weights: 1/50 each, a quarter dropped, the rest scaled by 4/3
    assert abs((dropped == 0).float().mean().item() - 0.25) < 0.02
    torch.testing.assert_close(dropped[dropped != 0], torch.full_like(dropped[dropped != 0], 1 / 50 / 0.75))


@pytest.mark.parametrize("queries", [700, 1024, 1030])
@pytest.mark.parametrize("window", [None, 3, 600])
def test_blockwise_attention_equals_explicit_attention(queries, window):
    q, k, v = torch.randn(2, 1, queries, 4), torch.randn(2, 1, 1030, 4), torch.randn(2, 1, 1030, 3)
    keep = torch.rand(2, 1030) < 0.5
    keep[1, :20] = False  # left padding: these queries may attend to no key
    mask = masks.Mask(length=1030, keep_BM=keep, causal=True, window=window)
    expected, _ = scaled_dot_product(q, k, v, mask)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, mask), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("q", "k", "v"), [((3, 8), (3, 8), (3, 8)), ((1, 2, 3, 8), (1, 2, 5, 7), (1, 2, 5, 8)), ((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 4, 8))]
)  # fmt: skip
def test_wrong_shapes_are_named(q, k, v):
    with pytest.raises(ValueError, match=r"Expected q \(batch, heads, queries, d_k\).*got \(.*3, 8\)"):
        inspect.unwrap(scaled_dot_product)(torch.zeros(q), torch.zeros(k), torch.zeros(v))  # without type checks


def test_consecutive_heads_of_queries_share_a_head_of_keys():
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    values, _ = scaled_dot_product(q, repeat_heads(k, 2), repeat_heads(v, 2))
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)
