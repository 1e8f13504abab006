"""Attention weights as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearhead.inspection.attention.capture import AttentionWeights

_MANY = 60


def maps(
    records: "Sequence[AttentionWeights]",
    row: int,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> Any:
    """A map for each layer and head, a line of them for each record.

    Full color is the head's largest weight, which stands above the map; of more than 60 tokens the colors go with the
    square root of the weights, which are small then.

    Args:
        records: one for each layer.
        row: which text of the batch.
        queries, keys: tokens to write beside the maps that have as many, 40 at most; keys as queries where they are
            not given.

    Returns:
        matplotlib's figure.

    Raises:
        ValueError: there is no such text, or matplotlib is not installed.
    """
    texts = min(record.values.shape[0] for record in records)
    if not 0 <= row < texts:
        raise ValueError(f"row {row} was not seen; the batch has rows 0 to {texts - 1}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "clearhead[train]"') from None
    columns = max(len(record.heads) for record in records)
    figure = Figure(figsize=(2.2 * columns + 0.8, 2.3 * len(records) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(records), columns, squeeze=False)
    for line, record in zip(panels, records, strict=True):
        for panel in line:
            panel.set_axis_off()
        length = record.lengths[row] if record.lengths else None
        shown = record.values[row, :, :length, :length].float().cpu()
        for panel, head, weights in zip(line, record.heads, shown, strict=False):
            panel.set_axis_on()
            largest = float(weights.max()) or 1.0
            colors = PowerNorm(0.5 if max(weights.shape) > _MANY else 1.0, vmin=0, vmax=largest)
            panel.imshow(weights.numpy(), norm=colors, cmap="Blues", aspect="auto")
            panel.set_title(f"{record.part} {record.layer}.{head} (to {largest:.2g})", fontsize="small")
            _label(panel.set_yticks, queries, weights.shape[0])
            _label(panel.set_xticks, keys or queries, weights.shape[1], rotation=90)
    return figure


def _label(set_ticks: Any, tokens: Sequence[str] | None, length: int, **options: Any) -> None:
    if tokens is not None and len(tokens) == length <= 40:
        set_ticks(range(length), tokens, fontsize=6, parse_math=False, **options)  # a token "$" starts no formula
