"""Inference-only linear layers with weights prepacked for oneDNN or MKL and a fused activation."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.kernels import linear as kernels
from clearhead.kernels.native import library
from clearhead.kernels.topk import topk
from clearhead.layers.embedding import OutputProjection
from clearhead.layers.feedforward import PositionwiseFeedForward

_EXACT_LOGITS = 16
"""Number of largest logits that are recomputed in float32."""


class PrepackedLinear(nn.Module):
    """A linear layer and an activation, for inference.

    Equation: act(x Wᵀ + b)
    Source: Section 3.3 of "Attention Is All You Need"

    Args:
        linear: the original layer, which is not modified. It is repacked when its weight or bias changes in place.
        dtype: dtype of the input and of the result.
        activation: the activation after it: `nn.ReLU`, `nn.GELU`, `nn.SiLU`, or None.
        small_batch: whether to pack for small batches, in float32 and without an activation.

    A row of the result is bit-identical whatever other rows the batch has; packed for small batches, within 1e-6.

    Raises:
        RuntimeError: in `forward`, if gradients are recorded.
    """

    def __init__(
        self, linear: nn.Linear, dtype: torch.dtype, activation: nn.Module | None = None, *, small_batch: bool = False
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, dtype
        # in a tuple, so that they stay parameters of the original model only
        self._parameters_of_original = linear.weight, linear.bias
        # a stack without norms reads its dtype from its parameters: keep one
        self.dtype_holder = nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)
        self.packed = (kernels.SmallBatchPackedWeight if small_batch else kernels.PackedWeight)(dtype)
        name = kernels.activation_of(activation)
        assert name is not None
        self._activation = name

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch F"]:
        return self.packed.matmul(x, *self._parameters_of_original, self._activation)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.dtype}, activation={self._activation[0]}"


class NativeGelu(nn.Module):
    """GELU by the package's compiled kernel, for inference in float32.

    Equation: x Φ(x)
    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"
    """

    def __init__(self, isa: str) -> None:
        super().__init__()
        self.isa = isa

    def forward(self, x: Float[Tensor, "*batch F"]) -> Float[Tensor, "*batch F"]:
        return library.gelu(x, self.isa)


class PrepackedOutputProjection(nn.Module):
    """An `OutputProjection` with a prepacked matrix, for inference.

    Equation: logits = H W_Eᵀ + b
    Source: Section 3.4 of "Attention Is All You Need"

    Args:
        output: the original layer, which is not modified. It is repacked when its weight or bias changes in place.
        dtype: dtype of the matmul. Below float32, the largest logits are recomputed in float32: 16 bits cannot
            distinguish the best tokens.

    Raises:
        RuntimeError: in `forward`, if gradients are recorded.
    """

    def __init__(self, output: OutputProjection, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self._parameters_of_original = output.tokens.weight, output.bias
        self._scaled = output.scale_hidden
        small_batch = kernels.small_batch_is_faster(dtype)
        self.packed = (kernels.SmallBatchPackedWeight if small_batch else kernels.PackedWeight)(dtype)

    def forward(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
        (weight_VD, bias_V), h = self._parameters_of_original, self._scaled(h).float()
        if self.dtype == torch.float32:
            return self.packed.matmul(h, weight_VD, bias_V)
        logits = self.packed.matmul(h.to(self.dtype), weight_VD, bias_V).float()
        logits_NV = logits.flatten(0, -2)
        _, best_NC = topk(logits_NV, _EXACT_LOGITS)
        exact_NC = torch.einsum("nd,ncd->nc", h.flatten(0, -2), weight_VD[best_NC])
        logits_NV.scatter_(1, best_NC, exact_NC if bias_V is None else exact_NC + bias_V[best_NC])
        return logits

    def extra_repr(self) -> str:
        return f"{self.dtype}"


class PrepackedConverter:
    """Converter of linear layers to prepacked ones on a CPU.

    Args:
        dtype: dtype of the matmuls.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def supports(self, device: torch.device) -> bool:
        """Return whether prepacked matmuls are available and correct on a device."""
        return device.type == "cpu" and kernels.is_supported(self.dtype)

    def convert(self, module: nn.Module, *, small_batch: bool = False) -> dict[int, nn.Module]:
        """Return the replacement of each layer of a module, keyed by the layer's `id`.

        An activation that is fused into the matmul before it, and every dropout, becomes an identity.

        Args:
            module: a stack or an output projection, which is not modified.
            small_batch: whether it runs on small batches, as a decoder does.
        """
        replacements: dict[int, nn.Module] = {}
        small_batch = small_batch and kernels.small_batch_is_faster(self.dtype)
        for layer in module.modules():
            if isinstance(layer, PositionwiseFeedForward) and kernels.should_fuse(layer.activation) and not small_batch:
                replacements[id(layer.inner)] = PrepackedLinear(layer.inner, self.dtype, layer.activation)
                replacements[id(layer.activation)] = nn.Identity()
            elif type(layer) is nn.Linear and id(layer) not in replacements:
                replacements[id(layer)] = PrepackedLinear(layer, self.dtype, small_batch=small_batch)
            elif isinstance(layer, OutputProjection):
                replacements[id(layer)] = PrepackedOutputProjection(layer, self.dtype)
            elif type(layer) is nn.GELU and id(layer) not in replacements:
                replacements |= self._native_gelu(layer)
            elif isinstance(layer, nn.Dropout):  # even inactive, calling it takes time at every step
                replacements[id(layer)] = nn.Identity()
        return replacements

    def _native_gelu(self, layer: nn.GELU) -> dict[int, nn.Module]:
        """Return the replacement of an activation that is computed apart from the matmul."""
        isa = library.isa()
        if layer.approximate != "none" or self.dtype != torch.float32 or isa is None:
            return {}
        return {id(layer): NativeGelu(isa)}
