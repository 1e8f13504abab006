"""Report measurements as a table, a JSON file and a bar chart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clearhead.benchmark.runner import Measurements
from clearhead.io.atomic import atomic_file
from clearhead.io.json import finite_or_none
from clearhead.io.json import write_json as write


def table(measurements: Sequence[Measurements], unit: str, notes: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines of a text table.

    Args:
        measurements: measurements of all candidates; the first is the reference of the speedups.
        unit: unit of the rates, such as "tokens/s".
        notes: additional text for candidates, by name.
    """
    notes = notes or {}
    width = max(len(one.name) for one in measurements)
    lines = [f"{'':{width}}  {unit:>10}  {'speedup (min to max)':>22}  {'peak MiB':>9}"]
    for one in measurements:
        ratio = f"{one.ratio:.2f} ({one.lowest:.2f} to {one.highest:.2f})"
        memory = "–" if math.isnan(one.peak_mib) else f"{one.peak_mib:,.0f}"
        note = f"  {notes[one.name]}" if one.name in notes else ""
        lines.append(f"{one.name:{width}}  {one.median:10,.0f}  {ratio:>22}  {memory:>9}{note}")
    return lines


def write_report(path: Path, measurements: Sequence[Measurements], about: Mapping[str, Any]) -> None:
    """Write measurements and their metadata as JSON."""
    write(path, {**about, "figures": [_as_json(one) for one in measurements]})


def _as_json(measured: Measurements) -> dict[str, Any]:
    return {key: finite_or_none(value) for key, value in asdict(measured).items()}


def plot(path: Path, measurements: Sequence[Measurements], unit: str, title: str) -> None:
    """Draw one bar per candidate: its median rate, with the range over the rounds as an error bar.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('a chart needs matplotlib: pip install "clearhead[train]"') from None
    figure = Figure(figsize=(8, 1.3 + 0.42 * len(measurements)), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    positions = list(range(len(measurements)))[::-1]
    for position, one in zip(positions, measurements, strict=True):
        color = "tab:blue" if "clearhead" in one.name else "tab:gray"
        spread = [[one.median - min(one.rates)], [max(one.rates) - one.median]]
        panel.barh(position, one.median, xerr=spread, color=color, capsize=3)
        panel.text(max(one.rates), position, f"  {one.median:,.0f} ({one.ratio:.2f})", va="center", fontsize=9)
    panel.set_yticks(positions, [one.name for one in measurements])
    panel.set_xlim(0, 1.25 * max(max(one.rates) for one in measurements))
    panel.set_xlabel(f"{unit} (speedup)")
    panel.set_title(title, fontsize="medium")
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=110)
