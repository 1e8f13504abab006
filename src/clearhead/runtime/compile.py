"""Encoder layers whose feed-forward half is written anew by PyTorch's compiler, inductor: norms, sums and activation in
the products, whose weights are frozen.

Attention stays as it is: it goes by the lengths of the texts, and the compiler would write it anew for each batch.
"""

import os
import shutil
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations.masks import MaskLike
from clearhead.stacks.encoder import Encoder, EncoderLayer


class CompiledLayer(nn.Module):
    """An `EncoderLayer` for inference.

    Equation: Z₁ = LN(X + MHA(X)), Z₂ = LN(Z₁ + FFN(Z₁)), the second compiled
    Source: Section 3.1 of "Attention Is All You Need"; with norm_order="pre" as in `EncoderLayer`

    Args:
        layer: whose attention is taken.
        plain: the same layer with torch.nn's linear maps, whose feed-forward network is taken.
    """

    def __init__(self, layer: EncoderLayer, plain: EncoderLayer) -> None:
        super().__init__()
        self.attention, self.attention_residual = layer.attention, layer.attention_residual
        self.feedforward, self.feedforward_residual = plain.feedforward, plain.feedforward_residual
        self._second = torch.compile(self._half, dynamic=True, options={"freezing": True})

    def _half(self, z: Tensor) -> Tensor:
        y: Tensor = self.feedforward_residual(z, self.feedforward)
        return y

    def forward(self, x: Float[Tensor, "B L D"], mask: MaskLike = None) -> Float[Tensor, "B L D"]:
        return self._second(self.attention_residual(x, lambda y: self.attention(y, mask)))


def compile_layers(stack: Encoder, plain: Encoder) -> None:
    """Puts compiled layers in the place of a stack's. What the compiler writes is kept between runs, in the folder that
    TORCHINDUCTOR_CACHE_DIR names, else in the user's cache.

    Args:
        stack: the stack.
        plain: the same, with torch.nn's linear maps.

    Raises:
        ValueError: there is no C++ compiler.
    """
    if next(plain.parameters()).device.type == "cpu" and not has_compiler():
        raise ValueError("to compile a model takes a C++ compiler: install g++ or clang++, or leave --compile out")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "clearhead" / "inductor"))
    import torch._dynamo  # a second of code that nobody else needs

    limits = torch._dynamo.config  # all layers count as one function, which is compiled anew for each
    limits.recompile_limit = max(limits.recompile_limit, 4 * len(stack.layers))
    for number, (layer, own) in enumerate(zip(stack.layers, plain.layers, strict=True)):
        assert isinstance(layer, EncoderLayer)
        assert isinstance(own, EncoderLayer)
        stack.layers[number] = CompiledLayer(layer, own)


def has_compiler() -> bool:
    """Whether inductor finds a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))
