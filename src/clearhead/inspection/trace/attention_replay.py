"""Replay the steps of attention that a fused kernel hides, from the recorded projections."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clearhead.equations import attention, masks, positions
from clearhead.equations import distances as equations
from clearhead.inspection.trace.records import Operation, Recorder, join_path
from clearhead.layers.attention import CrossAttention, MultiHeadAttention, fold_rows
from clearhead.layers.cache import CrossAttentionCache
from clearhead.layers.disentangled_attention import DisentangledAttention
from clearhead.memory import check_memory

# HK is the total width of all heads, which equals D in most models
_PROJECT_QKV = Operation("projection", attention.project, "B L 3HK")
_PROJECT_QUERIES = Operation("projection", attention.project_queries, "B L HK")
_PROJECT_BEAM_QUERIES = replace(_PROJECT_QUERIES, dimensions="n·B L HK")
_PROJECT_MEMORY = Operation("projection", attention.project_memory, "B Lk 2HK")
_SPLIT = Operation("split heads", attention.split_heads, "B H L d_k")
_REPEAT = Operation("repeat heads", attention.repeat_heads, "B H L d_k")
_ROTARY = Operation("rotary", positions.rotate, "B H L d_k")
_GROW_CACHE = Operation("grow cache", attention.append_kv, "B H Lk d_k")
_FILL_CACHE = Operation("fill cache", CrossAttentionCache, "B H Lk d_k")
_READ_CACHE = Operation("read cache", CrossAttentionCache, "B H Lk d_k")
_SCORES = Operation("scores", attention.scores, "B H Lq Lk")
_SCALED_SCORES = Operation("scores", attention.scaled_scores, "B H Lq Lk")
_DISTANCE_SCORES = Operation("distance scores", equations.distance_scores, "B H Lq Lk")
_MASK = Operation("mask", attention.masked, "B H Lq Lk")
_SOFTMAX = Operation("softmax", attention.softmax, "B H Lq Lk")
_WEIGHTED_SUM = Operation("weighted sum", attention.weighted_sum, "B H L d_v")
_MERGE = Operation("merge", attention.merge_heads, "B L HK")
_OUTPUT = Operation("output", attention.output, "B L D")


def check_map_memory(q: Tensor, k: Tensor) -> None:
    """Raise a ValueError if the attention maps (B, H, Lq, Lk) of one layer do not fit into memory.

    Args:
        q: queries (B, H, Lq, K).
        k: keys (B, H, Lk, K).
    """
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    check_memory(
        3 * 4 * batch * heads * queries * keys,  # scores, masked scores and weights
        f"the attention of one layer over {queries} queries and {keys} keys",
        "Use a shorter text or fewer heads.",
        q.device,
    )


AnyAttention = MultiHeadAttention | CrossAttention | DisentangledAttention


class AttentionReplay:
    """Hooks that record the steps of one attention module.

    Args:
        recorder: collects the steps.
        path: path of the module.
        module: the attention.
    """

    def __init__(self, recorder: Recorder, path: str, module: AnyAttention) -> None:
        self.recorder, self.path, self.module = recorder, path, module
        self.arguments: dict[str, Any] = {}
        self.num_beams = 1  # rows of x for each row of the memory

    def hooks(self) -> Iterator[RemovableHandle]:
        """Register hooks on the module and its projections, and yield their handles."""
        yield self.module.register_forward_pre_hook(self._before_attention, with_kwargs=True)
        yield self.module.out.register_forward_pre_hook(self._before_output)
        yield self.module.out.register_forward_hook(self._after_output)

    def record(self, step: str, operation: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        """Record a step of this module."""
        heads_width = self.module.num_heads * self.module.head_dim
        width = "D" if heads_width == self.arguments["x"].shape[-1] else "H·d_k"
        names = [name.replace("HK", width) for name in operation.dimensions.split()]
        if self.num_beams > 1:
            names = [f"n·{name}" if name in ("L", "Lq") else name for name in names]
        self.recorder.record(join_path(self.path, step), replace(operation, dimensions=" ".join(names)), result, module)

    def record_weights(self, q: Tensor, k: Tensor, mask: masks.Mask | None) -> None:
        """Record the steps from queries and keys to attention weights."""
        scale, values = self.module.scale, self.recorder.values
        operation = _SCORES if scale is None else replace(_SCALED_SCORES, note=f", scale = {scale:g}")
        check_map_memory(q, k)
        scores = attention.scores(q, k, scale=scale)
        self.record("scores", operation, scores)
        bias = self.distance_bias(q, k)
        if bias is not None:
            self.record("distance_scores", _DISTANCE_SCORES, bias)
            scores = scores + bias
        # a mask may be large: without statistics only shapes are needed
        masked = attention.masked(scores, mask) if values else scores
        self.record("mask", _MASK, masked)
        self.record("softmax", _SOFTMAX, attention.softmax(masked) if values else masked)

    def distance_bias(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Return what distances add to the scaled scores of queries and keys, or None."""
        return None

    def _before_attention(self, module: nn.Module, inputs: Any, kwargs: dict[str, Any]) -> None:
        self.arguments = dict(inspect.signature(self.module.forward).bind(*inputs, **kwargs).arguments)
        self.num_beams = 1

    def _before_output(self, out: nn.Module, inputs: Any) -> None:
        merged: Tensor = inputs[0]
        self.record("weighted_sum", _WEIGHTED_SUM, attention.split_heads(merged, self.module.num_heads))
        self.record("merge", _MERGE, merged)

    def _after_output(self, out: nn.Module, inputs: Any, output: Tensor) -> None:
        self.record("out", _OUTPUT, output, out)
        self.arguments = {}


class SelfReplay(AttentionReplay):
    """Hooks that record the steps of self-attention."""

    module: MultiHeadAttention

    def hooks(self) -> Iterator[RemovableHandle]:
        """Register hooks on the module and its projections, and yield their handles."""
        yield from super().hooks()
        yield self.module.qkv.register_forward_hook(self._after_projection)

    @torch.no_grad()
    def _after_projection(self, qkv: nn.Module, inputs: Any, output: Tensor) -> None:
        self.record("qkv", _PROJECT_QKV, output, qkv)
        module = self.module
        q, k, _ = module.split(self.recorder.detach(output))
        self.record("split_heads", _SPLIT, q)
        cache = self.arguments.get("cache")
        rows, heads, length, _ = q.shape
        cached = 0 if cache is None else cache.length
        batch, queries, keys = (rows, length, length) if cache is None else cache.sizes_after(rows, length)
        mask = masks.as_mask(self.arguments.get("mask"), batch=batch, heads=heads, queries=queries, keys=keys)
        mask = module.apply_window(mask, keys)
        if module.rotary is not None:
            q, k = module.rotary(q, mask, cached), module.rotary(k, mask, cached)
            self.record("rotary", _ROTARY, q)
        if module.num_kv_heads < module.num_heads:
            k = module.repeat(k)
            self.record("repeat_heads", _REPEAT, k)
        if cache is not None:
            k = cache.to_slots(k)
            q = fold_rows(q, k)
            k = attention.append_kv(self.recorder.detach(cache.keys), k) if cached else k
            self.record("cache", _GROW_CACHE, k)
        self.record_weights(q, k, mask)


class DisentangledReplay(AttentionReplay):
    """Hooks that record the steps of disentangled self-attention."""

    module: DisentangledAttention
    projected = False

    def hooks(self) -> Iterator[RemovableHandle]:
        """Register hooks on the module and its projections, and yield their handles."""
        yield from super().hooks()
        yield self.module.qkv.register_forward_hook(self._after_projection)

    def distance_bias(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Return what distances add to the scaled scores of queries and keys."""
        distances = self.arguments["distances"]
        if q.is_meta:  # only the shape is recorded
            return q @ k.mT
        if q.shape[2] > len(distances.index):
            raise ValueError("The steps of packed texts cannot be traced. Trace one text, or a padded batch.")
        return self.module.distance_bias(q.to(distances.vectors.dtype), k.to(distances.vectors.dtype), distances)

    def _before_attention(self, module: nn.Module, inputs: Any, kwargs: dict[str, Any]) -> None:
        super()._before_attention(module, inputs, kwargs)
        self.projected = False

    @torch.no_grad()
    def _after_projection(self, qkv: nn.Module, inputs: Any, output: Tensor) -> None:
        if self.projected:  # a shared projection also projects the distances
            return
        self.projected = True
        self.record("qkv", _PROJECT_QKV, output, qkv)
        q, k, _ = (
            attention.split_heads(x, self.module.num_heads) for x in self.recorder.detach(output).chunk(3, dim=-1)
        )
        self.record("split_heads", _SPLIT, q)
        batch, heads, length, _ = q.shape
        mask = self.arguments.get("mask")
        self.record_weights(q, k, masks.as_mask(mask, batch=batch, heads=heads, queries=length, keys=length))


class CrossReplay(AttentionReplay):
    """Hooks that record the steps of cross-attention."""

    module: CrossAttention
    keys: Tensor

    def hooks(self) -> Iterator[RemovableHandle]:
        """Register hooks on the module and its projections, and yield their handles."""
        yield from super().hooks()
        yield self.module.kv.register_forward_hook(self._after_memory)
        yield self.module.q.register_forward_hook(self._after_queries)

    def _before_attention(self, module: nn.Module, inputs: Any, kwargs: dict[str, Any]) -> None:
        super()._before_attention(module, inputs, kwargs)
        cache = self.arguments.get("cache")
        if cache is not None and cache.key_value is not None:
            self.keys = self.recorder.detach(cache.key_value[0])
            self.record("cache", _READ_CACHE, self.keys)

    @torch.no_grad()
    def _after_memory(self, kv: nn.Module, inputs: Any, output: Tensor) -> None:
        self.record("kv", _PROJECT_MEMORY, output, kv)
        self.keys = attention.split_heads(self.recorder.detach(output).chunk(2, dim=-1)[0], self.module.num_heads)
        if self.arguments.get("cache") is not None:
            self.record("cache", _FILL_CACHE, self.keys)

    @torch.no_grad()
    def _after_queries(self, linear: nn.Module, inputs: Any, output: Tensor) -> None:
        (rows, length, _), (batch, heads, keys, _) = output.shape, self.keys.shape
        num_beams = rows // batch
        self.record("q", _PROJECT_QUERIES if num_beams == 1 else _PROJECT_BEAM_QUERIES, output, linear)
        self.num_beams = num_beams
        q = attention.split_heads(self.recorder.detach(output).reshape(batch, num_beams * length, -1), heads)
        self.record("split_heads", _SPLIT, q)
        mask = masks.as_mask(self.arguments.get("mask"), batch=batch, heads=heads, queries=length, keys=keys)
        self.record_weights(q, self.keys, mask)
