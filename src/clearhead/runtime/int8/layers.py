"""Layers in 8 bits for inference: linear layers and whole encoder layers."""

import functools
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from clearhead.equations.masks import MaskLike, as_mask
from clearhead.kernels.linear import version
from clearhead.kernels.native import allows_fusion, library
from clearhead.layers.embedding import OutputProjection
from clearhead.layers.feedforward import PositionwiseFeedForward
from clearhead.layers.norm import LayerNorm
from clearhead.layers.residual import PreNorm
from clearhead.runtime.int8.gptq import QuantizedWeight
from clearhead.stacks.decoder import DecoderLayer
from clearhead.stacks.encoder import EncoderLayer

OFFSETS = {"none": None, "relu": 0.0, "gelu": 0.17, "gelu_tanh": 0.171, "silu": 0.279}
"""For the output of each activation, the negative of its smallest value; None if it has none.

Inputs that are never below -offset are quantized to [0, 255], twice as fine as [-127, 127].
"""


class PackedInt8Weight:
    """A quantized weight and bias, packed for the kernels of this processor.

    Args:
        weight: the quantized weight.
        bias: the bias in float32, or None.
        offset: the input is never below -offset; None if it may be.
        isa: the instruction set; the fastest one where None.
    """

    def __init__(
        self, weight: QuantizedWeight, bias: Tensor | None, offset: float | None, isa: str | None = None
    ) -> None:
        isa = isa or library.isa()
        assert isa is not None
        self.isa = isa
        rows, columns = weight.codes_NK.shape
        zero_point = 128 if offset is None and isa != "avx2" else 0
        sums_N = weight.codes_NK.sum(dim=1, dtype=torch.int32)
        exact_bias = torch.zeros(rows) if bias is None else bias.detach().float()
        keep_K = torch.ones(columns)
        keep_K[weight.outliers_J] = 0
        parts = (
            library.pack(weight.codes_NK, isa),
            -zero_point * sums_N,
            weight.scale_N.float().contiguous(),
            exact_bias - (offset or 0.0) * sums_N * weight.scale_N,
            keep_K,
            weight.outliers_J.to(torch.int32),
            weight.outlier_weight_JN.float().contiguous(),
        )
        self.struct = library.LinearStruct(
            columns,
            rows,
            len(weight.outliers_J),
            int(offset is not None),
            offset or 0.0,
            *(part.data_ptr() for part in parts),
        )
        self._parts = parts  # the struct has their addresses

    def matmul(self, x: Tensor, activation: str = "none") -> Tensor:
        """Return act(x Wᵀ + b) in float32."""
        return library.linear(self.struct, library.ACTIVATIONS[activation], x, self.isa)

    @functools.cached_property
    def by_column(self) -> Tensor:
        """Bytes (N, ...) of each column of the result: codes, zeros up to a multiple of 64, and a `ColumnEnd`.

        The kernels compute single columns with them.
        """
        packed, start_N, scale_N, bias_N, _, _, outlier_weight_JN = self._parts
        codes_NK = library.unpack(packed, self.struct.out_features, self.struct.in_features)
        floats_NF = torch.cat([scale_N[:, None], bias_N[:, None], outlier_weight_JN.t()], dim=1)
        end_NB = torch.cat([start_N[:, None].view(torch.uint8), floats_NF.view(torch.uint8)], dim=1)
        return torch.cat([_whole_lines(codes_NK.contiguous().view(torch.uint8)), _whole_lines(end_NB)], dim=1)

    def select(self, columns_C: Int[Tensor, "C"]) -> "PackedInt8Weight":
        """Return the weight of some columns of the result, with columns of zeros up to a multiple of 16."""
        _, _, scale_N, bias_N, _, outliers_J, outlier_weight_JN = self._parts
        padding = -len(columns_C) % library.MULTIPLE
        codes_CK = self.by_column[columns_C, : self.struct.in_features * self._parts[0].itemsize].view(
            self._parts[0].dtype
        )
        weight = QuantizedWeight(
            functional.pad(codes_CK, (0, 0, 0, padding)),
            functional.pad(scale_N[columns_C], (0, padding)),
            outliers_J.long(),
            functional.pad(outlier_weight_JN[:, columns_C], (0, padding)),
        )
        return PackedInt8Weight(weight, functional.pad(bias_N[columns_C], (0, padding)), None, self.isa)


def _whole_lines(bytes_NB: Tensor) -> Tensor:
    return functional.pad(bytes_NB, (0, -bytes_NB.shape[1] % 64))


class UnchangedParameters:
    """The parameters that a layer was quantized from, with a check that they did not change.

    Args:
        module: the original layer.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = tuple(module.parameters())
        self.versions = [version(parameter) for parameter in self.parameters]

    def check(self) -> None:
        """Raise a RuntimeError if gradients are recorded, or if a parameter changed."""
        if torch.is_grad_enabled():
            raise RuntimeError("8-bit weights have no gradients; run this model under torch.inference_mode()")
        if [version(parameter) for parameter in self.parameters] != self.versions:
            raise RuntimeError("the model's weights changed after they were quantized; load it again")


class Int8Linear(nn.Module):
    """A linear layer and an activation in 8 bits, for inference.

    Equation: act(x Wᵀ + b), with codes of x and W
    Source: as in `QuantizedWeight`; each row of x has its own scale, so that a row of the result does not depend on
        the other rows

    Args:
        linear: the original layer.
        weight: its quantized weight.
        activation: name of the activation after it.
        offset: the input is never below -offset; None if it may be.
    """

    def __init__(
        self, linear: nn.Linear, weight: QuantizedWeight, activation: str = "none", offset: float | None = None
    ) -> None:
        super().__init__()
        # a stack without norms reads its dtype from its parameters: keep one
        self.dtype_holder = nn.Parameter(torch.empty(0), requires_grad=False)
        self.activation, self.unchanged = activation, UnchangedParameters(linear)
        self.packed = PackedInt8Weight(weight, linear.bias, offset)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch F"]:
        self.unchanged.check()
        return self.packed.matmul(x, self.activation)

    def extra_repr(self) -> str:
        return f"{self.packed.struct.in_features}, {self.packed.struct.out_features}, activation={self.activation}"


class Int8OutputProjection(nn.Module):
    """An `OutputProjection` in 8 bits, for inference.

    Equation, source: as in `OutputProjection`

    Args:
        output: the original layer.
        weight: its quantized weight, with rows of zeros up to a multiple of 16.
    """

    def __init__(self, output: OutputProjection, weight: QuantizedWeight) -> None:
        super().__init__()
        self.scale, self._scaled, self._unchanged = output.scale, output.scale_hidden, UnchangedParameters(output)
        self.vocabulary = len(output.tokens.weight)
        rows = len(weight.codes_NK)
        # padding tokens are never chosen
        bias = torch.full((rows,), -1e30)
        bias[: self.vocabulary] = 0 if output.bias is None else output.bias.detach()
        self.packed = PackedInt8Weight(weight, bias, None)

    def forward(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
        self._unchanged.check()
        return self.packed.matmul(self._scaled(h).float())[..., : self.vocabulary]


def norm_struct(norm: nn.Module | None) -> library.NormStruct:
    """Return a LayerNorm for the kernels; without one, an empty struct."""
    if norm is None:
        return library.NormStruct()
    assert isinstance(norm, LayerNorm)
    return library.NormStruct(norm.weight.data_ptr(), None if norm.bias is None else norm.bias.data_ptr(), norm.eps)


def activation_name(module: nn.Module) -> str | None:
    """Return the kernels' name of an activation, or None if they do not have it."""
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    return {nn.ReLU: "relu", nn.SiLU: "silu"}.get(type(module))


def can_fuse(layer: EncoderLayer | DecoderLayer) -> bool:
    """Return whether the kernels compute self-attention and feed-forward network of a layer in 8 bits.

    They have no rotary positions, windows, gates, shared keys or RMSNorm.
    """
    attention, feedforward = layer.attention, layer.feedforward
    linears = (attention.qkv, attention.out, feedforward.inner, feedforward.out)
    return (
        all(isinstance(linear, Int8Linear) for linear in linears)
        and isinstance(feedforward, PositionwiseFeedForward)
        and isinstance(feedforward.activation, nn.Identity)
        and attention.rotary is None
        and attention.window is None
        and attention.num_kv_heads == attention.num_heads
        and not attention.head_dim % library.MULTIPLE
        and all(isinstance(part.norm, LayerNorm) for part in (layer.attention_residual, layer.feedforward_residual))
    )


def layer_options(layer: EncoderLayer | DecoderLayer) -> tuple[int, int, int, int, float]:
    """Return heads, head width, activation, norm order and scale of a layer that `can_fuse`, for the kernels."""
    attention = layer.attention
    return (
        attention.num_heads,
        attention.head_dim,
        library.ACTIVATIONS[cast(Int8Linear, layer.feedforward.inner).activation],
        int(isinstance(layer.attention_residual, PreNorm)),
        attention.head_dim**-0.5 if attention.scale is None else attention.scale,
    )


class Int8EncoderLayer(nn.Module):
    """An encoder layer in 8 bits, computed by one call, for inference; attention and norms are in float32.

    Equation, source: as in `EncoderLayer`

    Args:
        layer: a layer whose linear layers are `Int8Linear`, one that `can_fuse`.

    `forward(x, mask=None)` maps x (B, L, D) to (B, L, D). The mask pads or separates packed sequences. Under
    `unfused()` the parts of the layer compute.
    """

    def __init__(self, layer: EncoderLayer) -> None:
        super().__init__()
        self.attention, self.attention_residual = layer.attention, layer.attention_residual
        self.feedforward, self.feedforward_residual = layer.feedforward, layer.feedforward_residual
        attention = layer.attention
        parts = (attention.qkv, attention.out, layer.feedforward.inner, layer.feedforward.out)
        linears = [cast(Int8Linear, part) for part in parts]
        self._unchanged, self._isa = [linear.unchanged for linear in linears], linears[0].packed.isa
        self._struct = library.EncoderLayerStruct(
            *(linear.packed.struct for linear in linears),
            norm_struct(layer.attention_residual.norm),
            norm_struct(layer.feedforward_residual.norm),
            *layer_options(layer),
        )

    def forward(self, x: Float[Tensor, "B L D"], mask: MaskLike = None) -> Float[Tensor, "B L D"]:
        if not allows_fusion():
            z: Tensor = self.attention_residual(x, lambda y: self.attention(y, mask))
            y: Tensor = self.feedforward_residual(z, self.feedforward)
            return y
        for parameters in self._unchanged:
            parameters.check()
        batch, length, _ = x.shape
        mask = as_mask(mask, batch=batch, heads=self.attention.num_heads, queries=length, keys=length)
        if mask is None:
            return self._packed_rows(x, (length,) * batch)
        if mask.lengths is not None:
            return self._packed_rows(x, mask.lengths)
        if not mask.only_padding or mask.keep_BM is None:
            raise ValueError(
                "8-bit encoder layers support padding masks and packed sequences only; use another precision"
            )
        keep = mask.keep_BM
        result = torch.zeros_like(x)
        result[keep] = self._packed_rows(x[keep], tuple(keep.sum(dim=1).tolist()))
        return result

    def _packed_rows(self, x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return library.encoder_layer(self._struct, x, _lengths(lengths), self._isa)


@functools.lru_cache(maxsize=8)
def _lengths(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor(lengths, dtype=torch.int32)
