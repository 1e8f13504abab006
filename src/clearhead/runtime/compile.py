"""Compile the feed-forward half of encoder layers with inductor: norms, sums and activations fused, weights frozen.

Attention is not compiled: its kernels depend on the lengths of the texts, and each batch would be compiled again.
"""

import os
import shutil
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.equations.masks import MaskLike
from clearhead.layers.disentangled_attention import Distances, with_distances
from clearhead.stacks.encoder import Encoder, EncoderLayer


class CompiledLayer(nn.Module):
    """An `EncoderLayer` with a compiled feed-forward half, for inference.

    Equation: Z₁ = LN(X + MHA(X)), Z₂ = LN(Z₁ + FFN(Z₁)), the second compiled
    Source: Section 3.1 of "Attention Is All You Need"; with norm_order="pre" as in `EncoderLayer`

    Args:
        layer: the layer whose attention is used.
        unconverted: the same layer with torch.nn's linear layers; its feed-forward network is compiled.
        recompile_limit: how many versions of the compiled function may exist; all layers of a model share it.
    """

    def __init__(self, layer: EncoderLayer, unconverted: EncoderLayer, recompile_limit: int) -> None:
        super().__init__()
        self.attention, self.attention_residual = layer.attention, layer.attention_residual
        self.feedforward, self.feedforward_residual = unconverted.feedforward, unconverted.feedforward_residual
        self._recompile_limit = recompile_limit
        self._compiled = torch.compile(self._feedforward_half, dynamic=True, options={"freezing": True})

    def _feedforward_half(self, z: Tensor) -> Tensor:
        y: Tensor = self.feedforward_residual(z, self.feedforward)
        return y

    def forward(
        self, x: Float[Tensor, "B L D"], mask: MaskLike = None, distances: Distances | None = None
    ) -> Float[Tensor, "B L D"]:
        z = self.attention_residual(x, with_distances(self.attention, mask, distances))
        import torch._dynamo  # takes a second, which only compiled models need

        config = torch._dynamo.config
        with config.patch(recompile_limit=max(config.recompile_limit, self._recompile_limit)):
            return self._compiled(z)


def compile_layers(stack: Encoder, unconverted: Encoder) -> None:
    """Replace the layers of a stack by compiled ones.

    Args:
        stack: the stack, which is modified.
        unconverted: the same stack with torch.nn's linear layers.

    Raises:
        ValueError: there is no C++ compiler.
    """
    if next(unconverted.parameters()).device.type == "cpu" and not has_compiler():
        raise ValueError("compiling a model requires a C++ compiler: install g++ or clang++, or omit --compile")
    limit = 4 * len(stack.layers)
    for index, (layer, original) in enumerate(zip(stack.layers, unconverted.layers, strict=True)):
        assert isinstance(layer, EncoderLayer)
        assert isinstance(original, EncoderLayer)
        stack.layers[index] = CompiledLayer(layer, original, limit)


def has_compiler() -> bool:
    """Return whether inductor finds a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def use_persistent_cache() -> None:
    """Keep compiled code between runs, in TORCHINDUCTOR_CACHE_DIR or in the user's cache folder.

    It sets an environment variable of the process, so only programs call it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "clearhead" / "inductor"))
