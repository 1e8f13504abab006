"""Attention weights of a real run, recomputed beside it for what was asked, while the model keeps its fused kernels."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations import attention, masks
from clearhead.files import whole_file
from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.see.attention import CrossReplay, SelfReplay
from clearhead.see.steps import Kind, Teller

Part = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True)
class Weights:
    """The attention weights of one layer in one call.

    Args:
        path: the attention's place in the model, such as "encoder.layers.3.attention".
        part: "encoder" or "decoder" for their self-attention, "cross" for the decoder's attention to the memory.
        layer: the layer's number within its stack, from 0.
        heads: the numbers of the heads that are here.
        call: how many times this attention had run before, while it was watched: the step of a generation.
        values: (B, heads, L, M); each row sums to 1, or is zeros where a query may attend to nothing.
    """

    path: str
    part: Part
    layer: int
    heads: tuple[int, ...]
    call: int
    values: Float[Tensor, "B H L M"]


@dataclass
class Seen:
    """What was watched, call by call."""

    records: list[Weights] = field(default_factory=list)

    def arrays(self) -> dict[str, list[np.ndarray]]:
        """The weights as float32 arrays (B, heads, L, M), by path, one for each call."""
        found: dict[str, list[np.ndarray]] = {}
        for record in self.records:
            found.setdefault(record.path, []).append(record.values.float().cpu().numpy())
        return found

    def of(self, layer: int, head: int, part: Part = "encoder", call: int = -1) -> Float[Tensor, "B L M"]:
        """The weights of one head.

        Args:
            layer, head: their numbers, from 0.
            part: as in `Weights`.
            call: which of the calls; the last one where it is not said.

        Raises:
            ValueError: it was not watched, or has not run.
        """
        calls = [record for record in self.records if (record.part, record.layer) == (part, layer)]
        if not calls or head not in calls[0].heads:
            watched = sorted({f"{record.part} {record.layer}.{one}" for record in self.records for one in record.heads})
            raise ValueError(f"{part} {layer}.{head} was not seen; these were: {', '.join(watched) or 'none'}")
        found = calls[call]
        return found.values[:, found.heads.index(head)]

    def plot(
        self,
        path: str | Path,
        *,
        row: int = 0,
        queries: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
    ) -> None:
        """A PNG with a map for each layer and head, of the last call.

        Args:
            path: the file.
            row: which text of the batch.
            queries, keys: tokens to write beside the maps; keys as queries where they are not given.

        Raises:
            ValueError: nothing was seen, or matplotlib is not installed.
        """
        last = {record.path: record for record in self.records}
        if not last:
            raise ValueError("nothing was seen: run the model inside the with block")
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            raise ValueError('a picture needs matplotlib: pip install "clearhead[train]"') from None
        columns = max(len(record.heads) for record in last.values())
        figure = Figure(figsize=(2.2 * columns + 0.8, 2.3 * len(last) + 0.4), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(last), columns, squeeze=False)
        for line, record in zip(panels, last.values(), strict=True):
            for panel in line:
                panel.set_axis_off()
            for panel, head, weights in zip(line, record.heads, record.values[row].float().cpu(), strict=False):
                panel.set_axis_on()
                panel.imshow(weights.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
                panel.set_title(f"{record.part} {record.layer}.{head}", fontsize="small")
                _label(panel.set_yticks, queries, weights.shape[0])
                _label(panel.set_xticks, keys or queries, weights.shape[1], rotation=90)
        with whole_file(Path(path)) as file:
            figure.savefig(file, format="png", dpi=110)


@contextlib.contextmanager
def watch(
    model: nn.Module, *, layers: Iterable[int] | None = None, heads: Iterable[int] | None = None
) -> Iterator[Seen]:
    """Keeps the attention weights of what runs inside the block.

    The model runs as it is, on its fused kernels, and its results stay as they are to the last bit: the weights are
    recomputed beside it, of the layers and heads that were asked for, from the projections that were observed. A model
    that was compiled runs uncompiled inside the block: a compiled one cannot be watched.

    Args:
        model: any module of this library, or a module that holds some.
        layers: numbers within each stack, from 0; all by default.
        heads: numbers of heads, from 0; all by default.

    Yields:
        What was seen: `records`, `arrays()`, `of(layer, head)`, `plot(path)`.

    Raises:
        ValueError: a layer or head that there is not, or a model without attention.

    >>> import torch; from clearhead import Encoder, watch
    >>> model = Encoder(512, 2048, 8, 0.1, 2).eval()
    >>> with watch(model, layers=[1], heads=[0, 3]) as seen: _ = model(torch.rand(2, 10, 512))
    >>> seen.records[0].values.shape
    torch.Size([2, 2, 10, 10])
    """
    seen = Seen()
    with telling(model, seen.records.append, layers=layers, heads=heads):
        yield seen


@contextlib.contextmanager
def telling(
    model: nn.Module,
    told: Callable[[Weights], None],
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """As `watch`, but tells the weights of each layer as they are computed, for those who need not hold them all."""
    asked_layers, asked_heads = (None if some is None else tuple(some) for some in (layers, heads))
    with contextlib.ExitStack() as stack:
        watched = 0
        for path, module in model.named_modules():
            if not isinstance(module, MultiHeadAttention | CrossAttention):
                continue
            layer, part = _place(path)
            if asked_layers is not None and layer not in asked_layers:
                continue
            chosen = tuple(range(module.num_heads)) if asked_heads is None else asked_heads
            if any(not 0 <= head < module.num_heads for head in chosen):
                raise ValueError(f"{path} has heads 0 to {module.num_heads - 1}; got {chosen}")
            kind = _SelfWatch if isinstance(module, MultiHeadAttention) else _CrossWatch
            for handle in kind(Teller(values=True), path, module, told, part, layer, chosen).hooks():
                stack.callback(handle.remove)
            watched += 1
        if not watched:
            raise ValueError(
                f"there is no attention in layer {', '.join(map(str, asked_layers))}"
                if asked_layers
                else "there is no attention"
            )
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


class _Watch:
    """In place of telling steps, keeps weights."""

    def __init__(
        self,
        teller: Teller,
        path: str,
        module: Any,
        told: Callable[[Weights], None],
        part: Part,
        layer: int,
        heads: tuple[int, ...],
    ) -> None:
        super().__init__(teller, path, module)  # type: ignore[call-arg]
        self.told, self.part, self.layer, self.heads, self.calls = told, part, layer, heads, 0

    def tell(self, name: str, kind: Kind, result: Tensor, module: nn.Module | None = None) -> None:
        """Nothing: only the weights are wanted."""

    def weights(self, q: Tensor, k: Tensor, mask: masks.Mask | None) -> None:
        """Keeps the weights of the heads that were asked for."""
        heads = list(self.heads)
        exact = torch.promote_types(q.dtype, torch.float32)
        scores = attention.scores(q[:, heads].to(exact), k[:, heads].to(exact), scale=self.module.scale)  # type: ignore[attr-defined]
        if mask is not None:
            dense = masks.additive(mask, q.shape[2], exact)
            scores = scores + (dense[:, heads] if dense.ndim == 4 and dense.shape[1] > 1 else dense).to(scores.device)
        values = attention.softmax(scores)
        record = Weights(self.path, self.part, self.layer, self.heads, self.calls, values)  # type: ignore[attr-defined]
        self.told(record)
        self.calls += 1


class _SelfWatch(_Watch, SelfReplay):
    pass


class _CrossWatch(_Watch, CrossReplay):
    pass


def _place(path: str) -> tuple[int, Part]:
    """The layer's number, and the kind of attention."""
    names = path.split(".")
    layer = next((int(name) for name in reversed(names) if name.isdigit()), 0)
    if "cross_attention" in names:
        return layer, "cross"
    return layer, "decoder" if "decoder" in names else "encoder"


def _label(set_ticks: Any, tokens: Sequence[str] | None, length: int, **options: Any) -> None:
    if tokens is not None and len(tokens) == length <= 40:
        set_ticks(range(length), tokens, fontsize=6, **options)
