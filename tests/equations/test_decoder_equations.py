"""Equations of the decoder against plain definitions."""

import math

import pytest
import torch
from torch.nn import functional

from clearhead import Seq2Seq, Seq2SeqConfig, masks
from clearhead.equations.attention import (
    append_kv,
    merge_heads,
    output,
    project,
    project_memory,
    project_queries,
    scaled_dot_product,
    scaled_scores,
    scores,
    split_heads,
)
from clearhead.equations.embedding import scale_embeddings, scale_hidden, unembed
from clearhead.equations.feedforward import feedforward, silu
from clearhead.equations.norm import layer_norm, rms_norm
from clearhead.equations.positions import concatenated_sinusoids, sinusoids


def test_projections_of_queries_and_memory_are_linear():
    x, weight, bias = torch.randn(2, 3, 4), torch.randn(6, 4), torch.randn(6)
    for equation in (project_queries, project_memory):
        torch.testing.assert_close(equation(x, weight, bias), functional.linear(x, weight, bias))
        torch.testing.assert_close(equation(x, weight), functional.linear(x, weight))


def test_scaled_scores_are_scaled_dot_products():
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    result = scaled_scores(q, k, 0.3)
    assert result.shape == (1, 2, 3, 5)
    assert float(result[0, 1, 2, 4]) == pytest.approx(0.3 * float(q[0, 1, 2] @ k[0, 1, 4]), abs=1e-6)
    torch.testing.assert_close(scaled_scores(q, k, 1 / math.sqrt(4)), scores(q, k))
    assert torch.equal(scores(q, k, scale=1.0), scaled_scores(q, k, 1.0))


def test_appended_keys_come_last():
    cached, new = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 1, 5)
    both = append_kv(cached, new)
    assert torch.equal(both[:, :, :4], cached)
    assert torch.equal(both[:, :, 4:], new)


def test_scale_embeddings_and_scale_hidden():
    x = torch.tensor([[1.0, 2.0, 3.0, -4.0]])
    assert torch.equal(scale_embeddings(x), torch.tensor([[2.0, 4.0, 6.0, -8.0]]))
    assert torch.equal(scale_hidden(x), torch.tensor([[0.5, 1.0, 1.5, -2.0]]))


def test_unembed_computes_logits_with_the_token_vectors():
    h, weight, bias = torch.randn(2, 3, 4), torch.randn(7, 4), torch.randn(7)
    logits = unembed(h, weight, bias)
    assert logits.shape == (2, 3, 7)
    assert float(logits[1, 2, 5]) == pytest.approx(float(h[1, 2] @ weight[5] + bias[5]), abs=1e-6)
    torch.testing.assert_close(unembed(h, weight), logits - bias)


def test_silu_is_u_times_its_logistic_function():
    u = torch.linspace(-20, 20, 101)
    torch.testing.assert_close(silu(u), u * torch.sigmoid(u))


def test_rms_norm_divides_by_the_root_of_the_mean_square():
    x, gamma = torch.randn(3, 8) * 4 + 1, torch.randn(8)
    for row, result in zip(x.tolist(), rms_norm(x, gamma, eps=1e-3), strict=True):
        root = math.sqrt(sum(number**2 for number in row) / 8 + 1e-3)
        expected = [weight * number / root for weight, number in zip(gamma.tolist(), row, strict=True)]
        assert result.tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(rms_norm(x), functional.rms_norm(x, (8,), eps=1e-6))


@pytest.mark.parametrize(("width", "last"), [(6, False), (7, False), (6, True), (7, True)])
def test_concatenated_sinusoids_are_sines_then_cosines(width, last):
    result = concatenated_sinusoids(50, width, last=last)
    n = width // 2 - 1 if last else width / 2
    sines = width // 2 if last else math.ceil(width / 2)
    for position in (0, 1, 49):
        waves = [position / 10000 ** (j / n) for j in range(sines)]
        both = [math.sin(wave) for wave in waves] + [math.cos(wave) for wave in waves]
        expected = [*both, 0.0][:width]
        assert result[position].tolist() == pytest.approx(expected, abs=1e-6)


def by_hand(layer, x, memory, mask):
    """Compute a post-norm decoder layer from its weights by the equations."""

    def mix(module, q, k, v, mask):
        heads = [split_heads(part, module.num_heads) for part in (q, k, v)]
        values, _ = scaled_dot_product(*heads, mask)
        return output(merge_heads(values), module.out.weight, module.out.bias)

    def normal(residual, x):
        return layer_norm(x, residual.norm.weight, residual.norm.bias, parameters_shape=(x.shape[-1],))

    own, cross, ffn = layer.attention, layer.cross_attention, layer.feedforward
    q, k, v = project(x, own.qkv.weight, own.qkv.bias).chunk(3, dim=-1)
    z1 = normal(layer.attention_residual, x + mix(own, q, k, v, mask))
    q = project_queries(z1, cross.q.weight, cross.q.bias)
    k, v = project_memory(memory, cross.kv.weight, cross.kv.bias).chunk(2, dim=-1)
    z2 = normal(layer.cross_attention_residual, z1 + mix(cross, q, k, v, None))
    z3 = feedforward(z2, ffn.inner.weight, ffn.inner.bias, ffn.out.weight, ffn.out.bias)
    return normal(layer.feedforward_residual, z2 + z3)


def test_layer_stack_and_logits_equal_the_equations():
    config = Seq2SeqConfig(vocab_size=30, d_model=16, ffn_hidden=20, num_heads=2, num_layers=2, output_bias=True)
    model, ids, target_ids = Seq2Seq(config).eval(), torch.randint(30, (2, 5)), torch.randint(30, (2, 4))
    torch.nn.init.normal_(model.output.bias)
    x = model.target_embedding(target_ids)
    torch.testing.assert_close(x, scale_embeddings(model.target_embedding.tokens.weight[target_ids]) + sinusoids(4, 16))
    memory, mask = model.encode(ids), masks.causal(4)
    torch.testing.assert_close(
        model.decoder.layers[0](x, memory, mask), by_hand(model.decoder.layers[0], x, memory, mask)
    )
    for layer in model.decoder.layers:
        x = by_hand(layer, x, memory, mask)
    logits = unembed(x, model.target_embedding.tokens.weight, model.output.bias)
    torch.testing.assert_close(model(ids, target_ids), logits, atol=1e-5, rtol=1e-5)
