"""Trace of decoders: cross-attention, caches, and the norms, scores and positions of each family."""

import pytest
import torch
from support.models import seq2seq

from clearhead import (
    CrossAttention,
    CrossAttentionCache,
    Decoder,
    DecoderCache,
    DecoderLayer,
    MultiHeadAttention,
    Seq2Seq,
    Seq2SeqConfig,
    checkpoints,
    masks,
    trace,
    traced,
)
from clearhead.equations import attention, embedding, equation_of, norm, positions
from clearhead.inspection.trace.records import Recorder

IDS, TARGET = torch.tensor([[5, 6, 7, 8], [9, 3, 98, 98]]), torch.tensor([[1, 2, 3], [4, 5, 6]])
KEEP = torch.tensor([[True] * 4, [True, True, False, False]])
T5 = {
    "head_dim": 5,
    "scale_scores": False,
    "positions": "none",
    "relative_buckets": 8,
    "norm": "rms",
    "norm_order": "pre",
    "bias": False,
    "activation": "geglu_tanh",
    "embedding_scale": False,
    "output_scale": True,
}
MARIAN = {"positions": "concatenated", "activation": "silu", "output_bias": True}


def model(**changes):
    sizes = {"vocab_size": 99, "d_model": 16, "ffn_hidden": 12, "num_heads": 2, "num_layers": 2, "pad_id": 98}
    return Seq2Seq(Seq2SeqConfig(**(sizes | changes))).eval()


@pytest.fixture(scope="module", params=["marian", "t5"])
def loaded(request, tmp_path_factory):
    """A tiny random checkpoint."""
    folder = tmp_path_factory.mktemp("model")
    seq2seq.make(request.param, folder)
    return checkpoints.load_seq2seq(folder)[0]


@pytest.fixture
def step_results(monkeypatch):
    """The results of all recorded steps by path."""
    results = {}
    record = Recorder.record

    def keep(self, path, operation, result, module=None):
        results[path] = result
        record(self, path, operation, result, module)

    monkeypatch.setattr(Recorder, "record", keep)
    return results


def heads_of(step_results, path, parts, num_heads):
    return attention.split_heads(step_results[path].chunk(parts, dim=-1)[-1], num_heads)


def assert_replay_matches(step_results, layer, self_values, memory):
    """Assert that replayed weights times the model's values equal the model's weighted sums."""
    for part, values in (("attention", self_values), ("cross_attention", memory)):
        path = f"decoder.layers.{layer}.{part}"
        weighted_sum = step_results[f"{path}.weighted_sum"]
        torch.testing.assert_close(step_results[f"{path}.softmax"] @ values, weighted_sum, atol=1e-5, rtol=1e-5)
        assert weighted_sum.abs().max() > 1e-3


def test_replayed_weights_match_model(loaded, step_results):
    mask, target_mask = masks.padding(KEEP), masks.padding(torch.tensor([[True] * 3, [True, True, False]]))
    with torch.no_grad():
        plain = loaded(IDS, TARGET, mask, target_mask)
        traced_run = trace(loaded, IDS, TARGET, mask, target_mask, values=True)
    assert torch.equal(traced_run.output, plain)
    heads = loaded.decoder.num_heads
    for layer in range(len(loaded.decoder.layers)):
        path = f"decoder.layers.{layer}"
        self_values = heads_of(step_results, f"{path}.attention.qkv", 3, heads)
        memory = heads_of(step_results, f"{path}.cross_attention.kv", 2, heads)
        assert_replay_matches(step_results, layer, self_values, memory)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_replayed_weights_with_caches_match_model(loaded, step_results, num_beams):
    mask = masks.padding(KEEP)
    with torch.no_grad():
        memory = traced(loaded, lambda: loaded.encode(IDS, mask), values=True).output
        cache, other = loaded.cache(), loaded.cache()
        for number in range(3):
            new = TARGET[:, number : number + 1].repeat_interleave(num_beams, dim=0)
            traced_run = traced(loaded, lambda new=new: loaded.decode(new, memory, None, mask, cache), values=True)
            assert torch.equal(traced_run.output, loaded.decode(new, memory, None, mask, other))
            for layer, (own, fixed) in enumerate(cache.layers):
                assert_replay_matches(step_results, layer, own.values, fixed.key_value[1])
                assert torch.equal(step_results[f"decoder.layers.{layer}.attention.cache"], own.keys)
                assert torch.equal(step_results[f"decoder.layers.{layer}.cross_attention.cache"], fixed.key_value[0])


def test_steps_append_to_and_read_caches():
    small = model()
    memory, cache = small.encode(IDS), small.cache()
    for number in range(1, 4):
        steps = traced(small, lambda: small.decode(TARGET[:, :1], memory, cache=cache)).steps
        named = {step.path: step for step in steps}
        own, cross = (f"decoder.layers.1.{part}" for part in ("attention", "cross_attention"))
        assert named[f"{own}.cache"].named_shape == f"[B=2, H=2, Lk={number}, d_k=8]"
        assert named[f"{own}.softmax"].named_shape == f"[B=2, H=2, Lq=1, Lk={number}]"
        assert named[f"{own}.cache"].equation == equation_of(attention.append_kv)
        assert named[f"{cross}.cache"].operation == ("fill cache" if number == 1 else "read cache")
        assert named[f"{cross}.cache"].equation == equation_of(CrossAttentionCache)
        assert named[f"{cross}.softmax"].named_shape == "[B=2, H=2, Lq=1, Lk=4]"
        assert (f"{cross}.kv" in named) == (number == 1)


def test_several_targets_share_a_memory_row():
    layer = CrossAttention(16, 2).eval()
    steps = trace(layer, torch.randn(6, 3, 16), torch.randn(2, 5, 16)).steps
    assert [step.named_shape for step in steps] == [
        "[B=2, Lk=5, 2D=32]",
        "[n·B=6, L=3, D=16]",
        "[B=2, H=2, n·L=9, d_k=8]",
        *["[B=2, H=2, n·Lq=9, Lk=5]"] * 3,
        "[B=2, H=2, n·L=9, d_v=8]",
        "[B=2, n·L=9, D=16]",
        "[B=2, n·L=9, D=16]",
    ]


@pytest.mark.parametrize("changes", [{}, T5, MARIAN, {"tie_output": False, "share_embeddings": False}])
@pytest.mark.parametrize("values", [False, True])
def test_shapes_match_and_parameters_count_once(step_results, changes, values):
    small = model(**changes)
    steps = trace(small, IDS, TARGET, values=values).steps
    assert sum(step.parameters for step in steps) == sum(p.numel() for p in small.parameters())
    sizes = {"L": (3, 4), "Lq": (3, 4), "Lk": (3, 4), "D": (16,), "F": (12,), "2F": (24,), "H": (2,), "V": (99,)}
    sizes |= {"B": (1, 2), "d_k": (5, 8), "d_v": (5, 8), "H·d_k": (10,), "3H·d_k": (30,), "2H·d_k": (20,)}
    sizes |= {"3D": (48,), "2D": (32,)}
    for step in steps:
        assert [size for _, size in step.shape] == list(step_results[step.path].shape)
        assert all(size in sizes[name] for name, size in step.shape), step
        assert step.equation
    paths = [step.path for step in steps]
    assert len(set(paths)) == len(paths)
    assert {"source_embedding.tokens", "target_embedding.tokens", "output"} <= set(paths)


def test_shapes_equal_module_outputs():
    small, real = model(**T5, share_embeddings=False, tie_output=False), {}  # tied modules run twice
    for path, module in small.named_modules():
        module.register_forward_hook(lambda module, inputs, output, path=path: real.update({path: tuple(output.shape)}))
    steps = {step.path: tuple(size for _, size in step.shape) for step in trace(small, IDS, TARGET).steps}
    shared = steps.keys() & real.keys()
    assert len(shared) > 40
    assert {path: steps[path] for path in shared} == {path: real[path] for path in shared}


def test_equations_of_each_family():
    by_path = {step.path: step.equation for step in trace(model(**T5), IDS, TARGET).steps}
    assert by_path["decoder.layers.0.attention.scores"] == f"{equation_of(attention.scaled_scores)}, scale = 1"
    assert by_path["decoder.layers.0.cross_attention.scores"] == "S = Q Kᵀ · scale, scale = 1"
    assert by_path["decoder.norm"] == equation_of(norm.rms_norm)
    assert by_path["output.scale"] == equation_of(embedding.scale_hidden)
    assert by_path["output"] == "logits = H W_Eᵀ"  # no bias, none shown
    assert by_path["decoder.layers.0.cross_attention.kv"] == "[K; V] = Y W_KV"
    by_path = {step.path: step.equation for step in trace(model(**MARIAN), IDS, TARGET).steps}
    assert by_path["target_embedding.scale"] == equation_of(embedding.scale_embeddings)
    assert by_path["target_embedding.positions"] == equation_of(positions.concatenated_sinusoids)
    assert by_path["decoder.layers.0.cross_attention.q"] == equation_of(attention.project_queries)
    assert by_path["decoder.layers.0.cross_attention.kv"] == equation_of(attention.project_memory)
    assert by_path["decoder.layers.0.attention.scores"] == equation_of(attention.scores)
    assert by_path["output"] == equation_of(embedding.unembed)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("changes", [T5, MARIAN])
def test_trace_is_bit_identical_and_removes_hooks(changes, values, training):
    small = model(**changes, attention_drop_prob=0.3).train(training)
    torch.manual_seed(3)
    plain = small(IDS, TARGET, KEEP[:, None, None, :])
    torch.manual_seed(3)
    traced_run = trace(small, IDS, TARGET, KEEP[:, None, None, :], values=values)
    assert torch.equal(traced_run.output, plain)
    assert traced_run.output.requires_grad
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in small.modules())
    with pytest.raises(RuntimeError, match="stop"):
        traced(small, lambda: (_ for _ in ()).throw(RuntimeError("stop")))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in small.modules())


def test_single_modules():
    x, memory = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    layer = DecoderLayer(16, 12, 2, 0.1).eval()
    operations = [step.operation for step in trace(layer, x, memory, masks.causal(3)).steps]
    assert operations.count("softmax") == operations.count("add") - 1 == operations.count("layer norm") - 1 == 2
    stack, cache = Decoder(16, 12, 2, 0.1, 2, norm_order="pre").eval(), DecoderCache(2)
    steps = trace(stack, x, memory, masks.causal(3), None, cache).steps
    assert steps[-1].operation == "layer norm"
    assert sum(step.parameters for step in steps) == sum(p.numel() for p in stack.parameters())
    assert cache.length == 3


def test_rotary_keys_from_cache(step_results):
    from clearhead import SelfAttentionCache

    layer, cache = MultiHeadAttention(16, 2, rotary_theta=100.0).eval(), SelfAttentionCache()
    for _ in range(3):
        trace(layer, torch.randn(1, 2, 16), None, cache, values=True)
    assert torch.equal(step_results["cache"], cache.keys)
    torch.testing.assert_close(step_results["softmax"] @ cache.values, step_results["weighted_sum"])
