"""Record the steps, heat maps and attention maps of one run for the page."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from clearhead.finite import NonFiniteError
from clearhead.inspection.attention.capture import attention_layers
from clearhead.inspection.attention.weights import AttentionLayer
from clearhead.inspection.report.heatmaps import AttentionMap, Blobs, Heatmap, Json, attention_maps, heatmap, pack
from clearhead.inspection.report.mathml import mathml
from clearhead.inspection.trace.records import Operation, Recorder, join_path
from clearhead.inspection.trace.trace import recording

_HEATMAP_CELLS = 1_200_000
"""Cells of all heat maps together, so that the page of a short sentence is smaller than 2 MB."""
MAP_CHARACTERS = 34_000_000
"""Characters of all attention maps together, so that the page is smaller than 40 MB."""

MapIndex = tuple[str, int, int]
"""Part ("encoder", "decoder" or "cross"), layer and head of an attention map."""


class PageRecorder(Recorder):
    """Recorder of steps with a heat map each, and of all attention maps.

    Args:
        model: the model.
        full_maps: attention maps to keep at full size.
        max_cells: cells of one heat map.
        blobs: receives the bytes of the maps.
    """

    def __init__(self, model: nn.Module, full_maps: frozenset[MapIndex], max_cells: int, blobs: Blobs) -> None:
        super().__init__(values=True)
        self.heatmaps: list[Heatmap] = []
        self.attention: list[tuple[Json, list[AttentionMap]]] = []
        # layers that share weights have the same path, and run in their order
        self._layers: dict[str, list[AttentionLayer]] = {}
        for layer in attention_layers(model):
            self._layers.setdefault(join_path(layer.path, "softmax"), []).append(layer)
        self._full_maps, self._max_cells, self._blobs = full_maps, max_cells, blobs

    def record(self, path: str, operation: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        _check_step(result, path)
        super().record(path, operation, result, module)
        self.heatmaps.append(heatmap(result.detach(), self._max_cells, self._blobs))
        if self._layers.get(path):
            layer = self._layers[path].pop(0)
            data = {"part": layer.part, "layer": layer.layer, "path": layer.path}
            data |= {"queries": result.shape[2], "keys": result.shape[3]}
            self.attention.append((data, attention_maps(layer, result[0].detach(), self._full_maps)))


def _check_step(result: Tensor, path: str) -> None:
    """Raise an error for NaN or +∞ in the result of a step; −∞ is the score of a masked key."""
    if result.is_floating_point() and result.numel() and not float(result.detach().amax()) < math.inf:
        raise NonFiniteError(f"step {path}", 0)


def check_maps(model: nn.Module, full_maps: Sequence[MapIndex]) -> None:
    """Raise ValueError for an attention map that the model does not have."""
    last: dict[str, str] = {}
    available = set()
    for layer in attention_layers(model):
        available |= {(layer.part, layer.layer, head) for head in range(layer.num_heads)}
        last[layer.part] = f"{layer.part}.{layer.layer}.{layer.num_heads - 1}"
    for part, index, head in full_maps:
        if (part, index, head) not in available:
            last_maps = ", ".join(last.values())
            raise ValueError(f"The model has no attention map {part}.{index}.{head}; the last ones are {last_maps}.")


def run_data(model: nn.Module, run: Callable[[Recorder], object], full_maps: frozenset[MapIndex]) -> Json:
    """Run the model twice: to count the steps, which share the cells of the heat maps, and to record them.

    Args:
        model: the model.
        run: runs the model, and may record steps that follow it.
        full_maps: attention maps to keep at full size.
    """
    blobs, counter = Blobs(), Recorder(values=False)
    with recording(model, counter):
        run(counter)
    recorder = PageRecorder(model, full_maps, _HEATMAP_CELLS // len(counter.steps), blobs)
    with recording(model, recorder):
        run(recorder)
    return {
        "steps": [
            step.as_dict() | {"named_shape": step.named_shape, "heat": vars(heat)}
            for step, heat in zip(recorder.steps, recorder.heatmaps, strict=True)
        ],
        "equations": {step.equation: mathml(step.equation) for step in recorder.steps},
        "attention": pack(recorder.attention, MAP_CHARACTERS, blobs),
        "blobs": blobs.texts,
    }
