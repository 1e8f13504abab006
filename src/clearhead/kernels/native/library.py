"""The package's compiled kernels for x86 processors: layers and decoder steps in 8 bits, attention, GELU and search.

The kernels are C (`kernels.c`), compiled when the package is built, if there is a C compiler. Without them, without
AVX2, or with a PyTorch whose OpenMP they cannot share, `isa()` is None, and models compute with PyTorch's kernels.
"""

import ctypes
import functools
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.kernels import cpu

log = logging.getLogger(__name__)

LIBRARY = Path(__file__).with_name("kernels.linux-x86_64.so")
"""The compiled kernels. The name has a dot, so that Python does not take the file for an extension module."""

ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
"""Activations that a linear layer can apply, with their numbers in linear.h."""

MAX_OUTLIERS = 16
"""Maximum number of columns in float32, as in linear.h."""

SEARCH_ROWS = 64
"""Number of rows with one common lower bound, as in search.h."""

MULTIPLE = 16
"""Inputs and outputs of a layer have multiples of this many columns."""


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class LinearStruct(ctypes.Structure):
    """`Linear` in linear.h."""

    _fields_ = [
        *_fields(ctypes.c_int32, "in_features", "out_features", "num_outliers", "is_unsigned"),
        ("offset", ctypes.c_float),
        *_fields(ctypes.c_void_p, "weight", "start", "scale", "bias", "keep", "outliers", "outlier_weight"),
    ]


class NormStruct(ctypes.Structure):
    """`Norm` in encoder.h."""

    _fields_ = [*_fields(ctypes.c_void_p, "weight", "bias"), ("eps", ctypes.c_float)]


_OPTIONS = [*_fields(ctypes.c_int32, "heads", "head_width", "activation", "is_pre_norm"), ("scale", ctypes.c_float)]
"""Options of an encoder or decoder layer."""


class EncoderLayerStruct(ctypes.Structure):
    """`EncoderLayer` in encoder.h."""

    _fields_ = [
        *_fields(LinearStruct, "qkv", "out", "inner", "outer"),
        *_fields(NormStruct, "attention_norm", "feedforward_norm"),
        *_OPTIONS,
    ]


class DecoderLayerStruct(ctypes.Structure):
    """`DecoderLayer` in decoder.h."""

    _fields_ = [
        *_fields(LinearStruct, "qkv", "out", "cross_q", "cross_out", "inner", "outer"),
        *_fields(NormStruct, "attention_norm", "cross_norm", "feedforward_norm"),
        *_OPTIONS,
        *_fields(ctypes.c_void_p, "keys", "values", "memory"),
    ]


class DecoderStepStruct(ctypes.Structure):
    """`DecoderStep` in decoder.h."""

    _fields_ = [
        ("layers", ctypes.c_void_p),
        ("num_layers", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("length", ctypes.c_int32),
        ("slots", ctypes.c_void_p),
        ("slots_stride", ctypes.c_int32),
        ("memory_rows", ctypes.c_void_p),
        ("memory_lengths", ctypes.c_void_p),
        ("memory_length", ctypes.c_int32),
        ("final_norm", NormStruct),
        ("output", LinearStruct),
        ("output_columns", ctypes.c_void_p),
        ("column_bytes", ctypes.c_int32),
        ("extra_starts", ctypes.c_void_p),
        ("extra_tokens", ctypes.c_void_p),
        ("common", LinearStruct),
        ("num_common", ctypes.c_int32),
        ("common_tokens", ctypes.c_void_p),
        ("excluded", ctypes.c_void_p),
        ("num_excluded", ctypes.c_int32),
        ("is_renormalized", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("best_logits", ctypes.c_void_p),
        ("best_tokens", ctypes.c_void_p),
        ("log_sums", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
    ]


def isa() -> str | None:
    """Return the instruction set with the fastest kernels for this processor, or None if no kernel runs on it."""
    return next(iter(supported()), None)


@functools.cache
def supported() -> tuple[str, ...]:
    """Return the instruction sets of this processor whose compiled kernels are correct, the fastest first."""
    return tuple(name for name in _of_processor() if _is_correct(name))


def _of_processor() -> list[str]:
    """Return the compiled instruction sets that this processor has, the fastest first."""
    allowed = torch.backends.cpu.get_cpu_capability()
    has = {
        "avx512vnni": cpu.has("avx512_vnni"),
        "avxvnni": cpu.has("avx_vnni"),
        "avx2": allowed in ("AVX2", "AVX512"),
    }
    return [name for name in has if has[name] and hasattr(_library(), f"linear_{name}")]


def _is_correct(isa: str) -> bool:
    """Compare the linear kernel of an instruction set with exact sums, for the largest codes too."""
    generator = torch.Generator().manual_seed(0)
    codes_NK = torch.randint(-127, 128, (80, 64), generator=generator)
    codes_NK[0], codes_NK[1] = 127, -127
    x = torch.randint(-127, 128, (7, 64), generator=generator).float()
    x[:, 0], x[0] = 127.0, 127.0  # the scale of each row is 1, and codes are the values themselves
    ones_N, zeros_N, zero = torch.ones(80), torch.zeros(80), torch.zeros(1)
    start_N = -(0 if isa == "avx2" else 128) * codes_NK.sum(dim=1).to(torch.int32)
    parts = (pack(codes_NK, isa), start_N, ones_N, zeros_N, torch.ones(64), zero, zero)
    struct = LinearStruct(64, 80, 0, 0, 0.0, *(part.data_ptr() for part in parts))
    if torch.equal(linear(struct, ACTIVATIONS["none"], x, isa).double(), x.double() @ codes_NK.double().t()):
        return True
    log.warning("compiled kernels for %s are wrong on this processor, and are not used", isa)
    return False


def why_unavailable() -> str:
    """Return why `isa` is None."""
    if not LIBRARY.is_file():
        return "this installation has no compiled kernels (a wheel for Linux has them, or GCC makes them from source)"
    if _library() is None:
        return "the compiled kernels cannot be loaded with this PyTorch"
    if not _of_processor():
        return "the processor has no AVX2, or ATEN_CPU_CAPABILITY disables it"
    return "the compiled kernels gave wrong results on this processor"


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        log.info("compiled kernels are not available: %s", error)
        return None


def pack(codes_NK: Tensor, isa: str) -> Tensor:
    """Return a weight in the layout of an instruction set: 16 columns of the result side by side.

    Args:
        codes_NK: integers of [-127, 127].
        isa: an instruction set; "avx2" takes pairs of 16 bits, the others four bytes.
    """
    dtype, together = (torch.int16, 2) if isa == "avx2" else (torch.int8, 4)
    rows, columns = codes_NK.shape
    blocks = codes_NK.to(dtype).view(rows // MULTIPLE, MULTIPLE, columns // together, together).transpose(1, 2)
    size = rows * columns
    aligned = torch.empty(size + 64 // dtype.itemsize, dtype=dtype)
    skipped = (-aligned.data_ptr() % 64) // dtype.itemsize
    packed = aligned[skipped : skipped + size]
    packed.copy_(blocks.reshape(-1))
    return packed


def unpack(packed: Tensor, rows: int, columns: int) -> Tensor:
    """Return the codes (N, K) of a weight that `pack` packed, in the integers of the instruction set."""
    blocks = packed.view(rows // MULTIPLE, columns // (4 // packed.dtype.itemsize), MULTIPLE, -1)
    return blocks.transpose(1, 2).reshape(rows, columns)


def linear(struct: LinearStruct, activation: int, x: Tensor, isa: str) -> Tensor:
    """Return act(x Wᵀ + b) in float32.

    Args:
        struct: the layer.
        activation: a number of `ACTIVATIONS`.
        x: float32 (..., K).
        isa: the instruction set of the packed weight.
    """
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], struct.out_features)
    rows = x.numel() // struct.in_features
    status = function("linear", isa)(
        ctypes.byref(struct), activation, ctypes.c_void_p(x.data_ptr()), rows, ctypes.c_void_p(y.data_ptr()),
        torch.get_num_threads(),
    )  # fmt: skip
    check(status)
    return y


def gelu(x: Tensor, isa: str) -> Tensor:
    """Return GELU(x) in float32, to 4e-7.

    Args:
        x: float32.
        isa: an instruction set.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    compute = function("gelu", isa)
    compute(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(x.numel()), ctypes.c_void_p(y.data_ptr()), torch.get_num_threads()
    )
    return y


def packed_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float, isa: str) -> Tensor:
    """Return the attention values (T, H, K) of each head within packed sequences.

    Args:
        q, k, v: float32 (H, T, K) with the same strides, and with K multiples of 16.
        lengths: int32, the number of tokens of each sequence; their sum is T.
        scale: factor of Q Kᵀ.
        isa: an instruction set.
    """
    heads, tokens, width = q.shape
    values = q.new_empty(tokens, heads, width)
    status = function("attention", isa)(
        *(ctypes.c_void_p(x.data_ptr()) for x in (q, k, v)), q.stride(1), q.stride(0),
        ctypes.c_void_p(lengths.data_ptr()), len(lengths), heads, width, ctypes.c_float(scale),
        ctypes.c_void_p(values.data_ptr()), torch.get_num_threads(),
    )  # fmt: skip
    check(status)
    return values


def encoder_layer(struct: EncoderLayerStruct, x: Tensor, lengths: Tensor, isa: str) -> Tensor:
    """Return the output (1, T, D) of an encoder layer for packed sequences.

    Args:
        struct: the layer.
        x: float32 (1, T, D).
        lengths: int32, the number of tokens of each sequence.
        isa: the instruction set of the packed weights.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    status = function("encoder_layer", isa)(
        ctypes.byref(struct), ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(lengths.data_ptr()), len(lengths),
        ctypes.c_void_p(y.data_ptr()), torch.get_num_threads(),
    )  # fmt: skip
    check(status)
    return y


def decoder_step(struct: DecoderStepStruct, x: Tensor, isa: str) -> None:
    """Run one step of a decoder, and write its results into the tensors that the struct points to.

    Args:
        struct: the step.
        x: float32 (rows, D), the embedded tokens, which are overwritten.
        isa: the instruction set of the packed weights.
    """
    step = function("decoder_step", isa)
    check(step(ctypes.byref(struct), ctypes.c_void_p(x.data_ptr()), torch.get_num_threads()))


def isa_with(function: str) -> str | None:
    """Return the instruction set for a function; None if this library was compiled without it."""
    name = isa()
    return name if name is not None and hasattr(_library(), f"{function}_{name}") else None


def search_bounds(
    codes: NDArray[np.int8],
    bounds: NDArray[np.float32],
    query: NDArray[np.int16],
    factors: tuple[float, float, float],
    upper: NDArray[np.float32],
    isa: str,
) -> NDArray[np.float32]:
    """Write upper bounds of the products of a query with rows, and return a lower bound for each `SEARCH_ROWS` rows.

    Args:
        codes: (n, d), contiguous.
        bounds: (n, 2), the scale of each row and the norm of its quantization error.
        query: codes (d) of the query.
        factors: the scale of the query, its norm, and the error of every product.
        upper: (n), for the upper bounds.
        isa: an instruction set.
    """
    rows, width = codes.shape
    lower = np.empty(-(-rows // SEARCH_ROWS), np.float32)
    function("search_bounds", isa)(
        *(ctypes.c_void_p(part.ctypes.data) for part in (codes, bounds)), ctypes.c_int64(rows), width,
        ctypes.c_void_p(query.ctypes.data), *map(ctypes.c_float, factors),
        *(ctypes.c_void_p(part.ctypes.data) for part in (upper, lower)), torch.get_num_threads(),
    )  # fmt: skip
    return lower


def quantize(struct: LinearStruct, x: Tensor, isa: str) -> tuple[Tensor, Tensor]:
    """Return the codes (rows, K) and scales (rows) of the input of a layer, for tests.

    Args:
        struct, isa: as in `linear`.
        x: float32 (rows, K).
    """
    x = x.contiguous()
    codes, scales = torch.empty(x.shape, dtype=torch.int16), torch.empty(len(x))
    outliers = torch.empty(len(x), MAX_OUTLIERS)
    status = function("quantize", isa)(
        ctypes.byref(struct), *(ctypes.c_void_p(part.data_ptr()) if isinstance(part, Tensor) else part
        for part in (x, len(x), codes, scales, outliers))
    )  # fmt: skip
    check(status)
    return codes, scales


def function(name: str, isa: str) -> Callable[..., int]:
    """Return a function of the library for an instruction set."""
    found: Callable[..., int] = getattr(_library(), f"{name}_{isa}")
    return found


def check(status: int) -> None:
    """Raise the error of a status that a function returned."""
    if status:
        raise MemoryError("no memory for the intermediate results of a layer; use a smaller batch_tokens")
