"""8-bit layers with random weights, for tests of the compiled kernels."""

import pytest
import torch

from clearhead.kernels.native import library
from clearhead.runtime.int8.gptq import QuantizedWeight
from clearhead.runtime.int8.layers import PackedInt8Weight

INSTRUCTION_SETS = library.supported()
"""Those of this processor that the kernels were compiled for, the fastest first."""

needs_kernels = pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels for this processor")


def random_weight(rows, columns, num_outliers=0, largest=127):
    """A quantized weight with codes up to `largest`, of which some are the largest."""
    codes = torch.randint(-largest, largest + 1, (rows, columns), dtype=torch.int8)
    codes[:, ::3] = largest
    outliers = torch.randperm(columns)[:num_outliers].sort().values
    codes[:, outliers] = 0
    return QuantizedWeight(codes, 0.001 + torch.rand(rows) / 100, outliers, torch.randn(num_outliers, rows))


def packed(weight, bias=None, offset=None, isa=INSTRUCTION_SETS[0] if INSTRUCTION_SETS else ""):
    """The weight, packed for an instruction set."""
    return PackedInt8Weight(weight, bias, offset, isa=isa)


def dequantized(weight):
    """The weight in float32."""
    dense = weight.codes_NK.float() * weight.scale_N[:, None]
    dense[:, weight.outliers_J] = weight.outlier_weight_JN.t()
    return dense
