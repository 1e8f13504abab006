"""Queries that no key is left for, seen at every attention of a running model, whatever its masks are called."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clearhead.equations import masks
from clearhead.see.lint_masks import SHUT

_SOFTMAXES = (torch.softmax, torch.special.softmax, Tensor.softmax, functional.softmax)
_MASKED_SCORE = -5e3
"""No score is this low by itself; the least that people mask with is −10,000."""


@contextlib.contextmanager
def keyless_told(model: nn.Module, told: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Tells, of every attention of the model that runs inside the block, which queries have no key.

    Args:
        model: any module.
        told: is called with the attention's path in the model and a bool tensor, whose last dimension is the queries.
    """
    running: list[str] = []

    def left(*_: Any) -> None:
        running.pop()

    with contextlib.ExitStack() as stack:
        for path, module in model.named_modules():
            before = module.register_forward_pre_hook(lambda *_, path=path: running.append(path))
            stack.callback(before.remove)
            stack.callback(module.register_forward_hook(left).remove)
        stack.enter_context(_Attentions(lambda keyless: told(running[-1] if running else "", keyless)))
        yield


class _Attentions(TorchFunctionMode):
    """Looks at the masks of attention that is fused, torch.nn's, or written out with a softmax."""

    def __init__(self, told: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._fused(*args, **kwargs)
        elif func is functional.multi_head_attention_forward:
            self._torch_nn(args[0], args[4], kwargs.get("attn_mask"), kwargs.get("key_padding_mask"))
        elif func in _SOFTMAXES and args and args[0].ndim in (3, 4):
            self.told(args[0].detach().amax(dim=-1) < _MASKED_SCORE)
        return func(*args, **kwargs)

    def _fused(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **others: Any
    ) -> None:
        if attn_mask is not None:
            self.told(_shut(attn_mask).expand(query.shape[:-1]))

    def _torch_nn(self, query_LBD: Tensor, heads: int, attn_mask: Tensor | None, padding: Tensor | None) -> None:
        mask, (length, batch) = masks.from_torch_nn(attn_mask, padding, num_heads=heads), query_LBD.shape[:2]
        if mask is not None:
            self.told(_shut(masks.additive(mask, length)).expand(batch, heads, length))


def _shut(mask: Tensor) -> Tensor:
    """Whether all of a row is masked, of a mask that is bool (True = may attend) or added."""
    return ~mask.any(dim=-1) if mask.dtype == torch.bool else mask.detach().amax(dim=-1) <= SHUT
