"""Attention weights of a real run, recomputed beside it for what was asked, while the model keeps its fused kernels."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from clearhead.equations import attention, masks
from clearhead.inspection.attention import plot
from clearhead.inspection.trace.attention_replay import CrossReplay, SelfReplay, check_maps
from clearhead.inspection.trace.records import Operation, Recorder
from clearhead.inspection.trace.trace import uncompiled
from clearhead.io.atomic import atomic_file, check_writable
from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.pipelines.question_answerer import QuestionAnswerer
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.inference_copy import inference_copies
from clearhead.stacks.decoder import Decoder, DecoderLayer

Part = Literal["encoder", "decoder", "cross"]
Watched = nn.Module | TextEncoder | TextToText | QuestionAnswerer | TextClassifier
_NOTHING = "nothing was seen: the model that is watched did not run inside the with block"


@dataclass(frozen=True)
class AttentionLayer:
    """An attention of a model: its path in it, the kind and the number of its layer as in `Weights`, its heads."""

    path: str
    part: Part
    layer: int
    num_heads: int


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of one layer in one call.

    Args:
        path: the attention's place in the model, such as "encoder.layers.3.attention".
        part: "encoder" or "decoder" for their self-attention, "cross" for the decoder's attention to the memory.
        layer: the layer's number within its stack, from 0.
        heads: the numbers of the heads that are here.
        call: how many times this attention had run before, while it was watched: the step of a generation.
        values: (B, heads, L, M); each row sums to 1, or is zeros where a query may attend to nothing.
        lengths: of packed texts, which are rows of their own here, the tokens of each, beyond which there are zeros;
            () for texts that were not packed.
    """

    path: str
    part: Part
    layer: int
    heads: tuple[int, ...]
    call: int
    values: Float[Tensor, "B H L M"]
    lengths: tuple[int, ...] = ()


@dataclass
class AttentionRecords:
    """What was watched, call by call."""

    records: list[AttentionWeights] = field(default_factory=list)

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
            ValueError: it was not watched, or has not run so often.
        """
        if not self.records:
            raise ValueError(_NOTHING)
        calls = [record for record in self.records if (record.part, record.layer) == (part, layer)]
        if not calls or head not in calls[0].heads:
            watched = sorted({f"{record.part} {record.layer}.{one}" for record in self.records for one in record.heads})
            raise ValueError(f"{part} {layer}.{head} was not seen; these were: {', '.join(watched)}")
        if not -len(calls) <= call < len(calls):
            raise ValueError(f"call {call} was not seen; {part} {layer} ran in calls 0 to {len(calls) - 1}")
        found = calls[call]
        return found.values[:, found.heads.index(head)]

    def plot(
        self,
        path: str | Path | None = None,
        *,
        row: int = 0,
        queries: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
    ) -> Any:
        """A picture with a map for each layer and head, of the last call.

        Of a generation it is the last in which all texts of the batch were still there: those that have ended leave
        it, and rows are other texts then.

        Args:
            path: a PNG file to write; None for none.
            row: which text of the batch.
            queries, keys: tokens to write beside the maps that have as many, 40 at most; keys as queries where they are
                not given.

        Returns:
            matplotlib's figure.

        Raises:
            ValueError: nothing was seen, there is no such text, the path's folder does not exist, or matplotlib is not
                installed.
        """
        if path is not None:
            check_writable(Path(path))
        if not self.records:
            raise ValueError(_NOTHING)
        figure = plot.maps(self._whole(), row, queries, keys)
        if path is not None:
            with atomic_file(path) as file:
                figure.savefig(file, format="png", dpi=110)
        return figure

    def _whole(self) -> list[AttentionWeights]:
        """Of each attention the last record of the last run in which the batch was whole."""
        first = self.records[0].path  # an encoder's, where there is one: each run begins with it
        once = self.records[0].part == "encoder"
        starts = [number for number, record in enumerate(self.records) if record.path == first]
        found: dict[str, AttentionWeights] = {}
        for record in self.records[starts[-1] if once else 0 :]:
            before = found.get(record.path)
            if before is None or not once or len(record.values) >= len(before.values):
                found[record.path] = record
        return list(found.values())


@contextlib.contextmanager
def watch(
    model: Watched, *, layers: Iterable[int] | None = None, heads: Iterable[int] | None = None
) -> Iterator[AttentionRecords]:
    """Keeps the attention weights of what runs inside the block.

    The model runs as it is, on its fused kernels, and its results stay as they are to the last bit: the weights are
    recomputed beside it, of the layers and heads that were asked for, from the projections that were observed. A model
    that was compiled runs uncompiled inside the block: a compiled one cannot be watched.

    What runs texts computes with a copy of its model, in other numbers or with packed weights; it is watched as well,
    whether the `TextEncoder` is given or its `model`. Texts that are computed together are the rows of a record in the
    order in which they run, longest first; an encoder's are packed and filled up, and the filling comes last. In a
    generation texts that have ended leave, and the rows of those after them move up.

    Args:
        model: any module of this library, or a module that holds some; or what runs one, such as a `TextEncoder`.
        layers: numbers within each stack, from 0; all by default.
        heads: numbers of heads, from 0; all by default.

    Yields:
        What was seen: `records`, `arrays()`, `of(layer, head)`, `plot()`.

    Raises:
        ValueError: a layer or head that there is not, or one number in place of several, a model without attention, or
            one that runs in ONNX Runtime.

    >>> import torch; from clearhead import Encoder, watch
    >>> model = Encoder(512, 2048, 8, 0.1, 2).eval()
    >>> with watch(model, layers=[1], heads=[0, 3]) as seen: _ = model(torch.rand(2, 10, 512))
    >>> seen.records[0].values.shape
    torch.Size([2, 2, 10, 10])
    """
    seen = AttentionRecords()
    with stream_attention(model, seen.records.append, layers=layers, heads=heads):
        yield seen


@contextlib.contextmanager
def stream_attention(
    model: Watched,
    told: Callable[[AttentionWeights], None],
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """As `watch`, but tells the weights of each layer as they are computed, for those who need not hold them all."""
    with contextlib.ExitStack() as stack:
        module = stack.enter_context(uncompiled(_module(model)))
        for place, chosen in _asked(attentions(module), layers, heads):
            keep = _Keeper(place, chosen, told).keep
            for copy in (module, *inference_copies(module)):
                one = copy.get_submodule(place.path)
                kind = _CrossWatch if place.part == "cross" else _SelfWatch
                for handle in kind(Recorder(values=True), place.path, one, chosen, keep).hooks():
                    stack.callback(handle.remove)
        yield


def attentions(model: nn.Module) -> list[AttentionLayer]:
    """Every attention in a model."""
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, MultiHeadAttention | CrossAttention):
            continue
        names = path.split(".")
        layer = next((int(name) for name in reversed(names) if name.isdigit()), 0)
        above = [model.get_submodule(".".join(names[:number])) for number in range(len(names))]
        part: Part = "decoder" if any(isinstance(one, Decoder | DecoderLayer) for one in above) else "encoder"
        found.append(
            AttentionLayer(path, "cross" if isinstance(module, CrossAttention) else part, layer, module.num_heads)
        )
    return found


def _module(given: Watched) -> nn.Module:
    """The module in what runs texts."""
    module: object = given
    if not isinstance(given, nn.Module):
        runs = getattr(given, "generator", given)  # an encoder–decoder that writes answers has what runs it inside
        module = getattr(runs, "model", None)
    if not isinstance(module, nn.Module):
        kinds = "TextEncoder, TextToText, QuestionAnswerer or TextClassifier"
        raise ValueError(f"a model is watched, or a {kinds}; got a {type(given).__name__}")
    if any(parameter.is_meta for parameter in module.parameters()):
        raise ValueError('this model runs in ONNX Runtime, which nobody can look into: load it with runtime="torch"')
    return module


def _asked(
    places: Sequence[AttentionLayer], layers: Iterable[int] | None, heads: Iterable[int] | None
) -> list[tuple[AttentionLayer, tuple[int, ...]]]:
    """The places that are asked for, each with its heads."""
    known = {place.layer for place in places}
    if not known:
        raise ValueError("there is no attention in this model")
    wanted = known if layers is None else set(_several("layers", layers))
    if wanted - known:
        missing = ", ".join(map(str, sorted(wanted - known)))
        raise ValueError(f"there is no attention in layer {missing}; the layers are 0 to {max(known)}")
    asked_heads = None if heads is None else _several("heads", heads)
    found = []
    for place in places:
        if place.layer in wanted:
            chosen = tuple(range(place.num_heads)) if asked_heads is None else asked_heads
            if any(not 0 <= head < place.num_heads for head in chosen):
                raise ValueError(f"{place.path} has heads 0 to {place.num_heads - 1}; got {chosen}")
            found.append((place, chosen))
    return found


def _several(name: str, given: object) -> tuple[int, ...]:
    found = tuple(given) if isinstance(given, Iterable) else ()
    if not found or not all(isinstance(one, Integral) for one in found):
        raise ValueError(f"{name} are several whole numbers, such as [0, 3]; got {given!r}")
    return found


class _Keeper:
    """Makes records of the weights of one place, whichever copy of the model ran."""

    def __init__(self, place: AttentionLayer, heads: tuple[int, ...], told: Callable[[AttentionWeights], None]) -> None:
        self.place, self.heads, self.told, self.calls = place, heads, told, itertools.count()

    def keep(self, values: Tensor, lengths: tuple[int, ...]) -> None:
        place = self.place
        self.told(AttentionWeights(place.path, place.part, place.layer, self.heads, next(self.calls), values, lengths))


class _Watch:
    """In place of telling steps, keeps weights."""

    def __init__(
        self,
        teller: Recorder,
        path: str,
        module: Any,
        heads: tuple[int, ...],
        keep: Callable[[Tensor, tuple[int, ...]], None],
    ) -> None:
        super().__init__(teller, path, module)  # type: ignore[call-arg]
        self.heads, self.keep = list(heads), keep

    def tell(self, name: str, kind: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        """Nothing: only the weights are wanted."""

    def weights(self, q: Tensor, k: Tensor, mask: masks.Mask | None) -> None:
        """Keeps the weights of the heads that were asked for."""
        exact = torch.promote_types(q.dtype, torch.float32)
        q, k = q[:, self.heads].to(exact), k[:, self.heads].to(exact)
        lengths = () if mask is None or mask.lengths is None else mask.lengths
        real: Tensor | None = None
        if lengths:  # packed texts as rows: a row of them all would be as wide as all together
            assert mask is not None
            mask = mask.to_padded(max(lengths))
            assert mask.keep_BM is not None
            q, k, real = _rows(q, lengths), _rows(k, lengths), mask.keep_BM[:, None, :, None].to(q.device)
        check_maps(q, k)
        scores = attention.scores(q, k, scale=self.module.scale)  # type: ignore[attr-defined]
        if mask is not None:
            dense = masks.additive(mask, q.shape[2], exact)
            own = dense.ndim == 4 and dense.shape[1] > 1
            scores = scores + (dense[:, self.heads] if own else dense).to(scores.device)
        values = attention.softmax(scores)
        self.keep(values if real is None else values * real, lengths)


def _rows(x_1HTK: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Packed texts as rows (B, H, L, K), with zeros beyond each one's length."""
    return pad_sequence(list(torch.split(x_1HTK[0].transpose(0, 1), list(lengths))), batch_first=True).transpose(1, 2)


class _SelfWatch(_Watch, SelfReplay):
    pass


class _CrossWatch(_Watch, CrossReplay):
    pass
