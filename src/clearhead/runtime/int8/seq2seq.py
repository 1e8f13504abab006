"""Encoder–decoders in 8 bits: a step of the whole decoder is one call of the compiled kernels."""

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.equations.masks import MaskLike, as_mask
from clearhead.generation.state import AllowedTokens
from clearhead.kernels.native import allows_fusion, library
from clearhead.layers.cache import DecoderCache
from clearhead.layers.norm import LayerNorm
from clearhead.models.config import Seq2SeqConfig
from clearhead.models.seq2seq import Seq2Seq
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.int8.files import Int8Source
from clearhead.runtime.int8.layers import (
    Int8Linear,
    Int8OutputProjection,
    PackedInt8Weight,
    can_fuse,
    layer_options,
    norm_struct,
)
from clearhead.runtime.precision import Precision
from clearhead.stacks.decoder import DecoderLayer


class RestrictedOutput:
    """The output projection for the tokens that the targets of each sentence may have; it computes no other logits.

    Args:
        common: packed weight of the tokens that all targets may have.
        output: the whole output projection.
        allowed: the tokens of each row of the memory.
    """

    def __init__(self, common: PackedInt8Weight, output: PackedInt8Weight, allowed: Sequence[AllowedTokens]) -> None:
        self._common, self._columns = common, output.by_column
        self._common_tokens = allowed[0].common_C.to(torch.int32)
        self._starts = torch.tensor([0, *(len(tokens.extra_E) for tokens in allowed)]).cumsum(0).to(torch.int32)
        self._extra = torch.cat([tokens.extra_E for tokens in allowed]).to(torch.int32)

    def write(self, step: library.DecoderStepStruct) -> None:
        """Write the addresses of the tokens and of their columns into a step."""
        step.output_columns, step.column_bytes = self._columns.data_ptr(), self._columns.shape[1]
        step.extra_starts, step.extra_tokens = self._starts.data_ptr(), self._extra.data_ptr()
        step.common, step.num_common = self._common.struct, len(self._common_tokens)
        step.common_tokens = self._common_tokens.data_ptr()


class SlotCache:
    """The cache of a fused decoder: keys and values in slots, and for each row the slots of its tokens.

    Rows that continue from one another share slots, so that nothing is copied when beams are reordered. It has the
    methods of a `BeamDecoderCache`.

    Args:
        num_layers: number of layers.
        width: number of columns of the keys of all heads.
        structs: the decoder's layers for the kernels, of this cache alone: its steps write addresses into them.

    Attributes:
        output: the output projection for the tokens that the targets may have; None for all.
    """

    def __init__(self, num_layers: int, width: int, structs: "ctypes.Array[library.DecoderLayerStruct]") -> None:
        self.length, self.structs = 0, structs
        self.keys = [torch.empty(0, width) for _ in range(num_layers)]
        self.values = [torch.empty(0, width) for _ in range(num_layers)]
        self.slots_NL = torch.empty(0, 0, dtype=torch.int32)
        self.memory: list[Tensor] | None = None
        self.memory_rows_N = self.memory_lengths_B = torch.empty(0, dtype=torch.int32)
        self.output: RestrictedOutput | None = None
        self._used = 0

    def append(self, rows: int) -> None:
        """Add a token to each of `rows` rows: give each a new slot."""
        if self.length == 0:
            self.slots_NL = torch.empty(rows, 0, dtype=torch.int32)
        if self._used + rows > len(self.keys[0]):
            self._grow(rows)
        new = torch.arange(self._used, self._used + rows, dtype=torch.int32)
        self.slots_NL = torch.cat([self.slots_NL, new[:, None]], dim=1)
        self._used += rows
        self.length += 1

    def _grow(self, rows: int) -> None:
        """Drop the slots that no row uses, and make room for at least as many again."""
        live, renumbered = torch.unique(self.slots_NL, return_inverse=True)
        self.slots_NL = renumbered.to(torch.int32)
        capacity = 2 * (len(live) + rows)
        for stored in (self.keys, self.values):
            for index, old in enumerate(stored):
                stored[index] = old.new_empty(capacity, old.shape[1])
                stored[index][: len(live)] = old[live]
        self._used = len(live)

    def expand_beams(self, num_beams: int) -> None:
        """Make each row `num_beams` rows, which share all tokens so far."""
        self.slots_NL = self.slots_NL.repeat_interleave(num_beams, dim=0)
        self.memory_rows_N = self.memory_rows_N.repeat_interleave(num_beams)

    def reorder(self, rows: Int[Tensor, "N"], memory_rows: Int[Tensor, "S"] | None = None) -> None:
        """Keep these rows; the memory is not reordered, because each row has the index of its own."""
        self.slots_NL, self.memory_rows_N = self.slots_NL[rows], self.memory_rows_N[rows]


class FusedDecoder(nn.Module):
    """The decoder stack and the output projection in 8 bits: a step is one call of the compiled kernels.

    Args:
        model: a copy whose linear layers are `Int8Linear`, one that `can_fuse_decoder`.

    `forward(x, cache, results, sizes)` runs a step for the embedded newest tokens x (N, 1, D), which it overwrites. It
    writes to the tensors of `results`. Their names and those of the integers `sizes` are fields of `DecoderStep` in
    decoder.h.
    """

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        output = cast(Int8OutputProjection, model.output)
        self.output, self.vocabulary = output.packed, output.vocabulary
        self.layers = model.decoder.layers
        self._cross_attentions = [layer.cross_attention for layer in _decoder_layers(model)]
        structs = [_layer_struct(layer) for layer in _decoder_layers(model)]
        self._structs = (library.DecoderLayerStruct * len(structs))(*structs)
        self._common: tuple[Tensor, PackedInt8Weight] | None = None
        self.norm, self._final_norm = model.decoder.norm, norm_struct(model.decoder.norm)

    def cache(self) -> SlotCache:
        """Return an empty cache."""
        structs = type(self._structs).from_buffer_copy(self._structs)  # searches can run in several threads
        return SlotCache(len(self.layers), structs[0].heads * structs[0].head_width, structs)

    def restrict(self, cache: SlotCache, allowed: Sequence[AllowedTokens]) -> None:
        """Let each row of the memory have some tokens only; the output projection computes no other ones."""
        common_C = allowed[0].common_C
        if max(map(len, allowed)) > self.vocabulary:  # the kernels have room for one logit of each token
            raise ValueError(
                f"a shortlist with repeated tokens: it has more than the {self.vocabulary} of the vocabulary"
            )
        if self._common is None or self._common[0] is not common_C:  # a shortlist has one tensor for all batches
            self._common = common_C, self.output.select(common_C)
        cache.output = RestrictedOutput(self._common[1], self.output, allowed)

    def project_memory(self, memory: Float[Tensor, "B M D"], mask: MaskLike, cache: SlotCache) -> None:
        """Store the keys and values of cross-attention of all layers in the cache."""
        batch, length, _ = memory.shape
        checked = as_mask(mask, batch=batch, heads=1, queries=1, keys=length)
        keep = None if checked is None else checked.keep_BM
        lengths = torch.full((batch,), length) if keep is None else keep.sum(dim=1)
        cache.memory_lengths_B = lengths.to(torch.int32)
        cache.memory_rows_N = torch.arange(batch, dtype=torch.int32)
        cache.memory = [attention.kv(memory) for attention in self._cross_attentions]

    def forward(
        self, x: Float[Tensor, "N 1 D"], cache: SlotCache, results: dict[str, Tensor], sizes: dict[str, int]
    ) -> None:
        assert cache.memory is not None
        rows, x = len(x), x.float().contiguous()
        cache.append(rows)
        for struct, keys, values, memory in zip(cache.structs, cache.keys, cache.values, cache.memory, strict=True):
            struct.keys, struct.values, struct.memory = keys.data_ptr(), values.data_ptr(), memory.data_ptr()
        step = library.DecoderStepStruct(
            ctypes.addressof(cache.structs),
            len(cache.structs),
            rows,
            cache.length,
            cache.slots_NL.data_ptr(),
            cache.slots_NL.stride(0),
            cache.memory_rows_N.data_ptr(),
            cache.memory_lengths_B.data_ptr(),
            cache.memory[0].shape[1],
            self._final_norm,
            self.output.struct,
        )
        if cache.output is not None and "best_tokens" in results:
            cache.output.write(step)
        for name, value in sizes.items():
            setattr(step, name, value)
        for name, tensor in results.items():
            setattr(step, name, tensor.data_ptr())
        library.decoder_step(step, x, self.output.isa)


class Int8Seq2Seq(nn.Module):
    """An encoder–decoder in 8 bits whose decoder steps are fused, for generation.

    Args:
        model: as in `FusedDecoder`.
    """

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model, self.decoder = model, FusedDecoder(model)

    @property
    def config(self) -> Seq2SeqConfig:
        """The model's config."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Device of the weights: the CPU."""
        return self.model.device

    def encode(self, ids: Int[Tensor, "B M"], mask: MaskLike = None) -> Float[Tensor, "B M D"]:
        """Return the memory, as `Seq2Seq.encode`."""
        return self.model.encode(ids, mask)

    def cache(self) -> SlotCache | DecoderCache:
        """Return an empty cache for `decode`; under `unfused()`, that of `Seq2Seq`."""
        return self.decoder.cache() if allows_fusion() else self.model.cache()

    def fuses(self, cache: object) -> bool:
        """Return whether steps with a cache are fused."""
        return isinstance(cache, SlotCache)

    def restrict(self, cache: SlotCache, allowed: Sequence[AllowedTokens]) -> None:
        """Restrict `best_tokens` to some tokens for each sentence of an empty cache."""
        self.decoder.restrict(cache, allowed)

    def decode(
        self, target_ids: Int[Tensor, "N L"], memory: Float[Tensor, "B M D"], mask: None, memory_mask: Any, cache: Any
    ) -> Float[Tensor, "N 1 V"]:
        """Return the logits of the next token, as the last ones of `Seq2Seq.decode`."""
        if not self.fuses(cache):
            return self.model.decode(target_ids, memory, mask, memory_mask, cache)[:, -1:]
        logits_NV = torch.empty(len(target_ids), self.decoder.output.struct.out_features)
        self._steps(target_ids, memory, memory_mask, cache, {"logits": logits_NV}, {})
        return logits_NV[:, None, : self.decoder.vocabulary]

    def best_tokens(
        self,
        target_ids: Int[Tensor, "N L"],
        memory: Float[Tensor, "B M D"],
        memory_mask: Any,
        cache: Any,
        count: int,
        excluded: Sequence[int],
        *,
        renormalize: bool,
    ) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"]]:
        """Return the log-probabilities of the most probable next tokens, and these tokens, best first.

        Args: as in `FusedModel`.
        """
        vocabulary = self.decoder.vocabulary
        if any(not 0 <= token < vocabulary for token in excluded):
            raise ValueError(f"tokens to exclude must be in 0 … {vocabulary - 1}; got {sorted(excluded)}")
        rows = len(target_ids)
        best_NC, tokens_NC = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int32)
        log_sum_N, excluded_E = torch.empty(rows), torch.tensor(excluded, dtype=torch.int32)
        results = {"best_logits": best_NC, "best_tokens": tokens_NC, "log_sums": log_sum_N, "excluded": excluded_E}
        sizes = {"count": count, "num_excluded": len(excluded), "is_renormalized": int(renormalize)}
        self._steps(target_ids, memory, memory_mask, cache, results, sizes)
        return best_NC.sub_(log_sum_N[:, None]), tokens_NC.long()

    def _steps(
        self,
        target_ids: Tensor,
        memory: Tensor,
        memory_mask: Any,
        cache: SlotCache,
        results: dict[str, Tensor],
        sizes: dict[str, int],
    ) -> None:
        """Run a step for each new token of the rows; the last one writes results."""
        rows, new = target_ids.shape
        if cache.memory is None:
            self.decoder.project_memory(memory, memory_mask, cache)
        for column in range(new):
            position = torch.full((rows, 1), cache.length) if cache.length else None
            x = self.model.target_embedding(target_ids[:, column, None], position)
            is_last = column == new - 1
            self.decoder(x, cache, results if is_last else {}, sizes if is_last else {})


def inference_seq2seq(
    model: Seq2Seq, precision: Precision, device: torch.device, int8: Int8Source
) -> Seq2Seq | Int8Seq2Seq:
    """Return a copy of a model for generation; in 8 bits, its decoder steps are fused if they can be.

    Args: as in `inference_copy`.
    """
    copied = inference_copy(model, precision, device, int8).eval()
    return Int8Seq2Seq(copied).eval() if can_fuse_decoder(copied) else copied


def can_fuse_decoder(model: nn.Module) -> bool:
    """Return whether `Int8Seq2Seq` computes the decoder of a copy: no position biases, gates or RMSNorm."""
    return (
        isinstance(model, Seq2Seq)
        and isinstance(model.output, Int8OutputProjection)
        and not model.output.scale
        and model.decoder.relative_bias is None
        and all(_can_fuse_layer(layer) for layer in _decoder_layers(model))
    )


def _decoder_layers(model: Seq2Seq) -> list[DecoderLayer]:
    return [cast(DecoderLayer, layer) for layer in model.decoder.layers]


def _can_fuse_layer(layer: DecoderLayer) -> bool:
    attention, cross = layer.attention, layer.cross_attention
    return (
        can_fuse(layer)
        and all(isinstance(linear, Int8Linear) for linear in (cross.q, cross.kv, cross.out))
        and (attention.num_heads, attention.head_dim) == (cross.num_heads, cross.head_dim)
        and attention.scale == cross.scale
        and isinstance(layer.cross_attention_residual.norm, LayerNorm)
    )


def _layer_struct(layer: DecoderLayer) -> library.DecoderLayerStruct:
    attention, cross, feedforward = layer.attention, layer.cross_attention, layer.feedforward
    linears = (attention.qkv, attention.out, cross.q, cross.out, feedforward.inner, feedforward.out)
    residuals = (layer.attention_residual, layer.cross_attention_residual, layer.feedforward_residual)
    return library.DecoderLayerStruct(
        *(cast(Int8Linear, linear).packed.struct for linear in linears),
        *(norm_struct(residual.norm) for residual in residuals),
        *layer_options(layer),
    )
