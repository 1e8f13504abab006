"""Show attention weights as a table of small maps in HTML."""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from clearhead.inspection.attention.pooled import pool_largest
from clearhead.inspection.attention.weights import AttentionWeights

_MAX_CELLS, _MAX_LAYERS, _MAX_HEADS = 64, 24, 16
_LINEAR_SCALE_TOKENS = 60
_LOW, _HIGH = (251, 250, 247), (16, 66, 150)
"""Colors of weight 0 and of the largest weight of a head."""


def weights_table(records: Sequence[AttentionWeights]) -> str:
    """Return an HTML table with one row for each record and one map for each head, of the first text of the batch.

    The strongest color is the largest weight of the head. With more than 60 tokens, colors are proportional to the
    square root of the weights, as in `plot`.

    Args:
        records: one for each layer.
    """
    rows = []
    for record in records[:_MAX_LAYERS]:
        length = record.lengths[0] if record.lengths else None
        weights_HLM = record.values[0, :, :length, :length].float().cpu().numpy()
        cells = []
        for head, weights in list(zip(record.heads, weights_HLM, strict=True))[:_MAX_HEADS]:
            size = f"{weights.shape[0]} × {weights.shape[1]}"
            about = f"{record.part} {record.layer}.{head}: {size}, to {weights.max():.2g}"
            source = base64.b64encode(_png(_shades(weights))).decode("ascii")
            cells.append(
                f'<td style="padding:2px"><img alt="{about}" title="{about}" width="72" height="72" '
                f'style="image-rendering:pixelated" src="data:image/png;base64,{source}"></td>'
            )
        layer = f'<th scope="row" style="text-align:left">{record.part} {record.layer}</th>'
        rows.append(f"<tr>{layer}{''.join(cells)}</tr>")
    widest = max(records, key=lambda record: len(record.heads)).heads
    columns = "".join(f'<th scope="col">head {head}</th>' for head in widest[:_MAX_HEADS])
    omitted = _omitted(len(records), len(widest))
    return (
        '<div style="overflow:auto;max-height:520px"><table><caption style="text-align:left">'
        f"Attention of the first text: rows are queries, columns are keys{omitted}.</caption>"
        f'<thead><tr><th scope="col">layer</th>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _omitted(layers: int, heads: int) -> str:
    limits = [(layers, _MAX_LAYERS, "layers"), (heads, _MAX_HEADS, "heads of a layer")]
    texts = [f"the first {most} of {count} {noun}" for count, most, noun in limits if count > most]
    return f"; {' and '.join(texts)}" if texts else ""


def _shades(weights: np.ndarray) -> np.ndarray:
    """Return a map as bytes, pooled to 64 x 64 cells. 255 is the largest weight."""
    shares = pool_largest(weights, _MAX_CELLS) / (float(weights.max()) or 1.0)
    shares = np.sqrt(shares) if max(weights.shape) > _LINEAR_SCALE_TOKENS else shares
    return np.round(255 * np.nan_to_num(shares)).astype(np.uint8)


def _png(cells: np.ndarray) -> bytes:
    """Return bytes as a PNG picture with a palette of 256 colors."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = cells.shape
    palette = np.linspace(_LOW, _HIGH, 256).round().astype(np.uint8).tobytes()
    lines = np.hstack([np.zeros((height, 1), np.uint8), cells]).tobytes()  # each line starts with its filter, 0
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in parts)
