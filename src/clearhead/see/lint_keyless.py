"""What masks leave over, seen at every attention of a running model, whatever they are called: queries without any key,
and tokens that may not attend to themselves."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clearhead.equations import masks
from clearhead.layers.attention import MultiHeadAttention
from clearhead.see.lint_masks import SHUT

_SOFTMAXES = (torch.softmax, torch.special.softmax, Tensor.softmax, functional.softmax)
_MASKED_SCORE = -5e3
"""No score is this low by itself; the least that people mask with is −10,000."""
_OTHER_SEQUENCES = ("key_value_states", "encoder_hidden_states")
"""What transformers' attentions call the sequence that is attended to, where it is another."""


@contextlib.contextmanager
def keyless_told(model: nn.Module, told: Callable[[str, Tensor, Tensor | None], None]) -> Iterator[None]:
    """Tells, of every attention of the model that runs inside the block, which queries have no key.

    Args:
        model: any module.
        told: is called with the attention's path in the model and two bool tensors, whose last dimension is the
            queries: which have no key, and, of self-attention in this library, torch.nn and transformers, which may
            not attend to themselves.
    """
    running: list[tuple[str, bool]] = []

    def entered(path: str, module: nn.Module, inputs: Any, kwargs: Any) -> None:
        running.append((path, _to_itself(module, inputs, kwargs)))

    def seen(keyless: Tensor, unseen: Tensor | None, same: bool | None) -> None:
        path, to_itself = running[-1] if running else ("", False)
        told(path, keyless, unseen if same or (same is None and to_itself) else None)

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

    def __init__(self, told: Callable[[Tensor, Tensor | None, bool | None], None]) -> None:
        super().__init__()
        self.told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._fused(*args, **kwargs)
        elif func is functional.multi_head_attention_forward:
            self._torch_nn(args[0], args[1], args[4], kwargs.get("attn_mask"), kwargs.get("key_padding_mask"))
        elif func in _SOFTMAXES and args and args[0].ndim in (3, 4):
            scores = args[0].detach()
            self.told(scores.amax(dim=-1) < _MASKED_SCORE, _own(scores, scores.shape[-2], _MASKED_SCORE), None)
        return func(*args, **kwargs)

    def _fused(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **others: Any
    ) -> None:
        if attn_mask is not None:
            self.told(_shut(attn_mask).expand(query.shape[:-1]), _own(attn_mask.detach(), query.shape[-2], SHUT), None)

    def _torch_nn(
        self, query_LBD: Tensor, key: Tensor, heads: int, attn_mask: Tensor | None, padding: Tensor | None
    ) -> None:
        mask, (length, batch) = masks.from_torch_nn(attn_mask, padding, num_heads=heads), query_LBD.shape[:2]
        if mask is not None:
            dense = masks.additive(mask, length)
            dense = dense.expand(batch, heads, length, dense.shape[-1])
            self.told(_shut(dense), _own(dense, length, SHUT), key is query_LBD)


def _to_itself(module: nn.Module, inputs: Any, kwargs: Any) -> bool:
    """Whether an attention is called with one sequence alone, as far as its class says: it is ours, or one of
    transformers', which name what goes in."""
    if isinstance(module, MultiHeadAttention):
        return True
    signature = inspect.signature(module.forward)
    if "hidden_states" not in signature.parameters:
        return False
    given = signature.bind_partial(*inputs, **kwargs).arguments
    return all(given.get(name) is None for name in _OTHER_SEQUENCES)


def _own(mask: Tensor, queries: int, shut: float) -> Tensor | None:
    """Whether a token's own place in its row is masked; None where there are fewer keys than queries."""
    if mask.shape[-1] < queries:
        return None
    # one row may serve all queries; keys that fill a row up come last
    own = mask.expand(*mask.shape[:-2], queries, mask.shape[-1]).diagonal(dim1=-2, dim2=-1)
    return ~own if mask.dtype == torch.bool else own <= shut


def _shut(mask: Tensor) -> Tensor:
    """Whether all of a row is masked, of a mask that is bool (True = may attend) or added."""
    return ~mask.any(dim=-1) if mask.dtype == torch.bool else mask.detach().amax(dim=-1) <= SHUT
