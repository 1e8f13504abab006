"""The equation of `attention.py` on PyTorch's fused kernels: the same values, no weights, no L x M matrix."""

import functools
import importlib.util
import itertools
import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.equations import attention, masks
from clearhead.equations.masks import MaskLike
from clearhead.kernels import cpu
from clearhead.kernels.dropout import fast_dropout

_BLOCK = 512
_SHORT = 128
"""Queries and keys up to which, on a CPU, the gradient step by step takes less time than the fused kernel's."""
_FEW = 256
"""Queries up to which the values do, of no more keys than this."""
_SCORES = 2**19
"""Scores that are held at a time where no gradient is wanted: they stay in the cache of a core."""
_ROW = 16
"""Keys below which torch's softmax on a CPU takes ten times as long as with as many."""


def fused_scaled_dot_product(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    mask: MaskLike = None,
    *,
    drop_prob: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "B H L V"]:
    """Attention's values, as `scaled_dot_product` gives them.

    Source: Section 3.2.1, equation 1; the formula is stated in `attention.py`

    Args:
        q, k, v, mask, scale: as in `scaled_dot_product`.
        drop_prob: share of the weights that is dropped; the caller passes 0 outside training.
    """
    batch, heads, queries, _ = q.shape
    checked = masks.as_mask(mask, batch=batch, heads=heads, queries=queries, keys=k.shape[2])
    if torch.compiler.is_exporting():  # a graph for every length has no path of its own for some of them
        return attention.scaled_dot_product(q, k, v, checked, scale=scale)[0]
    if checked is not None and checked.lengths is not None:
        return _packed(q, k, v, checked, drop_prob, scale)
    no_floats = checked is None or checked.added() is None
    if no_floats and q.device.type == "cpu" and (_use_stepwise(q, k, v) or (drop_prob and queries <= _BLOCK)):
        allowed = None if checked is None else checked.allowed(queries)
        texts = max(1, _SCORES // max(1, heads * queries * k.shape[2]))
        if batch <= texts or _needs_grad(q, k, v) or torch.compiler.is_compiling():
            return _stepwise(q, k, v, allowed, drop_prob, scale)
        values = q.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
        for start in range(0, batch, texts):
            some = slice(start, start + texts)
            near = allowed[some] if allowed is not None and allowed.ndim == 4 and len(allowed) > 1 else allowed
            values[some] = _stepwise(q[some], k[some], v[some], near, drop_prob, scale)
        return values
    if checked is None:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=drop_prob, scale=scale)
    # a kernel aligns a non-square causal mask at the top left, ours at the last query
    if checked.only_causal and queries == checked.length:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=drop_prob, scale=scale, is_causal=True)
    if (checked.causal or checked.window is not None) and checked.scores is None and queries > _BLOCK:
        return _in_blocks(q, k, v, checked, drop_prob, scale)
    if checked.added() is None:
        allowed = checked.allowed(queries, q.device)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=drop_prob, scale=scale)
    # in 32 bits: a finite −1e9 would be −∞ in float16
    bias = masks.additive(checked, queries, torch.promote_types(q.dtype, torch.float32))
    if not torch.is_grad_enabled():
        if q.dtype == torch.bfloat16 and q.device.type != "cpu":
            bias = bias.to(q.dtype)  # accelerators' kernels want one type; bfloat16 has float32's range
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop_prob, scale=scale)
    # the flash kernel's gradients are wrong where a finite float mask covers a whole row; the plain one's are right
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop_prob, scale=scale)


def _use_stepwise(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether there are so few queries and keys that the kernel, which is made for many, takes longer: up to twice as
    long for the values, and eight times for the gradients, of sentences of 10 to 60 tokens."""
    if _needs_grad(q, k, v):
        return max(q.shape[2], k.shape[2]) <= _SHORT
    return _stepwise_pays(q) and max(q.shape[2], k.shape[2]) <= _FEW


def _stepwise_pays(q: Tensor) -> bool:
    """Whether, where there are few queries, the values do not come faster from the kernel."""
    if q.device.type != "cpu":
        return False
    return q.dtype == torch.float32 or (q.dtype == torch.bfloat16 and not _has_fast_kernel())


@functools.cache
def _has_fast_kernel() -> bool:
    """Whether the kernel takes less time for bfloat16 values at every length: with AMX it does, down to a third. In
    float32 it does, too, but there a padded text would come out some 1e-6 from the same text alone."""
    return cpu.has("amx_bf16")


def _needs_grad(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a gradient is."""
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


def _stepwise(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, drop_prob: float, scale: float | None) -> Tensor:
    """Where no kernel is fused, or the fused one is slow: step by step, with cheap draws."""
    # torch's compiler writes a softmax of its own, and C++ that is none where a bool mask is filled up
    if k.shape[2] < _ROW and not torch.compiler.is_compiling():
        k, v, allowed = _pad_keys(k, v, allowed)
    exact = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        scores_BHLM = (q @ k.transpose(-2, -1)).to(exact)
        scale, some = 1 / math.sqrt(q.shape[-1]) if scale is None else scale, None
        if allowed is None:
            scores_BHLM = scores_BHLM * scale
        else:
            # finite, so that a row without any key has weights, which are then made zero
            added = torch.zeros(allowed.shape, dtype=exact).masked_fill_(~allowed, torch.finfo(exact).min / 2)
            scores_BHLM = torch.add(added, scores_BHLM, alpha=scale)
            some = allowed.any(dim=-1, keepdim=True)
        weights_BHLM = torch.softmax(scores_BHLM, dim=-1)
        if drop_prob:
            weights_BHLM = fast_dropout(weights_BHLM, drop_prob)
        # to look would halt a compiler
        if some is not None and (torch.compiler.is_compiling() or not bool(some.all())):
            weights_BHLM = weights_BHLM * some
        return weights_BHLM.to(v.dtype) @ v


def _pad_keys(k: Tensor, v: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Few keys and values, filled up with some that no query may attend to."""
    keys = k.shape[2]
    held = torch.ones(keys, dtype=torch.bool) if allowed is None else allowed.expand(*allowed.shape[:-1], keys)
    k, v = (functional.pad(x, (0, 0, 0, _ROW - keys)) for x in (k, v))
    return k, v, functional.pad(held, (0, _ROW - keys))


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: masks.Mask, drop_prob: float, scale: float | None) -> Tensor:
    """A causal mask with padding, or a window, for a block of queries after the other, each with the keys that it can
    reach: no mask of all queries and all keys is ever held, and a window costs its width, not the text's length."""
    queries, parts = q.shape[2], []
    before = mask.length - queries  # the last query stands at the last key
    for start in range(0, queries, _BLOCK):
        stop = min(start + _BLOCK, queries)
        places = range(before + start, before + stop)
        keys = mask.reach(places)
        near = mask.between(places, keys, q.device)
        block = q[:, :, start:stop], k[:, :, keys.start : keys.stop], v[:, :, keys.start : keys.stop]
        parts.append(functional.scaled_dot_product_attention(*block, attn_mask=near, dropout_p=drop_prob, scale=scale))
    return torch.cat(parts, dim=2)


def _packed(q: Tensor, k: Tensor, v: Tensor, mask: masks.Mask, drop_prob: float, scale: float | None) -> Tensor:
    """Packed texts as the rows of a padded batch, for attention alone: all else runs without padding."""
    assert mask.lengths is not None
    if _has_variable_lengths(q) and not drop_prob and mask.scores is None:
        return _variable_lengths(q, k, v, mask, scale)
    alone = mask.scores is None and mask.window is None and not mask.causal
    if alone and not drop_prob and q.device.type == "cpu" and q.dtype == torch.float32 and not _needs_grad(q, k, v):
        return _per_sequence(q, k, v, mask.lengths, scale)
    longest = -(-max(mask.lengths, default=0) // 16) * 16  # one kernel, and one order of sums, for all lengths near by
    heads = q.shape[1]
    # step by step products read head after head, and what is gathered so is not copied once more for them
    parts = heads if _stepwise_pays(q) else 1

    def rows(x_1HTK: Tensor) -> Tensor:
        flat_RK, steps = _flat(x_1HTK if parts == heads else _side_by_side(x_1HTK))
        places_BPL = _gather_indices(mask.lengths, longest, parts, steps, q.device)
        gathered = flat_RK.index_select(0, places_BPL.flatten()).view(*places_BPL.shape, -1)
        return gathered if parts == heads else gathered.view(-1, longest, heads, x_1HTK.shape[3]).transpose(1, 2)

    within = mask.within(longest)
    if within.keep_BM is not None and within.keep_BM.device != q.device:
        within = replace(within, keep_BM=within.keep_BM.to(q.device))
    values = fused_scaled_dot_product(rows(q), rows(k), rows(v), within, drop_prob=drop_prob, scale=scale)
    flat_RV, steps = _flat(values if parts == heads else _side_by_side(values))
    real_TP = _scatter_indices(mask.lengths, parts, steps, q.device)
    return flat_RV.index_select(0, real_TP.flatten()).view(1, -1, heads, v.shape[3]).transpose(1, 2)


def _per_sequence(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], scale: float | None) -> Tensor:
    """Packed texts where they stand, those of one length that follow one another at once: nothing is copied or padded,
    and no text's numbers depend on what others there are."""
    heads, tokens, start = q.shape[1], q.shape[2], 0
    values_THV = q.new_empty(tokens, heads, v.shape[3])
    for length, run in itertools.groupby(lengths):
        texts = sum(1 for _ in run)
        stop = start + texts * length
        q_NHLK, k_NHLK, v_NHLV = (
            x[0, :, start:stop].view(heads, texts, length, x.shape[3]).transpose(0, 1) for x in (q, k, v)
        )
        found_NHLV = functional.scaled_dot_product_attention(q_NHLK, k_NHLK, v_NHLV, scale=scale)
        values_THV[start:stop].view(texts, length, heads, v.shape[3]).copy_(found_NHLV.transpose(1, 2))
        start = stop
    return values_THV.transpose(0, 1)[None]


def _side_by_side(x_BHLK: Tensor) -> Tensor:
    """The heads of each token as one row."""
    return x_BHLK.transpose(1, 2).flatten(2)[:, None]


def _flat(x_BHLK: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """All heads of all tokens as rows, in the order in which memory holds them, without a copy; and how many rows it is
    from one text to the next, from one head, from one token."""
    width = x_BHLK.shape[3]
    if x_BHLK.stride(3) != 1 or any(stride % width for stride in x_BHLK.stride()[:3]):
        x_BHLK = x_BHLK.contiguous()
    strides, sizes = x_BHLK.stride()[:3], x_BHLK.shape[:3]
    rows = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) // width + 1
    of_text, of_head, of_token = (stride // width for stride in strides)
    return x_BHLK.as_strided((rows if x_BHLK.numel() else 0, width), (width, 1)), (of_text, of_head, of_token)


@functools.lru_cache(maxsize=8)
def _gather_indices(
    lengths: tuple[int, ...], longest: int, parts: int, steps: tuple[int, int, int], device: torch.device
) -> Tensor:
    """For each place of the padded rows (B, P, L) the row of the packed text that stands there; alike for all layers.
    At the padding, which no query attends to, stands the text's own first token: no text ever meets the numbers of
    another."""
    _, of_part, of_token = steps
    with torch.inference_mode(False):  # what is kept here may serve in training, too
        length_B, column_L = torch.tensor(lengths), torch.arange(longest)
        start_B = length_B.cumsum(0) - length_B
        padded_BL = start_B[:, None] + torch.where(column_L < length_B[:, None], column_L, 0)
        # a text without a token may stand at the end, where none is left
        padded_BL = padded_BL.clamp(max=max(sum(lengths) - 1, 0))
        return (padded_BL[:, None] * of_token + torch.arange(parts)[:, None] * of_part).to(device)


@functools.lru_cache(maxsize=8)
def _scatter_indices(lengths: tuple[int, ...], parts: int, steps: tuple[int, int, int], device: torch.device) -> Tensor:
    """For each part of each token (T, P) its place in the padded rows."""
    of_text, of_part, of_token = steps
    with torch.inference_mode(False):
        length_B, tokens = torch.tensor(lengths), sum(lengths)
        text_T = torch.arange(len(lengths)).repeat_interleave(length_B, output_size=tokens)
        column_T = torch.arange(tokens) - (length_B.cumsum(0) - length_B)[text_T]
        return ((text_T * of_text + column_T * of_token)[:, None] + torch.arange(parts) * of_part).to(device)


def _has_variable_lengths(q: Tensor) -> bool:
    """Whether there is a kernel here for texts one after another: on NVIDIA's GPUs since Ampere, in 16 bits, for heads
    of up to 256 numbers in eights."""
    if not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16) or q.shape[-1] % 8 or q.shape[-1] > 256:
        return False
    return importlib.util.find_spec("torch.nn.attention.varlen") is not None and _capability(q.device) >= (8, 0)


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _variable_lengths(q: Tensor, k: Tensor, v: Tensor, mask: masks.Mask, scale: float | None) -> Tensor:
    """Packed texts by a kernel that knows where each begins, so that nothing is padded."""
    from torch.nn.attention.varlen import varlen_attn

    assert mask.lengths is not None
    ends, longest = _cu_seqlens(mask.lengths, q.device), max(mask.lengths, default=0)
    around = -1 if mask.window is None else mask.window
    q_THK, k_THK, v_THK = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
    values_THK = varlen_attn(
        q_THK,
        k_THK,
        v_THK,
        ends,
        ends,
        longest,
        longest,
        scale=scale,
        window_size=(around, 0 if mask.causal else around),
    )
    assert isinstance(values_THK, Tensor)
    return values_THK.transpose(0, 1)[None]


@functools.lru_cache(maxsize=8)
def _cu_seqlens(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each text begins, and the last one ends; alike for all layers."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
