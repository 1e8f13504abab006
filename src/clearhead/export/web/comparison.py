"""Compare the graphs of a web page with the model in ONNX Runtime, and measure the loss of 8-bit weights."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from clearhead.export.graphs import Graph
from clearhead.export.output import ExportReport
from clearhead.export.parity import check_bound, cosine_loss, relative_error
from clearhead.runtime.onnx import OnnxGraph

Outputs = dict[str, Tensor]

Pair = tuple[Sequence[int], Sequence[int]]
"""Source ids, and target ids with the start token."""

_STEPS = 24
"""Maximum number of steps of each output that are compared."""


class GraphRunner:
    """A graph that runs in ONNX Runtime, or as the module that it was made of.

    Args:
        graph: the graph.
        folder: a folder with its file and its weights; None to run the module.
    """

    def __init__(self, graph: Graph, folder: Path | None) -> None:
        self.graph = graph
        self.written = None if folder is None else OnnxGraph(folder / f"{graph.name}.onnx")

    def run(self, inputs: Mapping[str, Tensor]) -> Outputs:
        """Return the outputs by name; switches that are not given are on."""
        given = {
            name: inputs[name] if name in inputs else torch.ones_like(self.graph.inputs[name])
            for name in self.graph.inputs
        }
        if self.written is not None:
            return self.written.run({name: tensor.contiguous() for name, tensor in given.items()})
        with torch.inference_mode():
            return dict(zip(self.graph.outputs, self.graph.module(*given.values()), strict=True))


def run_encoder(runner: GraphRunner, ids: Sequence[int]) -> Outputs:
    """Return the outputs of an encoder's graph for token ids."""
    return runner.run({"ids": torch.tensor([list(ids)]), "keep": torch.ones(1, len(ids))})


def run_target(runners: Sequence[GraphRunner], source: Sequence[int], target: Sequence[int]) -> Iterator[Outputs]:
    """Yield the outputs of the encoder, and of each step for the tokens of a target; two equal rows are computed."""
    encoder, *decoder = runners
    encoded = run_encoder(encoder, source)
    yield encoded
    if not decoder:
        return
    (step,) = decoder
    memory = {name: encoded[name] for name in ("memory_keys", "memory_values")}
    layers, heads, _, width = memory["memory_keys"].shape
    past = torch.zeros(layers, 1, heads, 0, width)
    outputs = {"keys": past, "values": past}
    rows = torch.zeros(2, dtype=torch.long)
    for token in target[:_STEPS]:
        kept = {"past_keys": outputs["keys"], "past_values": outputs["values"], "keep": torch.ones(1, len(source))}
        outputs = step.run({"ids": torch.full((2, 1), token), "rows": rows, **memory, **kept})
        rows = torch.tensor([1, 0])
        yield outputs


def compare(graphs: Sequence[Graph], folder: Path, pairs: Sequence[Pair], report: ExportReport, *, int8: bool) -> None:
    """Compare graphs with the model, and report the largest error, or the loss of 8-bit weights.

    Args:
        graphs: graphs of the encoder and, if there is one, of a step of the decoder.
        folder: the folder with their files and the expanded weights.
        pairs: source ids, and target ids with the start token; () for an encoder.
        report: receives the result.
        int8: whether the weights have 8 bits.

    Raises:
        ValueError: without int8, the error exceeds the bound.
    """
    results, models = ([GraphRunner(graph, where) for graph in graphs] for where in (folder, None))
    if not int8:
        steps = (
            both
            for source, target in pairs
            for both in zip(run_target(results, source, target), run_target(models, source, target), strict=True)
        )
        error = max(relative_error(result[name], model[name]) for result, model in steps for name in model)
        report.error[" and ".join(f"{graph.name}.onnx" for graph in graphs)] = check_bound(error, "its outputs are")
    elif len(graphs) > 1:
        report.loss |= _token_loss(results, pairs)
    else:
        vectors = [torch.cat([run_encoder(one[0], row)["vector"] for row, _ in pairs]) for one in (results, models)]
        report.loss |= cosine_loss(*vectors)


def _token_loss(runners: Sequence[GraphRunner], pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the share of the tokens of the model's own outputs that stay the most probable."""
    unchanged = []
    for source, target in pairs:
        steps = list(run_target(runners, source, target[:-1]))[1:]
        unchanged += [int(step["logits"][0].argmax()) == token for step, token in zip(steps, target[1:], strict=False)]
    return {f"share of {len(unchanged)} tokens that stay the most probable": sum(unchanged) / max(1, len(unchanged))}
