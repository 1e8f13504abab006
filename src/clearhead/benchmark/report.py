"""Figures as a table, a JSON file and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clearhead.benchmark.runner import Measurements
from clearhead.io.atomic import atomic_file
from clearhead.io.json import write_json as write


def table(figures: Sequence[Measurements], unit: str, notes: Mapping[str, str] | None = None) -> list[str]:
    """The figures as lines of text.

    Args:
        figures: of all contestants; the first is what the others are compared with.
        unit: such as "tokens/s".
        notes: more about a contestant, by its name.
    """
    notes = notes or {}
    width = max(len(figure.name) for figure in figures)
    lines = [f"{'':{width}}  {unit:>10}  {'times the first':>22}  {'peak MiB':>9}"]
    for figure in figures:
        ratio = f"{figure.ratio:.2f} ({figure.lowest:.2f} to {figure.highest:.2f})"
        note = f"  {notes[figure.name]}" if figure.name in notes else ""
        lines.append(f"{figure.name:{width}}  {figure.median:10,.0f}  {ratio:>22}  {figure.peak_mib:9,.0f}{note}")
    return lines


def write_json(path: Path, figures: Sequence[Measurements], about: Mapping[str, Any]) -> None:
    """The figures with all that was said about them."""
    write(path, {**about, "figures": [asdict(figure) for figure in figures]})


def draw(path: Path, figures: Sequence[Measurements], unit: str, title: str) -> None:
    """A bar for each contestant, as long as its median; the line is the spread over the rounds.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "clearhead[train]"') from None
    picture = Figure(figsize=(8, 1.3 + 0.42 * len(figures)), layout="constrained")
    FigureCanvasAgg(picture)
    panel = picture.subplots()
    places = list(range(len(figures)))[::-1]
    for place, figure in zip(places, figures, strict=True):
        color = "tab:blue" if "clearhead" in figure.name else "tab:gray"
        around = [[figure.median - min(figure.rates)], [max(figure.rates) - figure.median]]
        panel.barh(place, figure.median, xerr=around, color=color, capsize=3)
        panel.text(max(figure.rates), place, f"  {figure.median:,.0f} ({figure.ratio:.2f})", va="center", fontsize=9)
    panel.set_yticks(places, [figure.name for figure in figures])
    panel.set_xlim(0, 1.25 * max(max(figure.rates) for figure in figures))
    panel.set_xlabel(f"{unit} (times the first)")
    panel.set_title(title, fontsize="medium")
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    with atomic_file(path) as file:
        picture.savefig(file, format="png", dpi=110)
