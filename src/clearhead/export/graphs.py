"""Modules that map tensors to tensors, as an ONNX file holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from clearhead.equations import masks
from clearhead.layers.cache import DecoderCache, LayerCache, SelfAttentionCache
from clearhead.models.config import Pooling
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, SpanClassifier, pool
from clearhead.models.seq2seq import Seq2Seq

Axes = dict[int, str]
"""Names of the dynamic dimensions."""

_PAST = "past_key_values."


def padding(attention_mask: Int[Tensor, "B L"]) -> masks.Mask:
    """Return the padding mask of a 0/1 attention mask."""
    return masks.padding(attention_mask != 0)


@dataclass(frozen=True)
class Graph:
    """A module whose inputs and outputs are all tensors.

    Args:
        name: name of its file, without extension.
        module: the module.
        inputs: an example of each input by name, in the module's argument order.
        axes: dynamic dimensions of each input.
        outputs: names of the outputs.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Axes]
    outputs: Sequence[str]

    def dynamic_shapes(self) -> tuple[Axes | tuple[Axes, ...], ...]:
        """Return the dynamic dimensions in the module's argument order; keys and values form one tuple."""
        past = tuple(axes for name, axes in self.axes.items() if name.startswith(_PAST))
        others = tuple(axes for name, axes in self.axes.items() if not name.startswith(_PAST))
        return (*others, past) if past else others


class SentenceEncoder(nn.Module):
    """Graph from ids to one vector per text: encoder, pooling and normalization."""

    def __init__(self, model: EncoderModel, pooling: Pooling, normalize: bool) -> None:
        super().__init__()
        self.model, self.pooling, self.normalize = model, pooling, normalize

    def forward(
        self, input_ids: Int[Tensor, "B L"], attention_mask: Int[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B L D"]]:
        keep = attention_mask != 0
        hidden = self.model(input_ids, masks.padding(keep))
        pooled = pool(hidden, keep, self.pooling)
        return functional.normalize(pooled, dim=-1) if self.normalize else pooled, hidden


class _Head(nn.Module):
    """Graph from ids to the logits of labels, or to start and end logits."""

    def __init__(self, model: EncoderClassifier | SpanClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Int[Tensor, "B L"],
        attention_mask: Int[Tensor, "B L"],
        token_type_ids: Int[Tensor, "B L"] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        logits: Tensor | tuple[Tensor, Tensor] = self.model(input_ids, padding(attention_mask), token_type_ids)
        return logits


class SourceEncoder(nn.Module):
    """Graph from source ids to the memory."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Int[Tensor, "B M"], attention_mask: Int[Tensor, "B M"]) -> Float[Tensor, "B M D"]:
        return self.model.encode(input_ids, padding(attention_mask))


class ConcatenatingCache(SelfAttentionCache):
    """A cache that concatenates keys and values: a graph has no preallocated storage to write into."""

    def __init__(self, key_value: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.key_value = key_value
        self.num_slots = 0 if key_value is None else key_value[0].shape[2]

    @property
    def keys(self) -> Tensor | None:
        return None if self.key_value is None else self.key_value[0]

    @property
    def values(self) -> Tensor | None:
        return None if self.key_value is None else self.key_value[1]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.key_value is not None:
            k, v = torch.cat([self.key_value[0], k], dim=2), torch.cat([self.key_value[1], v], dim=2)
        self.key_value, self.num_slots = (k, v), k.shape[2]
        return k, v


class Decoder(nn.Module):
    """First decoding step: from a target prefix to logits and all keys and values."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Int[Tensor, "B L"],
        encoder_hidden_states: Float[Tensor, "B M D"],
        encoder_attention_mask: Int[Tensor, "B M"],
    ) -> tuple[Tensor, ...]:
        cache = DecoderCache(len(self.model.decoder.layers))
        cache.layers = [LayerCache(ConcatenatingCache(), layer.cross_attention) for layer in cache.layers]
        logits = self.model.decode(input_ids, encoder_hidden_states, None, padding(encoder_attention_mask), cache)
        return (logits, *_cached_tensors(cache, memory=True))


class DecoderWithPast(nn.Module):
    """Later decoding steps: from one token and the cached keys and values to logits and updated keys and values."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Int[Tensor, "B 1"], encoder_attention_mask: Int[Tensor, "B M"], *past: Tensor
    ) -> tuple[Tensor, ...]:
        cache = DecoderCache(len(self.model.decoder.layers))
        cache.layers = [
            LayerCache(ConcatenatingCache((past[at], past[at + 1])), layer.cross_attention)
            for at, layer in zip(range(0, len(past), 4), cache.layers, strict=True)
        ]
        for at, layer in zip(range(0, len(past), 4), cache.layers, strict=True):
            layer.cross_attention.key_value = past[at + 2], past[at + 3]
        memory = past[2][:, 0]  # only the sizes of the memory matter: its keys and values are cached
        logits = self.model.decode(input_ids, memory, None, padding(encoder_attention_mask), cache)
        return (logits, *_cached_tensors(cache, memory=False))


def _cached_tensors(cache: DecoderCache, *, memory: bool) -> list[Tensor]:
    """Return the cached tensors: for each layer its self-attention keys and values, then those of the memory."""
    tensors: list[Tensor] = []
    for self_attention, cross in cache.layers:
        assert self_attention.keys is not None
        assert self_attention.values is not None
        tensors += [self_attention.keys, self_attention.values]
        if memory:
            assert cross.key_value is not None
            tensors += cross.key_value
    return tensors


def encoder_graphs(model: EncoderModel, pooling: Pooling, normalize: bool) -> list[Graph]:
    """Return the graph of a text encoder: `sentence_embedding` (B, D) and `last_hidden_state` (B, L, D)."""
    rows = _example_ids(model.config.vocab_size, model.config.max_len)
    axes = {0: "batch", 1: "length"}
    module = SentenceEncoder(model, pooling, normalize)
    return [
        Graph(
            "model",
            module.eval(),
            {"input_ids": rows, "attention_mask": torch.ones_like(rows)},
            {"input_ids": axes, "attention_mask": axes},
            ["sentence_embedding", "last_hidden_state"],
        )
    ]


def head_graphs(model: EncoderClassifier | SpanClassifier) -> list[Graph]:
    """Return the graph of an encoder with a head: `logits` (B, C), or `start_logits` and `end_logits` (B, L)."""
    config = model.encoder.config
    rows = _example_ids(config.vocab_size, config.max_len)
    inputs = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    if config.num_token_types > 1:
        inputs["token_type_ids"] = torch.zeros_like(rows)
    outputs = ["logits"] if isinstance(model, EncoderClassifier) else ["start_logits", "end_logits"]
    axes = {0: "batch", 1: "length"}
    return [Graph("model", _Head(model).eval(), inputs, dict.fromkeys(inputs, axes), outputs)]


def seq2seq_graphs(model: Seq2Seq) -> list[Graph]:
    """Return the three graphs of an encoder–decoder, named as Optimum names them."""
    config = model.config
    source = _example_ids(config.vocab_size, config.max_len)
    target = _example_ids(config.target_vocab_size or config.vocab_size, config.max_len)[:, :3].contiguous()
    mask = torch.ones_like(source)
    with torch.no_grad():
        memory = model.encode(source)
        _, *key_values = Decoder(model)(target, memory, mask)
    source_axes, target_axes = {0: "batch", 1: "source_length"}, {0: "batch", 1: "target_length"}
    past = past_names(model)
    present = [name.replace(_PAST, "present.") for name in past]
    past_axes = {name: {0: "batch", 2: "past_length" if ".decoder." in name else "source_length"} for name in past}
    return [
        Graph(
            "encoder_model",
            SourceEncoder(model).eval(),
            {"input_ids": source, "attention_mask": mask},
            {"input_ids": source_axes, "attention_mask": source_axes},
            ["last_hidden_state"],
        ),
        Graph(
            "decoder_model",
            Decoder(model).eval(),
            {"input_ids": target, "encoder_hidden_states": memory, "encoder_attention_mask": mask},
            {
                "input_ids": target_axes,
                "encoder_hidden_states": source_axes,
                "encoder_attention_mask": source_axes,
            },
            ["logits", *present],
        ),
        Graph(
            "decoder_with_past_model",
            DecoderWithPast(model).eval(),
            {
                "input_ids": target[:, -1:].contiguous(),
                "encoder_attention_mask": mask,
                **dict(zip(past_axes, key_values, strict=True)),
            },
            {"input_ids": {0: "batch"}, "encoder_attention_mask": source_axes, **past_axes},
            ["logits", *(name for name in present if ".decoder." in name)],
        ),
    ]


def past_names(model: Seq2Seq) -> list[str]:
    """Return the names of the key and value inputs, in the output order of the first step."""
    layers = range(len(model.decoder.layers))
    return [f"{_PAST}{n}.{side}.{kind}" for n in layers for side in ("decoder", "encoder") for kind in ("key", "value")]


def _example_ids(vocabulary: int, longest: int | None) -> Tensor:
    """Return example ids of shape (2, 7). A size of 1 would become a fixed dimension."""
    return (torch.arange(14).view(2, 7)[:, : longest or 7] % vocabulary).contiguous()
