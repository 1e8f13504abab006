"""What masks leave over, seen at every attention of a running model, whatever they are called: queries without any key,
keys that nobody sees, tokens that may not attend to themselves, to what is before them, or after."""

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
from clearhead.inspection.lint.findings import SHUT
from clearhead.layers.attention import CrossAttention, MultiHeadAttention

_SOFTMAXES = (torch.softmax, torch.special.softmax, Tensor.softmax, functional.softmax)
_MASKED_SCORE = -5e3
"""No score is this low by itself; the least that people mask with is −10,000."""
_OTHER_SEQUENCES = ("key_value_states", "encoder_hidden_states")
"""What transformers' attentions call the sequence that is attended to, where it is another."""


@dataclass(frozen=True)
class MaskSummary:
    """What the mask of one attention leaves in any of its heads; what is not known is None.

    Args:
        path: the attention's place in the model.
        decoding: whether the queries are the target's.
        same: whether the keys are, too.
        keyless_BL: queries that have no key.
        visible_BM: keys that some query has.
        unseen_BL: queries that do not have themselves.
        earlier_BL, later_BL: queries that have a key before, or after, themselves.
    """

    path: str
    decoding: bool
    same: bool | None
    keyless_BL: Bool[Tensor, "B L"] | None = None
    visible_BM: Bool[Tensor, "B M"] | None = None
    unseen_BL: Bool[Tensor, "B L"] | None = None
    earlier_BL: Bool[Tensor, "B L"] | None = None
    later_BL: Bool[Tensor, "B L"] | None = None


@dataclass(frozen=True)
class Remainder:
    """What the mask of one attention leaves; the last dimension is the queries, or, of `visible`, the keys.

    Args:
        same: whether the keys are those of the queries' own sequence; None where the attention does not tell.
        keyless: queries that have no key.
        visible: keys that some query has.
        unseen: queries that do not have themselves.
        earlier, later: queries that have a key before, or after, themselves.
    """

    same: bool | None
    keyless: Tensor
    visible: Tensor
    unseen: Tensor | None = None
    earlier: Tensor | None = None
    later: Tensor | None = None

    @staticmethod
    def of(open_: Tensor, same: bool | None) -> "Remainder":
        """What is left where these pairs, (..., queries, keys), are open."""
        queries, keys = open_.shape[-2:]
        keyless, visible = ~open_.any(dim=-1), open_.any(dim=-2)
        if keys < queries:
            return Remainder(same, keyless, visible)
        # keys that fill a row up come last
        before, after = open_.tril(-1).any(dim=-1), open_[..., :queries].triu(1).any(dim=-1)
        return Remainder(same, keyless, visible, ~open_.diagonal(dim1=-2, dim2=-1), before, after)

    def of_texts(self, path: str, decoding: bool, texts: int, queries: int, keys: int) -> MaskSummary:
        """The same of each text, in any of the heads.

        Args:
            path, decoding: as in `Masked`.
            texts: B; the heads of a text stand in one dimension with it, or in one after it.
            queries, keys: L and M; of other attentions nothing is known.
        """

        def each(told: Tensor | None, size: int) -> Tensor | None:
            if told is None or told.shape[-1] < size or told.numel() % (texts * told.shape[-1]):
                return None
            return told.reshape(texts, -1, told.shape[-1])[:, :, :size].any(dim=1).cpu()

        visible = each(self.visible, keys)
        if self.keyless.shape[-1] != queries:
            return MaskSummary(path, decoding, self.same, visible_BM=visible)
        unseen = each(self.unseen, queries) if self.same else None
        earlier, later = each(self.earlier, queries), each(self.later, queries)
        return MaskSummary(path, decoding, self.same, each(self.keyless, queries), visible, unseen, earlier, later)


@contextlib.contextmanager
def record_masks(model: nn.Module, told: Callable[[str, Remainder], None]) -> Iterator[None]:
    """Tells, of every attention of the model that runs inside the block, what its mask leaves.

    Args:
        model: any module.
        told: is called with the attention's path in the model, and what is left.
    """
    running: list[tuple[str, bool | None]] = []

    def entered(path: str, module: nn.Module, inputs: Any, kwargs: Any) -> None:
        running.append((path, _to_itself(module, inputs, kwargs)))

    def seen(open_: Tensor, same: bool | None) -> None:
        path, to_itself = running[-1] if running else ("", None)
        told(path, Remainder.of(open_, to_itself if same is None else same))

    def left(*_: Any) -> None:
        running.pop()

    with contextlib.ExitStack() as stack:
        for path, module in model.named_modules():
            before = module.register_forward_pre_hook(functools.partial(entered, path), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(module.register_forward_hook(left).remove)
        stack.enter_context(_Attentions(seen))
        yield


class _Attentions(TorchFunctionMode):
    """Looks at the masks of attention that is fused, torch.nn's, or written out with a softmax."""

    def __init__(self, told: Callable[[Tensor, bool | None], None]) -> None:
        super().__init__()
        self.told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._fused(*args, **kwargs)
        elif func is functional.multi_head_attention_forward:
            self._torch_nn(args[0], args[1], args[4], kwargs.get("attn_mask"), kwargs.get("key_padding_mask"))
        elif func in _SOFTMAXES and args and args[0].ndim in (3, 4):
            self.told(args[0].detach() >= _MASKED_SCORE, None)
        return func(*args, **kwargs)

    def _fused(
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
            self.told((attn_mask if attn_mask.dtype == torch.bool else _open(attn_mask.detach())).expand(pairs), None)
        elif is_causal:
            self.told(torch.ones(pairs[-2:], dtype=torch.bool).tril().expand(pairs), None)

    def _torch_nn(
        self, query_LBD: Tensor, key: Tensor, heads: int, attn_mask: Tensor | None, padding: Tensor | None
    ) -> None:
        mask, (length, batch) = masks.from_torch_nn(attn_mask, padding, num_heads=heads), query_LBD.shape[:2]
        if mask is not None:
            dense = masks.additive(mask, length)
            self.told(_open(dense).expand(batch, heads, length, dense.shape[-1]), key is query_LBD)


def _to_itself(module: nn.Module, inputs: Any, kwargs: Any) -> bool | None:
    """Whether an attention is called with one sequence alone, as far as its class says: it is ours, or one of
    transformers', which name what goes in."""
    if isinstance(module, MultiHeadAttention | CrossAttention):
        return isinstance(module, MultiHeadAttention)
    signature = inspect.signature(module.forward)
    if "hidden_states" not in signature.parameters:
        return None
    given = signature.bind_partial(*inputs, **kwargs).arguments
    return all(given.get(name) is None for name in _OTHER_SEQUENCES)


def _open(added: Tensor) -> Tensor:
    """Where a mask that is added lets a query attend."""
    return added > SHUT
