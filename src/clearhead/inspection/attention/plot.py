"""Plot attention weights with matplotlib."""

from collections.abc import Sequence
from typing import Any

from clearhead.inspection.attention.weights import AttentionWeights

_LINEAR_SCALE_TOKENS, _MAX_LABELS = 60, 40


def maps(
    records: Sequence[AttentionWeights],
    row: int,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> Any:
    """Plot a map for each head, with one row of maps for each record.

    The darkest color is the largest weight of the head, printed above the map. With more than 60 tokens, colors are
    proportional to the square root of the weights, because the weights are small.

    Args:
        records: one for each layer.
        row: index of the text in the batch.
        queries, keys: tokens to write at maps with as many rows or columns, at most 40; keys default to queries.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: the row does not exist, or matplotlib is not installed.
    """
    texts = min(record.values.shape[0] for record in records)
    if not 0 <= row < texts:
        raise ValueError(f"Row {row} was not recorded. The batch has rows 0 to {texts - 1}.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('Plotting needs matplotlib: pip install "clearhead[train]"') from None
    columns = max(len(record.heads) for record in records)
    figure = Figure(figsize=(2.2 * columns + 0.8, 2.3 * len(records) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(records), columns, squeeze=False)
    for panel_row, record in zip(panels, records, strict=True):
        for panel in panel_row:
            panel.set_axis_off()
        length = record.lengths[row] if record.lengths else None
        maps_HLM = record.values[row, :, :length, :length].float().cpu()
        for panel, head, weights in zip(panel_row, record.heads, maps_HLM, strict=False):
            panel.set_axis_on()
            largest = float(weights.max()) or 1.0
            colors = PowerNorm(0.5 if max(weights.shape) > _LINEAR_SCALE_TOKENS else 1.0, vmin=0, vmax=largest)
            panel.imshow(weights.numpy(), norm=colors, cmap="Blues", aspect="auto")
            panel.set_title(f"{record.part} {record.layer}.{head} (to {largest:.2g})", fontsize="small")
            _label(panel.set_yticks, queries, weights.shape[0])
            _label(panel.set_xticks, keys or queries, weights.shape[1], rotation=90)
    return figure


def _label(set_ticks: Any, tokens: Sequence[str] | None, length: int, **options: Any) -> None:
    if tokens is not None and len(tokens) == length <= _MAX_LABELS:
        set_ticks(range(length), tokens, fontsize=6, parse_math=False, **options)  # "$" is not math
