"""Write the metrics of a run: metrics.csv, TensorBoard events and a plot."""

import contextlib
import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clearhead.io.atomic import atomic_file, error_path

COLUMNS = ("step", "epoch", "loss", "learning_rate", "gradient_norm", "tokens_per_second", "validation_loss")
"""Columns of metrics.csv before the task's metrics. Rows of a validation have no training loss."""

_SPEED = "tokens_per_second"

Row = dict[str, float | int]

_SMALL = ("loss", "validation_loss", "spearman", "pearson")
"""Scores that are not percentages."""


def format_scores(scores: Mapping[str, float]) -> str:
    """Return scores with their names: percentages with two decimals, losses and correlations with four.

    >>> from clearhead.train.loop.metrics_logger import format_scores
    >>> format_scores({"loss": 0.25, "macro_f1": 80.0})
    'loss 0.2500  macro f1 80.00'
    """
    return "  ".join(
        f"{name.replace('_', ' ')} {value:.{4 if name in _SMALL else 2}f}" for name, value in scores.items()
    )


class MetricsLogger:
    """Log one row per logged step and one per validation.

    Args:
        folder: folder of the run.
        metrics: names of the validation metrics other than the loss.
        step: last step before the run resumes.
        rows: the rows until then, from `rows_without_speed`; None for those in metrics.csv.
    """

    def __init__(self, folder: Path, metrics: Sequence[str], step: int, rows: Sequence[Row] | None = None) -> None:
        # slow to import, and only needed here
        from clearhead.train.loop.tensorboard_events import TensorBoardEvents

        self.columns = [*COLUMNS, *metrics]
        self._folder = folder
        former = read_metrics(folder / "metrics.csv") if rows is None else _add_speed(rows, folder / "metrics.csv")
        self.rows = [row for row in former if row["step"] <= step]
        self._events = TensorBoardEvents(folder / "events", step + 1)
        self.flush()

    def rows_without_speed(self) -> list[Row]:
        """Return the rows without the speed, which differs between two runs."""
        return [{name: value for name, value in row.items() if name != _SPEED} for row in self.rows]

    def log(self, step: int, values: Mapping[str, float | int]) -> None:
        """Append the values of a step."""
        self.rows.append({"step": step, **values})
        path = self._folder / "metrics.csv"
        with error_path(path), path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(self.rows[-1])
        for name, value in values.items():
            if name != "epoch":
                self._events.add(name, value, step)
        self._events.flush()

    def flush(self) -> None:
        """Rewrite metrics.csv and the plot atomically."""
        with atomic_file(self._folder / "metrics.csv") as raw:
            lines = [self.columns, *([str(row.get(name, "")) for name in self.columns] for row in self.rows)]
            raw.write("".join(",".join(line) + "\r\n" for line in lines).encode())
        self._events.flush()
        if self.rows:
            _plot(self._folder / "curves.png", self.rows, self.columns[len(COLUMNS) :])

    def close(self) -> None:
        """Write everything and close the files."""
        self.flush()
        self._events.close()


def read_metrics(path: Path) -> list[Row]:
    """Return the rows of a metrics.csv without their empty cells, or [] if the file does not exist.

    Raises:
        ValueError: the file is damaged; the error names it.
    """
    if not path.is_file():
        return []
    try:
        with error_path(path), path.open(encoding="utf-8", newline="") as file:
            # a line without its end was cut off, perhaps in the middle of a number
            reader = csv.DictReader(line for line in file if line.endswith("\n"))
            width = len(reader.fieldnames or ())
            complete = [row for row in reader if None not in row.values() and len(row) == width]
        rows = [{name: _parse(name, value) for name, value in row.items() if value} for row in complete]
        if any("step" not in row for row in rows):
            raise ValueError("a row has no step")
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}; remove it") from None
    return rows


def _add_speed(rows: Sequence[Row], path: Path) -> list[Row]:
    """Return rows with the speeds that metrics.csv has for them."""
    speeds: dict[float, float] = {}
    with contextlib.suppress(ValueError):  # the file is damaged
        speeds = {row["step"]: row[_SPEED] for row in read_metrics(path) if _SPEED in row}
    return [{**row, _SPEED: speeds[row["step"]]} if "loss" in row and row["step"] in speeds else row for row in rows]


def _parse(name: str, value: str) -> float | int:
    return int(value) if name in ("step", "epoch") else float(value)


_LABELS = {"loss": "training, with regularizers", "validation_loss": "held-out data, without regularizers"}


def _plot(path: Path, rows: Sequence[Row], metrics: Sequence[str]) -> None:
    """Plot the losses over the steps, and the metrics below them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    logged = [name for name in metrics if any(name in row for row in rows)]
    figure = Figure(figsize=(8, 4 if not logged else 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if logged else 1, 1, squeeze=False, sharex=True)[:, 0]
    for axis, names in zip(axes, [("loss", "validation_loss"), tuple(logged)], strict=False):
        _plot_lines(axis, rows, names)
    axes[0].set_ylabel("loss")
    if logged:
        axes[1].set_ylabel("score on held-out data")
    figure.suptitle(path.parent.name)
    axes[-1].set_xlabel("step")
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)


def _plot_lines(axis: Any, rows: Sequence[Row], names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        points = [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
        if points:
            # different line styles keep two equal curves visible
            style = {"marker": "o", "markersize": 3, "linestyle": ("-", "--", ":")[number % 3]}
            label = _LABELS.get(name, name.replace("_", " "))
            axis.plot(*zip(*points, strict=True), label=label, **({} if name == "loss" else style))
    axis.grid(alpha=0.3)
    if axis.lines:
        axis.legend()
