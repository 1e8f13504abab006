"""Find mistakes in one mask without a model."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.observation.float_masks import FloatMask
from clearhead.inspection.lint.observation.inputs import as_keep_mask
from clearhead.inspection.lint.observation.masks import MaskSummary, open_pairs
from clearhead.inspection.lint.observation.observe import observe_mask
from clearhead.inspection.lint.rule import Finding, Stage, first_finding
from clearhead.inspection.lint.rules import load_rules

_NAME = "the mask"


def lint_masks(
    mask: MaskLike,
    keep: Bool[Tensor, "B M"] | Int[Tensor, "B M"],
    *,
    queries: Bool[Tensor, "B L"] | Int[Tensor, "B L"] | None = None,
    causal: bool = False,
    other: Bool[Tensor, "B N"] | Int[Tensor, "B N"] | None = None,
) -> list[Finding]:
    """Find mistakes in one mask before a model uses it.

    Args:
        mask: a mask as everywhere in this library: True = may attend, or floats that are added to the scores. Convert
            masks of other libraries with `masks.from_torch_nn` or `masks.from_transformers`.
        keep: real keys, as bools or as 0 and 1 (the form of transformers' tokenizers).
        queries: real queries; by default `keep`, for self-attention.
        causal: whether no query may attend to a later key, as in a decoder's self-attention.
        other: real tokens of the other sequence (target or source), to recognize swapped masks.

    Returns:
        The findings; an empty list if the mask is correct.

    Raises:
        ValueError: the mask does not fit, or `keep`, `queries` or `other` has another form.

    >>> import torch; from clearhead import lint_masks
    >>> keep = torch.tensor([[True, True, False]])
    >>> [finding.rule for finding in lint_masks(~keep[:, None, None], keep)]
    ['padding-mask-inverted']
    """
    load_rules()
    keep, same = as_keep_mask("keep", keep), queries is None
    real = keep if queries is None else as_keep_mask("queries", queries)
    other = None if other is None else as_keep_mask("other", other)
    batch, length = real.shape
    if isinstance(mask, Tensor) and not mask.is_floating_point() and mask.dtype != torch.bool:
        raise ValueError("Integer masks are ambiguous. Convert transformers' masks with masks.from_transformers.")
    heads = mask.shape[1] if isinstance(mask, Tensor) and mask.ndim == 4 else 1
    resolved = masks.as_mask(mask, batch=batch, heads=heads, queries=length, keys=keep.shape[1])
    dense = masks.additive(resolved, length)
    open_BHLM = open_pairs(dense).expand(batch, heads, length, keep.shape[1])
    open_BLM, keyless_BL = open_BHLM.any(dim=1), real & ~open_BHLM.any(dim=3).all(dim=1)
    tested_BL = real & ~keyless_BL if bool((real & ~keyless_BL).any()) else real
    # with causal=True the last query is at the last key, as with a cache
    pattern = AttentionPattern(
        _NAME, open_BLM, tested_BL, keep, causal=causal, same=same or causal, other_keep_BM=other
    )
    self_hidden_BL = ~open_BLM.diagonal(dim1=1, dim2=2) if same else None
    summary = MaskSummary(_NAME, False, same, keyless_BL, self_hidden_BL=self_hidden_BL)
    observation = observe_mask(pattern, summary, real, other)
    return (
        _float_mask_findings(resolved, keep)
        or first_finding(Stage.ATTENTION, pattern)
        or first_finding(Stage.MASKS, observation)
        or first_finding(Stage.TOKENS, observation)
    )


def _float_mask_findings(mask: masks.Mask | None, keep_BM: Tensor) -> list[Finding]:
    bias = None if mask is None else mask.float_bias()
    if mask is None or bias is None or mask.keep_BM is not None or mask.causal or bool(keep_BM.all()):
        return []
    return first_finding(Stage.FLOAT_MASK, FloatMask(_NAME, bias))
