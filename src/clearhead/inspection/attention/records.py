"""Recorded attention weights of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from clearhead.inspection.attention import plot
from clearhead.inspection.attention.table import weights_table
from clearhead.inspection.attention.weights import AttentionWeights, Part
from clearhead.io.atomic import atomic_file
from clearhead.io.outputs import check_writable

_EMPTY = "Nothing was recorded: the model did not run inside the with block."


@dataclass
class AttentionRecords:
    """The recorded attention weights, call by call."""

    records: list[AttentionWeights] = field(default_factory=list)

    def arrays(self) -> dict[str, list[np.ndarray]]:
        """Return the weights as float32 arrays (B, heads, L, M) by path, one for each call."""
        result: dict[str, list[np.ndarray]] = {}
        for record in self.records:
            result.setdefault(record.path, []).append(record.values.float().cpu().numpy())
        return result

    def _repr_html_(self) -> str:
        """Return small maps of the last call of each layer, for notebooks."""
        return weights_table(self._last_call()) if self.records else f"<p>{_EMPTY}</p>"

    def get(self, layer: int, head: int, part: Part = "encoder", call: int = -1) -> Float[Tensor, "B L M"]:
        """Return the weights of one head.

        Args:
            layer, head: indices from 0.
            part: as in `AttentionLayer`.
            call: index of the call; the last one by default.

        Raises:
            ValueError: the head was not recorded, or has fewer calls.
        """
        if not self.records:
            raise ValueError(_EMPTY)
        calls = [record for record in self.records if (record.part, record.layer) == (part, layer)]
        if not calls or head not in calls[0].heads:
            recorded = {f"{record.part} {record.layer}.{index}" for record in self.records for index in record.heads}
            raise ValueError(f"{part} {layer}.{head} was not recorded. Recorded heads: {', '.join(sorted(recorded))}.")
        if not -len(calls) <= call < len(calls):
            raise ValueError(f"Call {call} was not recorded. {part} {layer} ran in calls 0 to {len(calls) - 1}.")
        record = calls[call]
        return record.values[:, record.heads.index(head)]

    def plot(
        self,
        path: str | Path | None = None,
        *,
        row: int = 0,
        queries: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
    ) -> Any:
        """Plot a map for each layer and head in the last call.

        For a generation, this is the last call with all texts of the batch. Finished texts leave the batch, and the
        rows of later calls are other texts.

        Args:
            path: a PNG file to write; None for none.
            row: index of the text in the batch.
            queries, keys: tokens to write at maps with as many rows or columns, at most 40; keys default to queries.

        Returns:
            The matplotlib figure.

        Raises:
            ValueError: nothing was recorded, the row or the folder of the path does not exist, or matplotlib is not
                installed.
        """
        if path is not None:
            check_writable(Path(path))
        if not self.records:
            raise ValueError(_EMPTY)
        figure = plot.maps(self._last_call(), row, queries, keys)
        if path is not None:
            with atomic_file(path) as file:
                figure.savefig(file, format="png", dpi=110)
        return figure

    def _last_call(self) -> list[AttentionWeights]:
        """Return the last record of each attention from the last run, while its batch had all texts."""
        first = self.records[0].path  # of the encoder, if there is one, which runs once in each run
        has_encoder = self.records[0].part == "encoder"
        starts = [index for index, record in enumerate(self.records) if record.path == first]
        result: dict[str, AttentionWeights] = {}
        for record in self.records[starts[-1] if has_encoder else 0 :]:
            before = result.get(record.path)
            if before is None or not has_encoder or len(record.values) >= len(before.values):
                result[record.path] = record
        return list(result.values())
