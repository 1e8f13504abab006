"""Record the masks of every attention in a running model of any supported library."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clearhead.equations import masks
from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.layers.disentangled_attention import DisentangledAttention

_SOFTMAXES = (torch.softmax, torch.special.softmax, Tensor.softmax, functional.softmax)
_MASKED_BIAS = -104.0
"""A bias this low masks a key: exp(−104) is 0 in float32, and so is the weight of the key."""
_MASKED_SCORE = -5e3
"""No unmasked score is this low; the smallest mask value in common use is −10,000."""
_OTHER_SEQUENCES = ("key_value_states", "encoder_hidden_states")
"""Arguments of transformers' attentions for the sequence of the keys in cross-attention."""


@dataclass(frozen=True)
class MaskSummary:
    """Pairs that the mask of one attention leaves open in any of its heads; None where unknown.

    Args:
        path: path of the attention in the model.
        decoding: whether the queries are target tokens.
        same: whether the keys are the same tokens as the queries.
        keyless_BL: queries without a key.
        visible_BM: keys of at least one query.
        self_hidden_BL: queries that may not attend to themselves.
        earlier_BL, later_BL: queries with a key before or after themselves.
    """

    path: str
    decoding: bool
    same: bool | None
    keyless_BL: Bool[Tensor, "B L"] | None = None
    visible_BM: Bool[Tensor, "B M"] | None = None
    self_hidden_BL: Bool[Tensor, "B L"] | None = None
    earlier_BL: Bool[Tensor, "B L"] | None = None
    later_BL: Bool[Tensor, "B L"] | None = None

    @property
    def name(self) -> str:
        """The path, or "attention" for a model that is one attention."""
        return self.path or "attention"


@dataclass(frozen=True)
class RecordedMask:
    """Pairs that one mask leaves open; the last dimension is the queries, or the keys of `visible`.

    Args:
        same: whether the keys are the same tokens as the queries; None if the attention does not show it.
        keyless, visible, self_hidden, earlier, later: as in `MaskSummary`, in each head.
    """

    same: bool | None
    keyless: Tensor
    visible: Tensor
    self_hidden: Tensor | None = None
    earlier: Tensor | None = None
    later: Tensor | None = None

    @staticmethod
    def from_open_pairs(open_: Tensor, same: bool | None) -> "RecordedMask":
        """Return the record of a mask.

        Args:
            open_: pairs that may attend, (..., queries, keys).
            same: as in the class.
        """
        queries, keys = open_.shape[-2:]
        keyless, visible = ~open_.any(dim=-1), open_.any(dim=-2)
        if keys < queries:
            return RecordedMask(same, keyless, visible)
        # keys that pad a row are the last ones
        before, after = open_.tril(-1).any(dim=-1), open_[..., :queries].triu(1).any(dim=-1)
        return RecordedMask(same, keyless, visible, ~open_.diagonal(dim1=-2, dim2=-1), before, after)

    def summarize(self, path: str, decoding: bool, texts: int, queries: int, keys: int) -> MaskSummary:
        """Return the summary over the heads of each text.

        Args:
            path, decoding: as in `MaskSummary`.
            texts: B; the heads are in the same dimension, or in the next one.
            queries, keys: L and M; an attention of other lengths has no summary.
        """

        def any_head(flags: Tensor | None, size: int) -> Tensor | None:
            if flags is None or flags.shape[-1] < size or flags.numel() % (texts * flags.shape[-1]):
                return None
            return flags.reshape(texts, -1, flags.shape[-1])[:, :, :size].any(dim=1).cpu()

        visible = any_head(self.visible, keys)
        if self.keyless.shape[-1] != queries:
            return MaskSummary(path, decoding, self.same, visible_BM=visible)
        self_hidden = any_head(self.self_hidden, queries) if self.same else None
        earlier, later = any_head(self.earlier, queries), any_head(self.later, queries)
        keyless = any_head(self.keyless, queries)
        return MaskSummary(path, decoding, self.same, keyless, visible, self_hidden, earlier, later)


def open_pairs(bias: Tensor) -> Tensor:
    """Return where a mask that is added to the scores allows a weight above 0, compared with the best of its row."""
    return bias > bias.amax(dim=-1, keepdim=True).clamp(min=0) + _MASKED_BIAS


@contextlib.contextmanager
def record_masks(model: nn.Module, record: Callable[[str, RecordedMask], None]) -> Iterator[None]:
    """Record the mask of every attention of a model that runs inside the block.

    Args:
        model: any module.
        record: called with the path of the attention and its mask.
    """
    running: list[tuple[str, bool | None]] = []

    def enter(path: str, module: nn.Module, inputs: Any, kwargs: Any) -> None:
        running.append((path, _is_self_attention(module, inputs, kwargs)))

    def record_running(open_: Tensor, same: bool | None) -> None:
        path, same_by_class = running[-1] if running else ("", None)
        record(path, RecordedMask.from_open_pairs(open_, same_by_class if same is None else same))

    def leave(*_: Any) -> None:
        running.pop()

    with contextlib.ExitStack() as stack:
        for path, module in model.named_modules():
            before = module.register_forward_pre_hook(functools.partial(enter, path), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(_AttentionCalls(record_running))
        yield


class _AttentionCalls(TorchFunctionMode):
    """Intercept fused attention, torch.nn's attention, and attention written with a softmax."""

    def __init__(self, record: Callable[[Tensor, bool | None], None]) -> None:
        super().__init__()
        self.record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._record_fused(*args, **kwargs)
        elif func is functional.multi_head_attention_forward:
            self._record_torch_nn(args[0], args[1], args[4], kwargs.get("attn_mask"), kwargs.get("key_padding_mask"))
        elif func in _SOFTMAXES and args and args[0].ndim in (3, 4):
            self.record(args[0].detach() >= _MASKED_SCORE, None)
        return func(*args, **kwargs)

    def _record_fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> None:
        pairs = (*query.shape[:-1], key.shape[-2])
        if attn_mask is not None:
            allowed = attn_mask if attn_mask.dtype == torch.bool else _is_open(attn_mask.detach())
            self.record(allowed.expand(pairs), None)
        elif is_causal:
            self.record(torch.ones(pairs[-2:], dtype=torch.bool).tril().expand(pairs), None)

    def _record_torch_nn(
        self, query_LBD: Tensor, key: Tensor, heads: int, attn_mask: Tensor | None, padding: Tensor | None
    ) -> None:
        mask, (length, batch) = masks.from_torch_nn(attn_mask, padding, num_heads=heads), query_LBD.shape[:2]
        if mask is not None:
            dense = masks.additive(mask, length)
            self.record(_is_open(dense).expand(batch, heads, length, dense.shape[-1]), key is query_LBD)


def _is_self_attention(module: nn.Module, inputs: Any, kwargs: Any) -> bool | None:
    """Return whether queries and keys are one sequence; None for other classes than ours and transformers'."""
    if isinstance(module, MultiHeadAttention | DisentangledAttention | CrossAttention):
        return not isinstance(module, CrossAttention)
    signature = inspect.signature(module.forward)
    if "hidden_states" not in signature.parameters:
        return None
    arguments = signature.bind_partial(*inputs, **kwargs).arguments
    return all(arguments.get(name) is None for name in _OTHER_SEQUENCES)


def _is_open(bias: Tensor) -> Tensor:
    return bias > _MASKED_BIAS
