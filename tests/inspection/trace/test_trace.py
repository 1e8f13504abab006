"""trace() records every step of a run without changes to the model."""

import pytest
import torch

from clearhead import Encoder, EncoderConfig, EncoderModel, MultiHeadAttention, masks, scaled_dot_product, trace
from clearhead.equations import attention, equation_of
from clearhead.inspection.trace.records import Statistics

INNER = ["projection", "split heads", "scores", "mask", "softmax", "weighted sum", "merge", "output"]
POST = [*INNER, "dropout", "add", "layer norm", "linear", "ReLU", "dropout", "linear", "dropout", "add", "layer norm"]
PRE = ["layer norm", *INNER, "dropout", "add", "layer norm", "linear", "GELU", "dropout", "linear", "dropout", "add"]


def config(**changes):
    return EncoderConfig(
        **({"vocab_size": 11, "d_model": 8, "num_heads": 2, "ffn_hidden": 12, "num_layers": 2} | changes)
    )


def test_every_step_in_order():
    steps = trace(EncoderModel(config()).eval(), torch.tensor([[1, 2, 3]])).steps
    assert [step.operation for step in steps] == ["token embedding", "positions", "dropout", *POST, *POST]
    pre = EncoderModel(config(norm_order="pre", activation="gelu", num_token_types=2, embedding_norm=True)).eval()
    operations = [step.operation for step in trace(pre, torch.tensor([[1, 2, 3]])).steps]
    first = ["token embedding", "token types", "positions", "layer norm", "dropout"]
    assert operations == [*first, *PRE, *PRE, "layer norm"]


def test_gated_rotary_and_learned_modules():
    model = EncoderModel(config(positions="rotary", activation="geglu", num_layers=1)).eval()
    operations = [step.operation for step in trace(model, torch.tensor([[1, 2, 3]])).steps]
    assert operations[3:5] == ["split heads", "rotary"]
    assert operations[14:19] == ["linear", "GELU", "gate", "dropout", "linear"]
    learned = EncoderModel(config(positions="learned", activation="gelu_tanh", num_layers=1)).eval()
    steps = trace(learned, torch.tensor([[1, 2, 3]])).steps
    assert [steps[1].operation, steps[1].parameters] == ["positions", 5000 * 8]
    assert "GELU (tanh)" in [step.operation for step in steps]
    biased = EncoderModel(config(positions="none", relative_buckets=8, num_layers=1)).eval()
    step = next(step for step in trace(biased, torch.tensor([[1, 2, 3]])).steps if step.operation == "relative bias")
    assert (step.named_shape, step.parameters) == ("[B=1, H=2, Lq=3, Lk=3]", 16)


def test_projection_of_narrow_embeddings():
    model = EncoderModel(config(embedding_dim=6, embedding_norm=True, num_layers=1)).eval()
    steps = trace(model, torch.tensor([[1, 2, 3]])).steps
    assert [step.named_shape for step in steps[:4]] == ["[B=1, L=3, E=6]"] * 4
    step = steps[4]
    assert (step.path, step.operation, step.equation) == ("embedding.projection", "linear", "X′ = X W_P + b_P")
    assert (step.named_shape, step.parameters) == ("[B=1, L=3, D=8]", 6 * 8 + 8)


def test_named_shapes_and_module_paths():
    steps = trace(Encoder(8, 12, 2, 0.1, 1).eval(), torch.rand(3, 5, 8)).steps
    named = {step.path: step.named_shape for step in steps}
    assert named["layers.0.attention.qkv"] == "[B=3, L=5, 3D=24]"
    assert named["layers.0.attention.split_heads"] == "[B=3, H=2, L=5, d_k=4]"
    assert named["layers.0.attention.softmax"] == "[B=3, H=2, Lq=5, Lk=5]"
    assert named["layers.0.feedforward.inner"] == "[B=3, L=5, F=12]"
    assert named["layers.0.feedforward_residual.norm"] == "[B=3, L=5, D=8]"
    assert {step.dtype for step in steps} == {"float32"}


def test_every_parameter_counts_once():
    for changes in ({}, {"norm_order": "pre", "num_token_types": 3, "embedding_norm": True, "activation": "geglu"}):
        model = EncoderModel(config(**changes)).eval()
        steps = trace(model, torch.tensor([[1, 2]])).steps
        assert sum(step.parameters for step in steps) == sum(p.numel() for p in model.parameters())


def test_equations_equal_docstrings():
    steps = trace(EncoderModel(config()).eval(), torch.tensor([[1, 2]])).steps
    assert all(step.equation for step in steps)
    by_operation = {step.operation: step.equation for step in steps}
    for function in (attention.scores, attention.softmax, attention.masked, attention.weighted_sum):
        assert equation_of(function) in by_operation.values()
    assert by_operation["scores"] == "S = Q Kᵀ / √d_k"


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_trace_is_bit_identical_and_removes_hooks(values, training):
    model = EncoderModel(config(attention_drop_prob=0.3)).train(training)
    ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    mask = masks.additive(masks.padding(ids != 0)) * 0.5  # a float mask selects another kernel under gradients
    torch.manual_seed(3)
    plain = model(ids, mask)
    torch.manual_seed(3)
    traced = trace(model, ids, mask, values=values)
    assert torch.equal(traced.output, plain)
    assert traced.output.requires_grad
    assert model.training == training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_removes_hooks_after_error():
    model = EncoderModel(config())
    with pytest.raises(ValueError, match="token ids"):
        trace(model, torch.tensor([[99]]))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_statistics_match_explicit_equation():
    layer = MultiHeadAttention(8, 2).eval()
    x, mask = torch.randn(2, 5, 8), masks.padding(torch.tensor([[True] * 5, [True, True, False, False, False]]))
    steps = {step.operation: step for step in trace(layer, x, mask, values=True).steps}
    q, k, v = (attention.split_heads(part, 2) for part in layer.qkv(x).chunk(3, dim=-1))
    values, weights = scaled_dot_product(q, k, v, mask)
    for operation, tensor in (("softmax", weights), ("weighted sum", values), ("split heads", q)):
        result = steps[operation].values
        std, mean = torch.std_mean(tensor, correction=0)
        expected = Statistics(mean.item(), std.item(), tensor.min().item(), tensor.max().item())
        assert vars(result) == pytest.approx(vars(expected), abs=1e-6)
    # statistics exclude −∞ in masked scores
    finite = attention.masked(attention.scores(q, k), mask)
    assert steps["mask"].values.min == pytest.approx(finite[finite.isfinite()].min().item())


def test_json_and_text():
    traced = trace(Encoder(8, 12, 2, 0.1, 1).eval(), torch.rand(3, 5, 8))
    first = traced.steps[0].as_dict()
    assert first == {
        "path": "layers.0.attention.qkv",
        "operation": "projection",
        "equation": "[Q; K; V] = X W_QKV + b_QKV",
        "shape": [["B", 3], ["L", 5], ["3D", 24]],
        "dtype": "float32",
        "parameters": 216,
    }
    lines = str(traced).split("\n")
    assert len(lines) == len(traced.steps) == 18
    assert lines[2].split()[:3] == ["layers.0.attention.scores", "scores", "[B=3,"]
    assert set(trace(Encoder(8, 12, 2, 0.1, 1), torch.rand(1, 2, 8), values=True).steps[0].as_dict()["values"]) == {
        "mean",
        "std",
        "min",
        "max",
    }


@pytest.mark.slow
def test_long_input_without_values_needs_no_score_matrix():
    model = Encoder(8, 8, 8, 0.0, 1).eval()
    with torch.no_grad():
        steps = trace(model, torch.rand(1, 16384, 8)).steps  # scores would take 8.6 GB
    assert steps[2].named_shape == "[B=1, H=8, Lq=16384, Lk=16384]"
