"""Record the attention weights of a running model, which keeps its fused kernels."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from clearhead.equations import attention, masks
from clearhead.inspection.attention.records import AttentionRecords
from clearhead.inspection.attention.weights import AttentionLayer, AttentionWeights, Part
from clearhead.inspection.trace.attention_replay import AttentionReplay, CrossReplay, SelfReplay, check_map_memory
from clearhead.inspection.trace.records import Operation, Recorder
from clearhead.inspection.trace.trace import uncompiled
from clearhead.kernels.native import unfused
from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.pipelines.question_answerer import QuestionAnswerer
from clearhead.pipelines.reranker import Reranker
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.inference_copy import inference_copies
from clearhead.stacks.decoder import Decoder, DecoderLayer
from clearhead.stacks.encoder import Encoder

Watchable = nn.Module | TextEncoder | TextToText | QuestionAnswerer | TextClassifier | Reranker


@contextlib.contextmanager
def watch(
    model: Watchable, *, layers: Iterable[int] | None = None, heads: Iterable[int] | None = None
) -> Iterator[AttentionRecords]:
    """Record the attention weights of a model inside the block.

    The model keeps its fused kernels, and its results are bit-identical; in 8 bits, a rounding can differ. The explicit
    equation recomputes the weights of the selected layers and heads from the recorded projections. A compiled model
    runs uncompiled inside the block.

    A pipeline computes with a copy of its model in another precision or with packed weights. The copy is recorded too,
    whether you pass the pipeline or its `model`. The rows of a record are the texts of one batch, longest first. Packed
    texts are separate rows, padded on the right. In a generation, finished texts leave the batch, and the rows after
    them move up.

    Args:
        model: a module of this library, a module that contains some, or a pipeline such as `TextEncoder`.
        layers: indices of layers in each stack, from 0; all by default.
        heads: indices of heads, from 0; all by default.

    Yields:
        The records: `records`, `arrays()`, `get(layer, head)`, `plot()`.

    Raises:
        ValueError: a layer or head does not exist, `layers` or `heads` is not a list, the model has no attention, or it
            runs in ONNX Runtime.

    >>> import torch; from clearhead import Encoder, watch
    >>> model = Encoder(512, 2048, 8, 0.1, 2).eval()
    >>> with watch(model, layers=[1], heads=[0, 3]) as attention: _ = model(torch.rand(2, 10, 512))
    >>> attention.records[0].values.shape
    torch.Size([2, 2, 10, 10])
    """
    records = AttentionRecords()
    with stream_attention(model, records.records.append, layers=layers, heads=heads):
        yield records


@contextlib.contextmanager
def stream_attention(
    model: Watchable,
    receive: Callable[[AttentionWeights], None],
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> Iterator[None]:
    """Pass each layer's attention weights to a function during the run, without storing them.

    Args:
        model, layers, heads: as in `watch`.
        receive: called with each record.
    """
    with contextlib.ExitStack() as stack:
        module = stack.enter_context(uncompiled(_module_of(model)))
        stack.enter_context(unfused())
        for layer, selected in _select(attention_layers(module), layers, heads):
            send = _Sender(layer, selected, receive).send
            for copy in (module, *inference_copies(module)):
                replay = _CrossCapture if layer.part == "cross" else _SelfCapture
                for handle in replay(layer, copy.get_submodule(layer.path), selected, send).hooks():
                    stack.callback(handle.remove)
        yield


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """Return every attention of a model."""
    result = []
    for path, module in model.named_modules():
        if not isinstance(module, MultiHeadAttention | CrossAttention):
            continue
        names = path.split(".")
        layer = next((int(name) for name in reversed(names) if name.isdigit()), 0)
        parents = [model.get_submodule(".".join(names[:depth])) for depth in range(len(names))]
        part: Part = "decoder" if any(isinstance(parent, Decoder | DecoderLayer) for parent in parents) else "encoder"
        if isinstance(module, CrossAttention):
            part = "cross"
        stack = next((parent for parent in parents if isinstance(parent, Encoder)), None)
        # weights that layers share run once for each of them
        layers = [layer] if stack is None else [place for place, number in enumerate(stack.order) if number == layer]
        result += [
            AttentionLayer(path, part, place, module.num_heads, turn, len(layers)) for turn, place in enumerate(layers)
        ]
    return sorted(result, key=lambda layer: layer.layer) if any(layer.turns > 1 for layer in result) else result


def _module_of(model: Watchable) -> nn.Module:
    """Return the module of a pipeline, or the module itself."""
    module: object = model
    if not isinstance(model, nn.Module):
        pipeline = getattr(model, "generator", model)  # a pipeline that generates answers contains another one
        module = getattr(pipeline, "model", None)
    if not isinstance(module, nn.Module):
        pipelines = "TextEncoder, TextToText, QuestionAnswerer, TextClassifier or Reranker"
        raise ValueError(f"Expected a module or a {pipelines}; got a {type(model).__name__}.")
    if any(parameter.is_meta for parameter in module.parameters()):
        raise ValueError('This model runs in ONNX Runtime, which hides attention. Load it with runtime="torch".')
    return module


def _select(
    available: Sequence[AttentionLayer], layers: Iterable[int] | None, heads: Iterable[int] | None
) -> list[tuple[AttentionLayer, tuple[int, ...]]]:
    """Return the selected attentions, each with its selected heads."""
    indices = {layer.layer for layer in available}
    if not indices:
        raise ValueError("The model has no attention.")
    selected_layers = indices if layers is None else set(_as_indices("layers", layers))
    if selected_layers - indices:
        missing = ", ".join(map(str, sorted(selected_layers - indices)))
        raise ValueError(f"The model has no attention in layer {missing}. Its layers are 0 to {max(indices)}.")
    selected_heads = None if heads is None else _as_indices("heads", heads)
    result = []
    for layer in available:
        if layer.layer in selected_layers:
            chosen = tuple(range(layer.num_heads)) if selected_heads is None else selected_heads
            if any(not 0 <= head < layer.num_heads for head in chosen):
                raise ValueError(f"{layer.path} has heads 0 to {layer.num_heads - 1}; got {chosen}.")
            result.append((layer, chosen))
    return result


def _as_indices(name: str, values: object) -> tuple[int, ...]:
    indices = tuple(values) if isinstance(values, Iterable) else ()
    if not indices or not all(isinstance(index, Integral) for index in indices):
        raise ValueError(f"{name} must be a list of integers, such as [0, 3]; got {values!r}.")
    return indices


class _Sender:
    """Turn the weights of one attention into records, counting the calls of all copies of the model."""

    def __init__(
        self, layer: AttentionLayer, heads: tuple[int, ...], receive: Callable[[AttentionWeights], None]
    ) -> None:
        self.layer, self.heads, self.receive, self.calls = layer, heads, receive, itertools.count()

    def send(self, values: Tensor, lengths: tuple[int, ...]) -> None:
        layer, call = self.layer, next(self.calls)
        self.receive(AttentionWeights(layer.path, layer.part, layer.layer, self.heads, call, values, lengths))


class _Capture(AttentionReplay):
    """Replay of attention that sends the weights of some heads and records no steps.

    Args:
        layer: the attention.
        module: its module in the model or in a copy of it.
        heads: indices of the heads.
        send: called with the weights and the lengths of packed texts.
    """

    def __init__(
        self,
        layer: AttentionLayer,
        module: nn.Module,
        heads: tuple[int, ...],
        send: Callable[[Tensor, tuple[int, ...]], None],
    ) -> None:
        assert isinstance(module, MultiHeadAttention | CrossAttention)
        super().__init__(Recorder(values=True), layer.path, module)
        self.heads, self.send = list(heads), send
        self.turn, self.turns = layer.turn, itertools.cycle(range(layer.turns))

    def record(self, step: str, operation: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        """Ignore a step."""

    def record_weights(self, q: Tensor, k: Tensor, mask: masks.Mask | None) -> None:
        """Compute and send the weights of the selected heads, if it is the turn of this layer."""
        if next(self.turns) != self.turn:
            return
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k = q[:, self.heads].to(dtype), k[:, self.heads].to(dtype)
        lengths = () if mask is None or mask.lengths is None else mask.lengths
        keep: Tensor | None = None
        if lengths:  # one row for each packed text: a row of all texts would need the square of their total length
            assert mask is not None
            mask = mask.to_padded(max(lengths))
            assert mask.keep_BM is not None
            q, k, keep = _unpack(q, lengths), _unpack(k, lengths), mask.keep_BM[:, None, :, None].to(q.device)
        check_map_memory(q, k)
        scores = attention.scores(q, k, scale=self.module.scale)
        if mask is not None:
            bias = masks.additive(mask, q.shape[2], dtype)
            per_head = bias.ndim == 4 and bias.shape[1] > 1
            scores = scores + (bias[:, self.heads] if per_head else bias).to(scores.device)
        values = attention.softmax(scores)
        self.send(values if keep is None else values * keep, lengths)


class _SelfCapture(_Capture, SelfReplay):
    pass


class _CrossCapture(_Capture, CrossReplay):
    pass


def _unpack(x_1HTK: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return packed texts as rows (B, H, L, K), padded with zeros."""
    return pad_sequence(list(torch.split(x_1HTK[0].transpose(0, 1), list(lengths))), batch_first=True).transpose(1, 2)
