"""Attention backends: which one serves a call, and the context manager that overrides the choice."""

import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from support.attention import problems
from support.models.int8 import needs_kernels

from clearhead import MultiHeadAttention, masks, scaled_dot_product
from clearhead.equations.masks import as_mask
from clearhead.kernels.attention import attention_backend, scaled_dot_product_attention
from clearhead.kernels.attention_backends import (
    BACKENDS,
    AttentionBackend,
    AttentionCall,
    fastest_backend,
    forced_backend,
    never,
    register_backend,
)

PADDING = torch.arange(700) < torch.tensor([[700], [3]])


def call(queries=20, keys=None, mask=None, dtype=torch.float32, drop_prob=0.0, grad=False, width=8):
    keys = keys or queries
    batch = 1 if isinstance(mask, masks.Mask) and mask.lengths else 2
    q, k, v = (
        torch.zeros(batch, 1, length, width, dtype=dtype, requires_grad=grad) for length in (queries, keys, keys)
    )
    return AttentionCall(q, k, v, as_mask(mask, batch=batch, heads=1, queries=queries, keys=keys), drop_prob)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("stepwise", {}),
        ("stepwise", {"queries": 128, "grad": True}),
        ("fused", {"queries": 129, "grad": True}),
        ("stepwise", {"queries": 256}),
        ("fused", {"queries": 257}),
        ("fused", {"queries": 20, "dtype": torch.float64}),
        ("stepwise", {"queries": 20, "dtype": torch.float64, "grad": True}),
        ("stepwise", {"queries": 512, "drop_prob": 0.1}),
        ("fused", {"queries": 513, "drop_prob": 0.1}),
        ("stepwise", {"mask": masks.causal(20)}),
        ("fused", {"mask": torch.zeros(20, 20)}),
        ("fused", {"queries": 700, "mask": masks.causal(700)}),
        ("fused", {"queries": 700, "mask": masks.padding(PADDING)}),
        ("blockwise", {"queries": 700, "mask": masks.causal(700) & masks.padding(PADDING)}),
        ("blockwise", {"queries": 700, "mask": masks.window(700, 8)}),
        ("blockwise", {"queries": 600, "keys": 700, "mask": masks.causal(700)}),
        ("fused", {"queries": 700, "mask": masks.causal(700) & masks.Mask(length=700, bias=torch.zeros(700, 700))}),
        ("packed", {"mask": masks.packed([5, 15])}),
        ("packed", {"mask": masks.packed([5, 15]), "width": 16, "grad": True}),
        ("packed", {"mask": masks.packed([5, 15]), "width": 16, "dtype": torch.float64}),
        pytest.param("packed", {"queries": 600, "mask": masks.packed([600]), "width": 16}, marks=needs_kernels),
        pytest.param("native_packed", {"mask": masks.packed([5, 15]), "width": 16}, marks=needs_kernels),
    ],
)
def test_call_is_served_by_the_fastest_backend(name, options):
    assert fastest_backend(call(**options)).name == name


@given(problems())
@settings(max_examples=30)
def test_every_backend_that_supports_a_call_computes_the_equation(problem):
    q, k, v, mask = problem
    checked = as_mask(mask, batch=q.shape[0], heads=q.shape[1], queries=q.shape[2], keys=k.shape[2])
    expected, _ = scaled_dot_product(q, k, v, mask)
    for name, backend in BACKENDS.items():
        if backend.supports(AttentionCall(q, k, v, checked)):
            with attention_backend(name):
                values = scaled_dot_product_attention(q, k, v, mask)
            torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)


def test_explicit_backend_supports_every_call_including_dropout():
    mask = masks.padding(torch.tensor([[True] * 40 + [False] * 10]))
    ones, eye = torch.ones(1, 1, 400, 4), torch.eye(50)[None, None]
    with attention_backend("explicit"):
        weights = scaled_dot_product_attention(ones, torch.ones(1, 1, 50, 4), eye, mask, drop_prob=0.25)
    assert (weights[..., 40:] == 0).all()
    kept = weights[weights != 0]
    assert abs(len(kept) / 16000 - 0.75) < 0.02
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 40 / 0.75))
    assert BACKENDS["explicit"].supports(call(mask=masks.packed([5, 15])))


def test_override_ends_with_its_block_and_stays_in_its_thread():
    result = {}

    def other():
        result["other thread"] = forced_backend()

    with attention_backend("explicit"):
        with attention_backend("fused"):
            assert forced_backend() is BACKENDS["fused"]
        assert forced_backend() is BACKENDS["explicit"]
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert result == {"other thread": None}
    with pytest.raises(RuntimeError, match="on purpose"), attention_backend("explicit"):
        raise RuntimeError("on purpose")
    assert forced_backend() is None


def test_unknown_backends_and_unsupported_calls_are_errors():
    with pytest.raises(ValueError, match=f"{', '.join(BACKENDS)}; got 'unknown'"):
        attention_backend("unknown").__enter__()
    with attention_backend("blockwise"), pytest.raises(ValueError, match="'blockwise' does not support this call"):
        MultiHeadAttention(8, 2)(torch.rand(1, 3, 8))
    with pytest.raises(ValueError, match="already is an attention backend named 'fused'"):
        register_backend("fused", rank=0)(BACKENDS["fused"].compute)


def test_registered_backend_serves_the_calls_that_it_supports(monkeypatch):
    monkeypatch.setattr("clearhead.kernels.attention_backends.BACKENDS", dict(BACKENDS))

    @register_backend("constant", rank=0, supports=lambda call: call.mask is None)
    def constant(call):
        return call.v.new_ones(*call.q.shape[:3], call.v.shape[3])

    q = torch.zeros(1, 1, 2, 4)
    assert (scaled_dot_product_attention(q, q, q) == 1).all()
    assert (scaled_dot_product_attention(q, q, q, masks.causal(2)) == 0).all()


def test_backend_that_is_never_the_fastest_is_used_by_name_only(monkeypatch):
    monkeypatch.setattr("clearhead.kernels.attention_backends.BACKENDS", dict(BACKENDS))

    @register_backend("constant", rank=0, is_fastest=never)
    def constant(call):
        return call.v.new_ones(*call.q.shape[:3], call.v.shape[3])

    q = torch.zeros(1, 1, 2, 4)
    assert (scaled_dot_product_attention(q, q, q) == 0).all()
    with attention_backend("constant"):
        assert (scaled_dot_product_attention(q, q, q) == 1).all()


COMPILED = """
import torch
from clearhead import MultiHeadAttention, masks
from clearhead.kernels.attention import attention_backend

layer, x = MultiHeadAttention(8, 2).eval(), torch.rand(2, 5, 8)
compiled = torch.compile(layer, backend="eager", fullgraph=True)
with torch.no_grad(), attention_backend("explicit"):
    torch.testing.assert_close(compiled(x, masks.causal(5)), layer(x, masks.causal(5)))
"""


@pytest.mark.slow
def test_attention_compiles_as_one_graph_under_an_override():
    subprocess.run([sys.executable, "-c", COMPILED], check=True)  # without the type checks of the tests


def test_backends_are_in_order_of_rank():
    ranks = [backend.rank for backend in BACKENDS.values()]
    assert ranks == sorted(ranks)
    assert all(isinstance(backend, AttentionBackend) for backend in BACKENDS.values())
