"""What a run writes down as it goes: metrics.csv, TensorBoard's events, a picture of the curves."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from clearhead.io.atomic import atomic_file, error_path

COLUMNS = ("step", "epoch", "loss", "learning_rate", "gradient_norm", "tokens_per_second", "validation_loss")
"""Of metrics.csv; the task's scores follow. Rows of a validation have no loss of their own."""

Row = dict[str, float | int]


class MetricsLogger:
    """A row of numbers for each logged step and each validation.

    Args:
        folder: the run's.
        scores: names of what validation measures beside the loss.
        step: the step that the run goes on from; what was written beyond it is taken back.
    """

    def __init__(self, folder: Path, scores: Sequence[str], step: int) -> None:
        # slow to import, and only wanted here
        from torch.utils.tensorboard import SummaryWriter

        self.columns = [*COLUMNS, *scores]
        self._folder = folder
        self.rows = [row for row in read_metrics(folder / "metrics.csv") if row["step"] <= step]
        self._events = SummaryWriter(str(folder / "events"), purge_step=step + 1)
        self.flush()

    def add(self, step: int, values: Mapping[str, float | int]) -> None:
        """Notes numbers of a step."""
        self.rows.append({"step": step, **values})
        path = self._folder / "metrics.csv"
        with error_path(path), path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(self.rows[-1])
        for name, value in values.items():
            if name != "epoch":
                self._events.add_scalar(name, value, step)

    def flush(self) -> None:
        """Writes metrics.csv and the picture anew, whole."""
        with atomic_file(self._folder / "metrics.csv") as raw:
            lines = [self.columns, *([str(row.get(name, "")) for name in self.columns] for row in self.rows)]
            raw.write("".join(",".join(line) + "\r\n" for line in lines).encode())
        self._events.flush()
        if self.rows:
            _draw(self._folder / "curves.png", self.rows, self.columns[len(COLUMNS) :])

    def close(self) -> None:
        """Writes all there is, and ends."""
        self.flush()
        self._events.close()


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics.csv, without what a row does not say; [] where there is no such file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        # a line without its end was cut off in the middle, maybe of a number
        read = csv.DictReader(line for line in file if line.endswith("\n"))
        width = len(read.fieldnames or ())
        whole = [row for row in read if None not in row.values() and len(row) == width]
    return [{name: _number(name, value) for name, value in row.items() if value} for row in whole]


def _number(name: str, value: str) -> float | int:
    return int(value) if name in ("step", "epoch") else float(value)


_LABELS = {"loss": "training, with its regularisers", "validation_loss": "held-out data, without them"}


def _draw(path: Path, rows: Sequence[Row], scores: Sequence[str]) -> None:
    """The losses over the steps, and below them the scores."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    held = [name for name in scores if any(name in row for row in rows)]
    figure = Figure(figsize=(8, 4 if not held else 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if held else 1, 1, squeeze=False, sharex=True)[:, 0]
    for axis, names in zip(axes, [("loss", "validation_loss"), tuple(held)], strict=False):
        for number, name in enumerate(names):
            points = [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
            if points:
                # dashes over a line, so that two scores that agree are both seen
                style = (
                    {}
                    if name == "loss"
                    else {"marker": "o", "markersize": 3, "linestyle": ("-", "--", ":")[number % 3]}
                )
                axis.plot(*zip(*points, strict=True), label=_LABELS.get(name, name.replace("_", " ")), **style)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    axes[0].set_ylabel("loss")
    if held:
        axes[1].set_ylabel("score on held-out data")
    figure.suptitle(path.parent.name)
    axes[-1].set_xlabel("step")
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)
