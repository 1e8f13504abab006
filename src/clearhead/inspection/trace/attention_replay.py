"""The steps inside attention, which a fused kernel hides, replayed from the projections that were observed."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clearhead.equations import attention, masks, positions
from clearhead.inspection.trace.records import Operation, Recorder, dotted
from clearhead.layers.attention import CrossAttention, MultiHeadAttention, fold_rows
from clearhead.layers.cache import CrossAttentionCache
from clearhead.memory import check_memory

# HK is the width of all heads together: the model's, D, in most models
_PROJECT = Operation("projection", attention.project, "B L 3HK")
_PROJECT_QUERIES = Operation("projection", attention.project_queries, "B L HK")
_PROJECT_SEVERAL_QUERIES = replace(_PROJECT_QUERIES, names="n·B L HK")
_PROJECT_MEMORY = Operation("projection", attention.project_memory, "B Lk 2HK")
_SPLIT = Operation("split heads", attention.split_heads, "B H L d_k")
_ROTARY = Operation("rotary", positions.rotate, "B H L d_k")
_GROW = Operation("grow cache", attention.append_kv, "B H Lk d_k")
_FILL = Operation("fill cache", CrossAttentionCache, "B H Lk d_k")
_READ = Operation("read cache", CrossAttentionCache, "B H Lk d_k")
_SCORES = Operation("scores", attention.scores, "B H Lq Lk")
_SCALED_SCORES = Operation("scores", attention.scaled_scores, "B H Lq Lk")
_MASK = Operation("mask", attention.masked, "B H Lq Lk")
_SOFTMAX = Operation("softmax", attention.softmax, "B H Lq Lk")
_SUM = Operation("weighted sum", attention.weighted_sum, "B H L d_v")
_MERGE = Operation("merge", attention.merge_heads, "B L HK")
_OUTPUT = Operation("output", attention.output, "B L D")


def check_maps(q: Tensor, k: Tensor) -> None:
    """Raise a ValueError where the attention maps (B, H, Lq, Lk) of one layer do not fit the memory.

    Args:
        q, k: queries (B, H, Lq, K) and keys (B, H, Lk, K).
    """
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    check_memory(
        3 * 4 * batch * heads * queries * keys,  # scores, masked scores and weights
        f"the attention of one layer over {queries} queries and {keys} keys",
        "Use a shorter text, or fewer heads.",
        q.device,
    )


class _Replay:
    """Watches one attention module; what both kinds have in common."""

    def __init__(self, teller: Recorder, path: str, module: MultiHeadAttention | CrossAttention) -> None:
        self.teller, self.path, self.module = teller, path, module
        self.given: dict[str, Any] = {}
        self.each = 1  # rows of x that stand as queries of one row of the memory

    def hooks(self) -> Iterator[RemovableHandle]:
        """Hooks on the module and its projections."""
        yield self.module.register_forward_pre_hook(self._called, with_kwargs=True)
        yield self.module.out.register_forward_pre_hook(self._before_output)
        yield self.module.out.register_forward_hook(self._after_output)

    def tell(self, name: str, kind: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        """A step of this module."""
        width = "D" if self.module.out.in_features == self.module.out.out_features else "H·d_k"
        labels = [label.replace("HK", width) for label in kind.names.split()]
        if self.each > 1:
            labels = [f"n·{label}" if label in ("L", "Lq") else label for label in labels]
        self.teller.tell(dotted(self.path, name), replace(kind, names=" ".join(labels)), result, module)

    def weights(self, q: Tensor, k: Tensor, mask: masks.Mask | None) -> None:
        """The steps from queries and keys to the weights."""
        scale, values = self.module.scale, self.teller.values
        kind = _SCORES if scale is None else replace(_SCALED_SCORES, note=f", scale = {scale:g}")
        check_maps(q, k)
        scores = attention.scores(q, k, scale=scale)
        self.tell("scores", kind, scores)
        # no mask is made where only shapes are asked for: it may be large
        masked = attention.masked(scores, mask) if values else scores
        self.tell("mask", _MASK, masked)
        self.tell("softmax", _SOFTMAX, attention.softmax(masked) if values else masked)

    def _called(self, module: nn.Module, inputs: Any, kwargs: dict[str, Any]) -> None:
        self.given = dict(inspect.signature(self.module.forward).bind(*inputs, **kwargs).arguments)
        self.each = 1

    def _before_output(self, out: nn.Module, inputs: Any) -> None:
        merged: Tensor = inputs[0]
        self.tell("weighted_sum", _SUM, attention.split_heads(merged, self.module.num_heads))
        self.tell("merge", _MERGE, merged)

    def _after_output(self, out: nn.Module, inputs: Any, output: Tensor) -> None:
        self.tell("out", _OUTPUT, output, out)
        self.given = {}


class SelfReplay(_Replay):
    """Watches self-attention."""

    module: MultiHeadAttention

    def hooks(self) -> Iterator[RemovableHandle]:
        """Those of every attention, and what this kind adds."""
        yield from super().hooks()
        yield self.module.qkv.register_forward_hook(self._after_projection)

    @torch.no_grad()
    def _after_projection(self, qkv: nn.Module, inputs: Any, output: Tensor) -> None:
        self.tell("qkv", _PROJECT, output, qkv)
        module = self.module
        parts = self.teller.seen(output).chunk(3, dim=-1)
        q, k, _ = (attention.split_heads(part, module.num_heads) for part in parts)
        self.tell("split_heads", _SPLIT, q)
        cache = self.given.get("cache")
        rows, heads, length, _ = q.shape
        before = 0 if cache is None else cache.length
        batch, queries, keys = (rows, length, length) if cache is None else cache.sizes_after(rows, length)
        given = masks.as_mask(self.given.get("mask"), batch=batch, heads=heads, queries=queries, keys=keys)
        mask = module.apply_window(given, keys)
        if module.rotary is not None:
            q, k = module.rotary(q, mask, before), module.rotary(k, mask, before)
            self.tell("rotary", _ROTARY, q)
        if cache is not None:
            k = cache.to_slots(k)
            q = fold_rows(q, k)
            k = attention.append_kv(self.teller.seen(cache.keys), k) if before else k
            self.tell("cache", _GROW, k)
        self.weights(q, k, mask)


class CrossReplay(_Replay):
    """Watches cross-attention."""

    module: CrossAttention
    keys: Tensor

    def hooks(self) -> Iterator[RemovableHandle]:
        """Those of every attention, and what this kind adds."""
        yield from super().hooks()
        yield self.module.kv.register_forward_hook(self._after_memory)
        yield self.module.q.register_forward_hook(self._after_queries)

    def _called(self, module: nn.Module, inputs: Any, kwargs: dict[str, Any]) -> None:
        super()._called(module, inputs, kwargs)
        cache = self.given.get("cache")
        if cache is not None and cache.key_value is not None:
            self.keys = self.teller.seen(cache.key_value[0])
            self.tell("cache", _READ, self.keys)

    @torch.no_grad()
    def _after_memory(self, kv: nn.Module, inputs: Any, output: Tensor) -> None:
        self.tell("kv", _PROJECT_MEMORY, output, kv)
        self.keys = attention.split_heads(self.teller.seen(output).chunk(2, dim=-1)[0], self.module.num_heads)
        if self.given.get("cache") is not None:
            self.tell("cache", _FILL, self.keys)

    @torch.no_grad()
    def _after_queries(self, linear: nn.Module, inputs: Any, output: Tensor) -> None:
        (rows, length, _), (batch, heads, keys, _) = output.shape, self.keys.shape
        each = rows // batch
        self.tell("q", _PROJECT_QUERIES if each == 1 else _PROJECT_SEVERAL_QUERIES, output, linear)
        self.each = each
        q = attention.split_heads(self.teller.seen(output).reshape(batch, each * length, -1), heads)
        self.tell("split_heads", _SPLIT, q)
        mask = masks.as_mask(self.given.get("mask"), batch=batch, heads=heads, queries=length, keys=keys)
        self.weights(q, self.keys, mask)
