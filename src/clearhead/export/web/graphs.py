"""Graphs that also return all attention weights, and have inputs that switch off heads, layers and source tokens."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from clearhead.equations import attention
from clearhead.export.graphs import ConcatenatingCache, Graph
from clearhead.export.web.lesson import FIRST_LAYER, FirstLayerObserver, has_lesson
from clearhead.kernels.attention_backends import AttentionBackend, AttentionCall, always, attention_backend, never
from clearhead.layers.cache import DecoderCache, LayerCache
from clearhead.models.config import Pooling
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import pool
from clearhead.models.seq2seq import Seq2Seq
from clearhead.stacks.decoder import Decoder, DecoderLayer
from clearhead.stacks.encoder import Encoder

Switch = tuple[Tensor, Tensor | None]
"""Switches of an attention: its heads (H,), and the keys that it may attend to (1, M); 1 is on, 0 is off."""


class StackObserver:
    """Record the attention of one run of a stack, with heads and layers switched off.

    A head that is off has values Z_h = 0. A layer that is off returns its input.

    Args:
        stack: the stack.
        switches: switches of each attention, in the order in which the stack computes them.
        layers: switches of the layers (N,).

    Attributes:
        weights: attention weights (B, H, L, M) of each attention.
        calls: queries, keys and values of each attention.
        hidden: the input (B, L, D) of each layer, and the output of the last.
    """

    def __init__(self, stack: Encoder | Decoder, switches: Iterable[Switch], layers: Float[Tensor, "N"]) -> None:
        self.stack, self.layers = stack, layers
        self._switches = iter(switches)
        self.weights: list[Tensor] = []
        self.calls: list[AttentionCall] = []
        self.hidden: list[Tensor] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Observe the run of the stack in this context."""
        backend = AttentionBackend("observed", 0, self._compute, always, never)
        with contextlib.ExitStack() as stack:
            stack.enter_context(attention_backend(backend))
            for layer in self.stack.layers:
                stack.callback(layer.register_forward_hook(self._switch_layer).remove)
            yield

    def stacked(self, name: str, first: int = 0, step: int = 1) -> Tensor:
        """Return "q", "k" or "v" of every `step`th attention from the first on, stacked."""
        return torch.stack([getattr(call, name) for call in self.calls[first::step]])

    def _compute(self, call: AttentionCall) -> Tensor:
        heads, keys = next(self._switches)
        scores = attention.scores(call.q, call.k, scale=call.scale)
        # the only query of a step is the last one, which attends to all
        if call.mask is not None and not (call.mask.only_causal and call.queries == 1):
            scores = attention.masked(scores, call.mask)
        if keys is not None:
            scores = scores.masked_fill((keys == 0)[:, None, None], float("-inf"))
        weights = attention.softmax(scores)
        self.weights.append(weights)
        self.calls.append(call)
        return attention.weighted_sum(weights, call.v) * heads[:, None, None]

    def _switch_layer(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if not self.hidden:
            self.hidden.append(inputs[0])
        switched: Tensor = torch.where(self.layers[len(self.hidden) - 1] > 0, output, inputs[0])
        self.hidden.append(switched)
        return switched


class ObservedEncoder(nn.Module):
    """Graph of an encoder with its attention.

    `forward(ids, keep, heads, layers)`: ids (1, M), keep (1, M), heads (N, H) and layers (N,). Returns the attention
    weights (N, H, M, M), queries, keys and values (N, H, M, K) of all layers, and their inputs with the last output
    (N + 1, M, D); and before these the outputs of `_outputs`.

    Args:
        first_layer: also returns the outputs of `FIRST_LAYER`, at the end; None for a model without a lesson.
    """

    def __init__(self, first_layer: FirstLayerObserver | None = None) -> None:
        super().__init__()
        self.first_layer = first_layer

    def forward(
        self,
        ids: Int[Tensor, "1 M"],
        keep: Float[Tensor, "1 M"],
        heads: Float[Tensor, "N H"],
        layers: Float[Tensor, "N"],
    ) -> tuple[Tensor, ...]:
        observer = StackObserver(self._stack(), [(gates, keep) for gates in heads.unbind()], layers)
        with observer.running(), self.first_layer.running() if self.first_layer else contextlib.nullcontext():
            output = self._encode(ids)
        details = self.first_layer.results() if self.first_layer else ()
        parts = (torch.stack(observer.weights), *(observer.stacked(name) for name in "qkv"))
        return (
            *self._outputs(output, keep),
            *(part[:, 0] for part in parts),
            torch.stack(observer.hidden)[:, 0],
            *details,
        )

    def _stack(self) -> Encoder:
        raise NotImplementedError

    def _encode(self, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def _outputs(self, output: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError


class ObservedSourceEncoder(ObservedEncoder):
    """Graph from source ids to the keys and values (N, H, M, K) of all cross-attention layers."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__(FirstLayerObserver(model) if has_lesson(model.config) else None)
        self.model = model

    def _stack(self) -> Encoder:
        return self.model.encoder

    def _encode(self, ids: Tensor) -> Tensor:
        return self.model.encode(ids)

    def _outputs(self, output: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        pairs = []
        for layer in self.model.decoder.layers:
            cross = cast(DecoderLayer, layer).cross_attention
            pairs.append([attention.split_heads(part, cross.num_heads) for part in cross.kv(output).chunk(2, dim=-1)])
        return tuple(torch.cat(side) for side in zip(*pairs, strict=True))


class ObservedSentenceEncoder(ObservedEncoder):
    """Graph from ids to the vector (1, D) of a text."""

    def __init__(self, model: EncoderModel, pooling: Pooling, normalize: bool) -> None:
        super().__init__()
        self.model, self.pooling, self.normalize = model, pooling, normalize

    def _stack(self) -> Encoder:
        return self.model.encoder

    def _encode(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.model(ids)
        return hidden

    def _outputs(self, output: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        pooled = pool(output, keep > 0, self.pooling)
        return (functional.normalize(pooled, dim=-1) if self.normalize else pooled,)


class ObservedStep(nn.Module):
    """Graph of one decoding step: from the last token of each target to logits, attention, keys and values.

    `forward(ids, rows, past_keys, past_values, memory_keys, memory_values, keep, self_heads, cross_heads, layers)`:

    - ids (B, 1): the last token of each target; rows (B,): the row of the past that it continues.
    - past_keys and past_values (N, R, H, P, K): those of the previous step; P = 0 at the first.
    - memory_keys, memory_values (N, H, M, K): outputs of the encoder's graph, for all targets.
    - keep (1, M), self_heads (N, H), cross_heads (N, H), layers (N,): switches.

    Returns logits (B, V); keys and values (N, B, H, P + 1, K); weights of self-attention (N, B, H, P + 1) and
    cross-attention (N, B, H, M); queries of both (N, B, H, K); the layers' inputs with the last output (N + 1, B, D).
    """

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        ids: Int[Tensor, "B 1"],
        rows: Int[Tensor, "B"],
        past_keys: Float[Tensor, "N R H P K"],
        past_values: Float[Tensor, "N R H P K"],
        memory_keys: Float[Tensor, "N H M K"],
        memory_values: Float[Tensor, "N H M K"],
        keep: Float[Tensor, "1 M"],
        self_heads: Float[Tensor, "N H"],
        cross_heads: Float[Tensor, "N H"],
        layers: Float[Tensor, "N"],
    ) -> tuple[Tensor, ...]:
        decoder = self.model.decoder
        cache, past = DecoderCache(len(decoder.layers)), (past_keys[:, rows], past_values[:, rows])
        cache.layers = [
            LayerCache(ConcatenatingCache((past[0][index], past[1][index])), layer.cross_attention)
            for index, layer in enumerate(cache.layers)
        ]
        for index, layer in enumerate(cache.layers):
            layer.cross_attention.key_value = memory_keys[None, index], memory_values[None, index]
        switches: list[Switch] = []
        for own, cross in zip(self_heads.unbind(), cross_heads.unbind(), strict=True):
            switches += [(own, None), (cross, keep)]
        observer = StackObserver(decoder, switches, layers)
        memory = memory_keys[:1, 0]  # only the sizes of the memory matter: its keys and values are cached
        with observer.running():
            logits = self.model.decode(ids, memory, None, None, cache)
        # the targets are queries of one row of the memory
        cross_weights, cross_queries = torch.stack(observer.weights[1::2]), observer.stacked("q", 1, 2)
        return (
            logits[:, 0],
            observer.stacked("k", 0, 2),
            observer.stacked("v", 0, 2),
            torch.stack(observer.weights[::2])[:, :, :, 0],
            cross_weights[:, 0].transpose(1, 2),
            observer.stacked("q", 0, 2)[:, :, :, 0],
            cross_queries[:, 0].transpose(1, 2),
            torch.stack(observer.hidden)[:, :, 0],
        )


_OBSERVED = ["attention", "queries", "keys", "values", "hidden"]
_STEP_OUTPUTS = ["logits", "keys", "values", "self_attention", "cross_attention", "self_queries", "cross_queries"]


def encoder_graph(model: EncoderModel, pooling: Pooling, normalize: bool) -> Graph:
    """Return the graph of a text encoder: `vector` (1, D), and its attention as in `ObservedEncoder`."""
    module = ObservedSentenceEncoder(model, pooling, normalize)
    return _graph("encoder", module, model.encoder, ["vector", *_OBSERVED])


def seq2seq_graphs(model: Seq2Seq) -> list[Graph]:
    """Return the graphs of an encoder–decoder: of the encoder, and of one step of the decoder."""
    source = ObservedSourceEncoder(model)
    first_layer = FIRST_LAYER if source.first_layer is not None else []
    encoder = _graph("encoder", source, model.encoder, ["memory_keys", "memory_values", *_OBSERVED, *first_layer])
    with torch.no_grad():
        keys, values, *_ = encoder.module(*encoder.inputs.values())
    decoder, config = model.decoder, model.config
    num_layers, heads, past = len(decoder.layers), decoder.num_heads, 3
    rows, size = torch.tensor([1, 0, 1]), (num_layers, 2, heads, past, keys.shape[-1])
    past_axes, memory_axes = {1: "past_rows", 3: "past_length"}, {2: "length"}
    inputs: list[tuple[str, Tensor, dict[int, str]]] = [
        ("ids", torch.full((3, 1), config.start_id), {0: "rows"}),
        ("rows", rows, {0: "rows"}),
        ("past_keys", torch.zeros(size), past_axes),
        ("past_values", torch.zeros(size), past_axes),
        ("memory_keys", keys, memory_axes),
        ("memory_values", values, memory_axes),
        ("keep", torch.ones(1, keys.shape[2]), {1: "length"}),
        ("self_heads", torch.ones(num_layers, heads), {}),
        ("cross_heads", torch.ones(num_layers, heads), {}),
        ("layers", torch.ones(num_layers), {}),
    ]
    step = Graph(
        "decoder",
        ObservedStep(model).eval(),
        {name: example for name, example, _ in inputs},
        {name: axes for name, _, axes in inputs},
        [*_STEP_OUTPUTS, "hidden"],
    )
    return [encoder, step]


def _graph(name: str, module: ObservedEncoder, stack: Encoder, outputs: Sequence[str]) -> Graph:
    ids, num_layers = torch.arange(7)[None] % 5, len(stack.layers)
    switches = {"heads": torch.ones(num_layers, stack.num_heads), "layers": torch.ones(num_layers)}
    return Graph(
        name,
        module.eval(),
        {"ids": ids, "keep": torch.ones(1, 7), **switches},
        {"ids": {1: "length"}, "keep": {1: "length"}, "heads": {}, "layers": {}},
        list(outputs),
    )
