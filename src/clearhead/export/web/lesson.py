"""Data of the lesson's page: results inside the first encoder layer, and a description of the model."""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor, nn

from clearhead.layers.feedforward import GATES
from clearhead.layers.norm import LayerNorm
from clearhead.models.config import Seq2SeqConfig
from clearhead.models.seq2seq import Seq2Seq
from clearhead.stacks.encoder import EncoderLayer

FIRST_LAYER = ["embedded", "attended", "normed", "inner", "transformed"]
"""Outputs: the scaled token embeddings, multi-head attention, its residual with the norm, and inside and after FFN."""

POSITIONS = ("sinusoidal", "concatenated")
"""Kinds of positions that the lesson explains."""


def has_lesson(config: Seq2SeqConfig) -> bool:
    """Return whether a model has the equations of the lesson: those of the paper, with any activation except gates.

    The lesson has one embedding: of the source, of the target and of the output.
    """
    plain = not (config.embedding_norm or config.position_offset or config.relative_buckets or config.output_scale)
    paper = config.norm_order == "post" and config.norm == "layer" and config.scale_scores and config.embedding_scale
    plain = plain and config.bias and config.tie_output and config.share_embeddings
    return plain and paper and config.positions in POSITIONS and config.activation not in GATES


def describe_lesson(model: Seq2Seq) -> dict[str, Any] | None:
    """Return the description of a model for the lesson's page; None for a model without a lesson."""
    config = model.config
    if not has_lesson(config):
        return None
    norm = cast(LayerNorm, cast(EncoderLayer, model.encoder.layers[0]).attention_residual.norm)
    return {
        "positions": config.positions,
        "activation": config.activation,
        "bias": config.output_bias,
        "inner": config.ffn_hidden,
        "norm": {"eps": norm.eps, "gamma": norm.weight.tolist(), "beta": cast(Tensor, norm.bias).tolist()},
    }


class FirstLayerObserver:
    """Record the results inside the first encoder layer of a run.

    Args:
        model: an encoder–decoder with a lesson.
    """

    def __init__(self, model: Seq2Seq) -> None:
        layer = cast(EncoderLayer, model.encoder.layers[0])
        network = cast(Any, layer.feedforward)
        self._modules: dict[str, nn.Module] = {
            "attended": layer.attention,
            "normed": layer.attention_residual,
            "inner": network.activation,
            "transformed": layer.feedforward,
        }
        self._positions = cast(nn.Module, model.source_embedding.positions)
        self._results: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Observe the run in this context."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._positions.register_forward_pre_hook(self._keep_input).remove)
            for name, module in self._modules.items():
                stack.callback(module.register_forward_hook(self._keeper(name)).remove)
            yield

    def results(self) -> tuple[Tensor, ...]:
        """Return the results of the last run: those of `FIRST_LAYER`, without the batch."""
        return tuple(self._results[name][0] for name in FIRST_LAYER)

    def _keep_input(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._results["embedded"] = inputs[0]

    def _keeper(self, name: str) -> Any:
        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            self._results[name] = output

        return keep
