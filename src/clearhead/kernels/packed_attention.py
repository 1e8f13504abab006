"""Attention over packed sequences: several sequences in one row, without padding outside of attention."""

import functools
import importlib.util
import itertools
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from clearhead.equations.masks import Mask
from clearhead.kernels.attention_backends import AttentionCall, fastest_backend, register_backend
from clearhead.kernels.stepwise_attention import is_fast_forward

_LENGTH_MULTIPLE = 16
"""Padded lengths are multiples of this, so that similar lengths use one kernel and one order of summation."""


def _supports(call: AttentionCall) -> bool:
    return call.is_packed


@register_backend("packed", rank=10, supports=_supports)
def packed_attention(call: AttentionCall) -> Tensor:
    """Compute attention within each packed sequence.

    Three ways, the fastest first: a kernel for variable lengths, one call for each run of equal lengths, and a batch
    padded for this computation only.
    """
    mask = call.mask
    assert mask is not None
    assert mask.lengths is not None
    if _has_variable_length_kernel(call.q) and not call.drop_prob and mask.bias is None:
        return _variable_length(call, mask)
    unrestricted = mask.bias is None and mask.window is None and not mask.causal
    on_cpu_in_float32 = call.q.device.type == "cpu" and call.q.dtype == torch.float32
    if unrestricted and not call.drop_prob and on_cpu_in_float32 and not call.needs_grad:
        return _per_sequence(call, mask.lengths)
    return _padded(call, mask, mask.lengths)


def _padded(call: AttentionCall, mask: Mask, lengths: tuple[int, ...]) -> Tensor:
    """Gather the sequences into a padded batch, attend, and scatter the values back."""
    longest = -(-max(lengths, default=0) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    heads = call.q.shape[1]
    # matmuls of single steps read head by head: gathering in that order avoids another copy
    parts = heads if is_fast_forward(call.q) else 1

    def to_rows(x_1HTK: Tensor) -> Tensor:
        flat_RK, strides = _as_rows(x_1HTK if parts == heads else _merge_heads(x_1HTK))
        index_BPL = _gather_indices(lengths, longest, parts, strides, call.q.device)
        rows = flat_RK.index_select(0, index_BPL.flatten()).view(*index_BPL.shape, -1)
        return rows if parts == heads else rows.view(-1, longest, heads, x_1HTK.shape[3]).transpose(1, 2)

    padded = mask.to_padded(longest)
    if padded.keep_BM is not None and padded.keep_BM.device != call.q.device:
        padded = replace(padded, keep_BM=padded.keep_BM.to(call.q.device))
    batch = replace(call, q=to_rows(call.q), k=to_rows(call.k), v=to_rows(call.v), mask=padded)
    values = fastest_backend(batch).compute(batch)
    flat_RV, strides = _as_rows(values if parts == heads else _merge_heads(values))
    index_TP = _scatter_indices(lengths, parts, strides, call.q.device)
    return flat_RV.index_select(0, index_TP.flatten()).view(1, -1, heads, call.v.shape[3]).transpose(1, 2)


def _per_sequence(call: AttentionCall, lengths: tuple[int, ...]) -> Tensor:
    """Attend in place, to each run of sequences of equal length at once.

    Nothing is copied or padded, and a sequence gets bit-identical values whichever others are packed with it.
    """
    heads, tokens, start = call.q.shape[1], call.q.shape[2], 0
    values_THV = call.q.new_empty(tokens, heads, call.v.shape[3])
    for length, run in itertools.groupby(lengths):
        count = sum(1 for _ in run)
        stop = start + count * length
        q_NHLK, k_NHLK, v_NHLV = (
            x[0, :, start:stop].view(heads, count, length, x.shape[3]).transpose(0, 1) for x in (call.q, call.k, call.v)
        )
        values_NHLV = functional.scaled_dot_product_attention(q_NHLK, k_NHLK, v_NHLV, scale=call.scale)
        values_THV[start:stop].view(count, length, heads, call.v.shape[3]).copy_(values_NHLV.transpose(1, 2))
        start = stop
    return values_THV.transpose(0, 1)[None]


def _merge_heads(x_BHLK: Tensor) -> Tensor:
    """Return (B, 1, L, H · d_k): the heads of each token side by side."""
    return x_BHLK.transpose(1, 2).flatten(2)[:, None]


def _as_rows(x_BHLK: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """View all heads of all tokens as rows (R, d_k) in memory order.

    Returns:
        The rows, and the number of rows between sequences, between heads and between tokens.
    """
    width = x_BHLK.shape[3]
    if x_BHLK.stride(3) != 1 or any(stride % width for stride in x_BHLK.stride()[:3]):
        x_BHLK = x_BHLK.contiguous()
    strides, sizes = x_BHLK.stride()[:3], x_BHLK.shape[:3]
    rows = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) // width + 1
    of_sequence, of_head, of_token = (stride // width for stride in strides)
    flat_RK = x_BHLK.as_strided((rows if x_BHLK.numel() else 0, width), (width, 1))
    return flat_RK, (of_sequence, of_head, of_token)


# the same for all layers, and therefore cached
@functools.lru_cache(maxsize=8)
def _gather_indices(
    lengths: tuple[int, ...], longest: int, parts: int, strides: tuple[int, int, int], device: torch.device
) -> Tensor:
    """Return for each position of the padded batch (B, P, L) the row of its token in the packed tensor.

    Padding, which no query attends to, gets the first token of its own sequence: NaN in one sequence then never
    reaches another.
    """
    _, of_part, of_token = strides
    with torch.inference_mode(False):  # a cached index must also work in training
        length_B, column_L = torch.tensor(lengths), torch.arange(longest)
        start_B = length_B.cumsum(0) - length_B
        padded_BL = start_B[:, None] + torch.where(column_L < length_B[:, None], column_L, 0)
        # an empty sequence at the end starts beyond the last token
        padded_BL = padded_BL.clamp(max=max(sum(lengths) - 1, 0))
        return (padded_BL[:, None] * of_token + torch.arange(parts)[:, None] * of_part).to(device)


@functools.lru_cache(maxsize=8)
def _scatter_indices(
    lengths: tuple[int, ...], parts: int, strides: tuple[int, int, int], device: torch.device
) -> Tensor:
    """Return for each part of each token (T, P) its row in the padded batch."""
    of_sequence, of_part, of_token = strides
    with torch.inference_mode(False):
        length_B, tokens = torch.tensor(lengths), sum(lengths)
        sequence_T = torch.arange(len(lengths)).repeat_interleave(length_B, output_size=tokens)
        column_T = torch.arange(tokens) - (length_B.cumsum(0) - length_B)[sequence_T]
        return ((sequence_T * of_sequence + column_T * of_token)[:, None] + torch.arange(parts) * of_part).to(device)


def _has_variable_length_kernel(q: Tensor) -> bool:
    """Return whether PyTorch has a variable-length kernel for q.

    It runs on NVIDIA GPUs since Ampere, in 16 bits, for heads of up to 256 columns in multiples of eight.
    """
    if not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16) or q.shape[-1] % 8 or q.shape[-1] > 256:
        return False
    return importlib.util.find_spec("torch.nn.attention.varlen") is not None and _capability(q.device) >= (8, 0)


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _variable_length(call: AttentionCall, mask: Mask) -> Tensor:
    """Attend with PyTorch's variable-length kernel, without padding."""
    from torch.nn.attention.varlen import varlen_attn

    assert mask.lengths is not None
    cu_seqlens, longest = _cu_seqlens(mask.lengths, call.q.device), max(mask.lengths, default=0)
    radius = -1 if mask.window is None else mask.window
    q_THK, k_THK, v_THK = (x[0].transpose(0, 1).contiguous() for x in (call.q, call.k, call.v))
    values_THK = varlen_attn(
        q_THK,
        k_THK,
        v_THK,
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        scale=call.scale,
        window_size=(radius, 0 if mask.causal else radius),
    )
    assert isinstance(values_THK, Tensor)
    return values_THK.transpose(0, 1)[None]


@functools.lru_cache(maxsize=8)
def _cu_seqlens(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the cumulative sequence lengths, from 0 to the number of tokens."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
