"""Every step of a real forward pass: its equation, its named shape, its values.

The model runs as it is, with hooks on its modules. The steps inside attention that a fused kernel hides are replayed
beside it by the explicit equations, from the projections that were observed; where no values are asked for, they are
replayed on shapes alone.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.equations import attention, embedding, feedforward, masks, norm, positions, stated
from clearhead.equations.masks import MaskLike
from clearhead.layers.attention import MultiHeadAttention, RelativeBias
from clearhead.layers.embedding import (
    Embedding,
    LearnedPositionalEncoding,
    PositionalEncoding,
    TokenEmbedding,
    TokenTypes,
)
from clearhead.layers.feedforward import GatedFeedForward, PositionwiseFeedForward
from clearhead.layers.norm import LayerNorm
from clearhead.layers.residual import PostNorm, PreNorm
from clearhead.models.encoder import Pooler

Named = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Statistics:
    """Mean, standard deviation and extremes of a step's numbers that are finite."""

    mean: float
    std: float
    min: float
    max: float


@dataclass(frozen=True)
class Step:
    """One step of a forward pass.

    Args:
        path: where in the model.
        operation: what is done, in the field's words.
        equation: its formula, as the equation's own file states it.
        shape: the result's dimensions by name, such as (("B", 1), ("H", 8), ("Lq", 6), ("Lk", 6)).
        dtype: the result's numbers, such as "float32".
        parameters: how many trained numbers the step uses.
        values: statistics of the result, where they were asked for.
    """

    path: str
    operation: str
    equation: str
    shape: Named
    dtype: str
    parameters: int
    values: Statistics | None = None

    @property
    def named_shape(self) -> str:
        """The shape as people write it: [B=1, H=8, Lq=6, Lk=6]."""
        return "[" + ", ".join(f"{name}={size}" for name, size in self.shape) + "]"

    def as_dict(self) -> dict[str, Any]:
        """The step as plain JSON values; "values" is there where statistics were asked for."""
        data: dict[str, Any] = {
            "path": self.path,
            "operation": self.operation,
            "equation": self.equation,
            "shape": [[name, size] for name, size in self.shape],
            "dtype": self.dtype,
            "parameters": self.parameters,
        }
        if self.values is not None:
            data["values"] = vars(self.values)
        return data


@dataclass(frozen=True)
class Trace:
    """The steps of one forward pass in order, and what the model returned.

    `str` gives them as a table.
    """

    steps: tuple[Step, ...]
    output: Any

    def __str__(self) -> str:
        rows = [(step.path, step.operation, step.named_shape, step.equation) for step in self.steps]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in rows
        )


def trace(model: nn.Module, *inputs: Any, values: bool = False) -> Trace:
    """Runs a model once and tells every step of it.

    The model's result, mode and weights stay as they are. In training mode the dropout that really happened is
    shown, but the attention weights' own is not replayed.

    Args:
        model: any module of this library, or a module that holds some.
        *inputs: what `model` is called with.
        values: compute mean, spread and extremes of each step as well.

    Returns:
        The trace: `steps`, and the model's `output`.

    >>> import torch; from clearhead import Encoder, trace
    >>> trace(Encoder(512, 2048, 8, 0.1, 5), torch.rand(2, 10, 512)).steps[2].named_shape
    '[B=2, H=8, Lq=10, Lk=10]'
    """
    watcher = _Watcher(values)
    with watcher.hooks(model):
        output = model(*inputs)
    return Trace(tuple(watcher.steps), output)


@dataclass(frozen=True)
class _Kind:
    """What a module's result is called: operation, stating function, names of its dimensions."""

    operation: str
    states: object
    names: str


_RELU, _GELU, _GELU_TANH = (
    _Kind(name, equation, "B L F")
    for name, equation in (
        ("ReLU", feedforward.relu),
        ("GELU", feedforward.gelu),
        ("GELU (tanh)", feedforward.gelu_tanh),
    )
)
_DROPOUT = _Kind("dropout", norm.dropout, "B L D")
_PARTS: dict[type[nn.Module], dict[str, _Kind]] = {
    MultiHeadAttention: {
        "qkv": _Kind("projection", attention.project, "B L 3D"),
        "out": _Kind("output", attention.output, "B L D"),
    },
    PositionwiseFeedForward: {
        "inner": _Kind("linear", feedforward.expand, "B L F"),
        "dropout": _Kind("dropout", norm.dropout, "B L F"),
        "out": _Kind("linear", feedforward.contract, "B L D"),
    },
    GatedFeedForward: {
        "inner": _Kind("linear", feedforward.expand, "B L 2F"),
        "dropout": _Kind("dropout", norm.dropout, "B L F"),
        "out": _Kind("linear", feedforward.contract, "B L D"),
    },
    PostNorm: {"dropout": _DROPOUT},
    PreNorm: {"dropout": _DROPOUT},
    Embedding: {"dropout": _DROPOUT},
}
_WHOLE: dict[type[nn.Module], _Kind] = {
    TokenEmbedding: _Kind("token embedding", embedding.embed, "B L D"),
    PositionalEncoding: _Kind("positions", positions.sinusoids, "B L D"),
    LearnedPositionalEncoding: _Kind("positions", positions.add_positions, "B L D"),
    TokenTypes: _Kind("token types", embedding.add_token_types, "B L D"),
    LayerNorm: _Kind("layer norm", norm.layer_norm, "B L D"),
    Pooler: _Kind("pooler", Pooler, "B D"),
    RelativeBias: _Kind("relative bias", RelativeBias, "B H Lq Lk"),
    nn.ReLU: _RELU,
    nn.GELU: _GELU,
    nn.SiLU: _Kind("SiLU", feedforward.silu, "B L F"),
}


class _Watcher:
    """Turns what the hooks see into steps."""

    def __init__(self, values: bool) -> None:
        self.values = values
        self.steps: list[Step] = []
        self._masks: dict[str, MaskLike] = {}

    # the model itself runs under whatever gradient mode the caller has: another one could choose another kernel
    @contextlib.contextmanager
    def hooks(self, model: nn.Module) -> Iterator[None]:
        """Hooks on every module that has something to tell, taken off at the end."""
        handles = [handle for path, module in model.named_modules() for handle in self._hook(model, path, module)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, model: nn.Module, path: str, module: nn.Module) -> Iterator[Any]:
        parent = model.get_submodule(path.rpartition(".")[0]) if path else None
        kind = _kind(parent, path.rpartition(".")[2], module)
        if isinstance(module, MultiHeadAttention):
            yield module.register_forward_pre_hook(partial(self._remember_mask, path), with_kwargs=True)
            yield module.qkv.register_forward_hook(partial(self._after_projection, path, module))
            yield module.out.register_forward_pre_hook(partial(self._before_output, path, module))
            yield module.out.register_forward_hook(
                partial(self._after, _dotted(path, "out"), _PARTS[MultiHeadAttention]["out"])
            )
        elif isinstance(module, PostNorm):
            # what reaches the norm is the sum
            yield module.norm.register_forward_pre_hook(partial(self._before_norm, path))
        elif isinstance(module, PreNorm):
            yield module.register_forward_hook(partial(self._after, _dotted(path, "add"), _ADD))
        elif isinstance(module, GatedFeedForward):
            yield module.dropout.register_forward_pre_hook(partial(self._before_gated_dropout, path))
        elif kind is not None and not isinstance(parent, MultiHeadAttention):
            yield module.register_forward_hook(partial(self._after, path, kind))

    def _after(self, path: str, kind: _Kind, module: nn.Module, inputs: Any, output: Tensor) -> None:
        own = isinstance(module, nn.Linear) or kind in _WHOLE.values()
        count = sum(parameter.numel() for parameter in module.parameters()) if own else 0
        self._tell(path, kind.operation, kind.states, kind.names, output, count)

    def _remember_mask(self, path: str, module: nn.Module, inputs: Any, kwargs: dict[str, Any]) -> None:
        self._masks[path] = inputs[1] if len(inputs) > 1 else kwargs.get("mask")

    @torch.no_grad()
    def _after_projection(
        self, path: str, module: MultiHeadAttention, qkv: nn.Module, inputs: Any, output: Tensor
    ) -> None:
        self._after(_dotted(path, "qkv"), _PARTS[MultiHeadAttention]["qkv"], qkv, inputs, output)
        seen = output.detach() if self.values else output.detach().to("meta")
        q, k, _ = (attention.split_heads(part, module.num_heads) for part in seen.chunk(3, dim=-1))
        self._tell(_dotted(path, "split_heads"), "split heads", attention.split_heads, "B H L d_k", q)
        if module.rotary is not None:
            given = self._mask(path, module, q)
            q, k = module.rotary(q, given), module.rotary(k, given)
            self._tell(_dotted(path, "rotary"), "rotary", positions.rotate, "B H L d_k", q)
        scores = attention.scores(q, k)
        self._tell(_dotted(path, "scores"), "scores", attention.scores, _SCORES, scores)
        masked = attention.masked(scores, self._mask(path, module, q)) if self.values else scores
        self._tell(_dotted(path, "mask"), "mask", attention.masked, _SCORES, masked)
        weights = attention.softmax(masked) if self.values else masked
        self._tell(_dotted(path, "softmax"), "softmax", attention.softmax, _SCORES, weights)

    def _mask(self, path: str, module: MultiHeadAttention, q: Tensor) -> masks.Mask | None:
        batch, heads, length, _ = q.shape
        given = masks.of(self._masks[path], batch=batch, heads=heads, queries=length, keys=length)
        return module.local(given, length)

    def _before_output(self, path: str, module: MultiHeadAttention, out: nn.Module, inputs: Any) -> None:
        merged: Tensor = inputs[0]
        values = attention.split_heads(merged, module.num_heads)
        self._tell(_dotted(path, "weighted_sum"), "weighted sum", attention.weighted_sum, "B H L d_v", values)
        self._tell(_dotted(path, "merge"), "merge", attention.merge_heads, "B L D", merged)

    def _before_norm(self, path: str, module: nn.Module, inputs: Any) -> None:
        self._tell(_dotted(path, "add"), "add", norm.add, "B L D", inputs[0])

    def _before_gated_dropout(self, path: str, module: nn.Module, inputs: Any) -> None:
        self._tell(_dotted(path, "gate"), "gate", feedforward.gate, "B L F", inputs[0])

    def _tell(self, path: str, operation: str, states: object, names: str, result: Tensor, parameters: int = 0) -> None:
        # a part that is called by itself may come without a batch, or with more dimensions before its own
        labels = names.split()
        missing = result.ndim - len(labels)
        labels = [f"N{number}" for number in range(1, missing + 1)] + labels[max(0, -missing) :]
        self.steps.append(
            Step(
                path=path,
                operation=operation,
                equation=stated(states),
                shape=tuple(zip(labels, result.shape, strict=True)),
                dtype=str(result.dtype).removeprefix("torch."),
                parameters=parameters,
                values=_statistics(result) if self.values else None,
            )
        )


_SCORES = "B H Lq Lk"
_ADD = _Kind("add", norm.add, "B L D")


def _kind(parent: nn.Module | None, name: str, module: nn.Module) -> _Kind | None:
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        return _GELU_TANH
    return (_PARTS.get(type(parent), {}).get(name) if parent is not None else None) or _WHOLE.get(type(module))


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _statistics(result: Tensor) -> Statistics | None:
    numbers = result.detach().float()
    finite = numbers.isfinite()
    if not finite.all():
        numbers = numbers[finite]
    if not numbers.numel():
        return None
    std, mean = torch.std_mean(numbers, correction=0)
    low, high = numbers.aminmax()
    return Statistics(float(mean), float(std), float(low), float(high))
