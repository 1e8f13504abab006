"""Models as graphs of tensors: what stands in an ONNX file, from ids to what is wanted of them."""

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
"""For each dimension that is free its name."""

_PAST = "past_key_values."


def padding(attention_mask: Int[Tensor, "B L"]) -> masks.Mask:
    """The 0/1 mask that graphs take as one of ours."""
    return masks.padding(attention_mask != 0)


@dataclass(frozen=True)
class Graph:
    """A module that has tensors alone for inputs and outputs.

    Args:
        name: of its file, without an ending.
        module: what computes.
        inputs: an example of each input, by name, in the order that the module takes them.
        axes: for each input its free dimensions.
        outputs: the names of the outputs.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Axes]
    outputs: Sequence[str]

    def shapes(self) -> tuple[Axes | tuple[Axes, ...], ...]:
        """The free dimensions as the module takes its inputs: those of keys and values together."""
        past = tuple(axes for name, axes in self.axes.items() if name.startswith(_PAST))
        others = tuple(axes for name, axes in self.axes.items() if not name.startswith(_PAST))
        return (*others, past) if past else others


class _Vectors(nn.Module):
    """Ids to one vector a text: encoder, pooling, normalisation."""

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
    """Ids to the logits of labels, or of an answer's beginnings and ends."""

    def __init__(self, model: EncoderClassifier | SpanClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Int[Tensor, "B L"],
        attention_mask: Int[Tensor, "B L"],
        token_type_ids: Int[Tensor, "B L"] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        found: Tensor | tuple[Tensor, Tensor] = self.model(input_ids, padding(attention_mask), token_type_ids)
        return found


class _Memory(nn.Module):
    """A source to the memory."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Int[Tensor, "B M"], attention_mask: Int[Tensor, "B M"]) -> Float[Tensor, "B M D"]:
        return self.model.encode(input_ids, padding(attention_mask))


class _Past(SelfAttentionCache):
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
    """A target's beginning: the scores of its next token, and all keys and values."""

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
        cache.layers = [LayerCache(_Past(), layer.cross_attention) for layer in cache.layers]
        logits = self.model.decode(input_ids, encoder_hidden_states, None, padding(encoder_attention_mask), cache)
        return (logits, *_held(cache, memory=True))


class DecoderWithPast(nn.Module):
    """A target's next token: from the keys and values of those before it, and of the memory."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Int[Tensor, "B 1"], encoder_attention_mask: Int[Tensor, "B M"], *past: Tensor
    ) -> tuple[Tensor, ...]:
        cache = DecoderCache(len(self.model.decoder.layers))
        cache.layers = [
            LayerCache(_Past((past[at], past[at + 1])), layer.cross_attention)
            for at, layer in zip(range(0, len(past), 4), cache.layers, strict=True)
        ]
        for at, layer in zip(range(0, len(past), 4), cache.layers, strict=True):
            layer.cross_attention.key_value = past[at + 2], past[at + 3]
        memory = past[2][:, 0]  # of the memory nothing is wanted but its sizes: its keys are there
        logits = self.model.decode(input_ids, memory, None, padding(encoder_attention_mask), cache)
        return (logits, *_held(cache, memory=False))


def _held(cache: DecoderCache, *, memory: bool) -> list[Tensor]:
    """What a cache holds: of each layer its own keys and values, then those of the memory."""
    found: list[Tensor] = []
    for own, cross in cache.layers:
        assert own.keys is not None
        assert own.values is not None
        found += [own.keys, own.values]
        if memory:
            assert cross.key_value is not None
            found += cross.key_value
    return found


def of_encoder(model: EncoderModel, pooling: Pooling, normalize: bool) -> list[Graph]:
    """The graph of a text encoder: `sentence_embedding` (B, D) and `last_hidden_state` (B, L, D)."""
    rows = _rows(model.config.vocab_size, model.config.max_len)
    axes = {0: "batch", 1: "length"}
    module = _Vectors(model, pooling, normalize)
    return [
        Graph(
            "model",
            module.eval(),
            {"input_ids": rows, "attention_mask": torch.ones_like(rows)},
            {"input_ids": axes, "attention_mask": axes},
            ["sentence_embedding", "last_hidden_state"],
        )
    ]


def of_head(model: EncoderClassifier | SpanClassifier) -> list[Graph]:
    """The graph of an encoder with a head: `logits` (B, C), or `start_logits` and `end_logits` (B, L)."""
    config = model.encoder.config
    rows = _rows(config.vocab_size, config.max_len)
    inputs = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    if config.num_token_types > 1:
        inputs["token_type_ids"] = torch.zeros_like(rows)
    outputs = ["logits"] if isinstance(model, EncoderClassifier) else ["start_logits", "end_logits"]
    axes = {0: "batch", 1: "length"}
    return [Graph("model", _Head(model).eval(), inputs, dict.fromkeys(inputs, axes), outputs)]


def of_seq2seq(model: Seq2Seq) -> list[Graph]:
    """The three graphs of an encoder–decoder, with the names that Optimum's have."""
    config = model.config
    source = _rows(config.vocab_size, config.max_len)
    target = _rows(config.target_vocab_size or config.vocab_size, config.max_len)[:, :3].contiguous()
    mask = torch.ones_like(source)
    with torch.no_grad():
        memory = model.encode(source)
        _, *held = Decoder(model)(target, memory, mask)
    source_axes, target_axes = {0: "batch", 1: "source_length"}, {0: "batch", 1: "target_length"}
    past = past_names(model)
    present = [name.replace(_PAST, "present.") for name in past]
    past_axes = {name: {0: "batch", 2: "past_length" if ".decoder." in name else "source_length"} for name in past}
    return [
        Graph(
            "encoder_model",
            _Memory(model).eval(),
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
                **dict(zip(past_axes, held, strict=True)),
            },
            {"input_ids": {0: "batch"}, "encoder_attention_mask": source_axes, **past_axes},
            ["logits", *(name for name in present if ".decoder." in name)],
        ),
    ]


def past_names(model: Seq2Seq) -> list[str]:
    """The inputs that take keys and values, in the order in which the first step gives them."""
    layers = range(len(model.decoder.layers))
    return [f"{_PAST}{n}.{who}.{what}" for n in layers for who in ("decoder", "encoder") for what in ("key", "value")]


def _rows(vocabulary: int, longest: int | None) -> Tensor:
    """Ids to try a graph with: two rows, whose sizes are not 1, which would be taken for fixed."""
    return (torch.arange(14).view(2, 7)[:, : longest or 7] % vocabulary).contiguous()
