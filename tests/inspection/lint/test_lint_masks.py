"""lint_masks() reports wrong masks and accepts correct ones."""

import inspect

import pytest
import torch
from support.lint.examples import (
    ATTENDED,
    CAUSAL,
    FULL,
    FUTURE,
    INVERTED,
    KEEP,
    MASK,
    NOTHING,
    ONE_CLOSED,
    ONE_TEXT,
    SWAPPED,
    TARGET_KEEP,
    UPSIDE_DOWN,
)

from clearhead import lint_masks, masks

HIDDEN = KEEP & ~(KEEP.flip(1).cumsum(dim=1).flip(1) == 1)
"""The mask of KEEP without the last real token of each text."""


@pytest.mark.parametrize(
    ("mask", "options", "rule"),
    [
        (~KEEP[:, None, None], {}, INVERTED),
        (None, {}, ATTENDED),
        (MASK & masks.causal(6) & masks.padding(HIDDEN), {"causal": True}, "text-ignored"),
        (MASK & masks.causal(6) & masks.padding(HIDDEN), {"causal": True, "other": HIDDEN}, SWAPPED),
        (masks.padding(TARGET_KEEP), {"other": TARGET_KEEP}, SWAPPED),
        (masks.causal(6) & MASK, {}, "encoder-causal"),
        (MASK, {"causal": True}, FUTURE),
        (torch.ones(6, 6, dtype=torch.bool).triu(), {"causal": True}, UPSIDE_DOWN),
        (KEEP[:, None, None].float(), {}, NOTHING),
        (torch.where(KEEP, 0.0, -103.0)[:, None, None], {}, NOTHING),
        (torch.where(KEEP, -1e4, 0.0)[:, None, None], {}, INVERTED),
        (ONE_CLOSED, {}, FULL),
        (torch.where(ONE_CLOSED, 0.0, -1e4), {}, FULL),
        (masks.padding(ONE_TEXT), {}, FULL),
        (MASK & masks.padding(torch.tensor([[False] + [True] * 5])), {}, "text-ignored"),
        (torch.zeros(6, 6, dtype=torch.bool), {}, "nothing-attended"),
        (masks.padding(~KEEP), {"queries": TARGET_KEEP}, INVERTED),
        (MASK & masks.Mask(length=6, bias=~torch.eye(6, dtype=torch.bool)[2][:, None].expand(6, 6)), {}, FULL),
    ],
)
def test_reports_wrong_mask(mask, options, rule):
    findings = lint_masks(mask, KEEP, **options)
    assert [finding.rule for finding in findings] == [rule]


PREFIX = torch.ones(6, 6, dtype=torch.bool).tril() | (torch.arange(6) < 2)
"""Causal, except that all tokens attend to the first two."""


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (MASK, {}),
        (KEEP[:, None, None], {}),
        (torch.where(KEEP, 0.0, -torch.inf)[:, None, None], {}),
        (torch.where(KEEP, 0.0, -1e4)[:, None, None], {}),
        (torch.where(KEEP, 0.0, -104.0)[:, None, None], {}),
        (torch.where(KEEP, 0.0, torch.finfo(torch.float32).min)[:, None, None], {}),
        (torch.where(KEEP.flip(1), 0.0, -1e9)[:, None, None], {"keep": KEEP.flip(1)}),
        (MASK & masks.causal(6), {"causal": True}),
        (MASK & masks.window(6, 1), {}),
        (MASK & masks.as_mask(PREFIX, batch=3, heads=1, queries=6, keys=6), {}),
        (MASK, {"queries": TARGET_KEEP, "other": TARGET_KEEP}),
        (masks.from_torch_nn(CAUSAL, ~KEEP), {"causal": True}),
        (masks.from_transformers(KEEP.long()), {}),
    ],
)
def test_accepts_correct_mask(mask, options):
    assert lint_masks(mask, **{"keep": KEEP} | options) == []


def test_reports_one_head_without_keys():
    mask = torch.ones(1, 2, 6, 6, dtype=torch.bool)
    mask[0, 1] = False
    for form in (mask, torch.where(mask, 0.0, -torch.inf)):
        assert [finding.rule for finding in lint_masks(form, KEEP[:1])] == ["fully-masked-row"]


def test_last_query_attends_to_all_cached_keys():
    newest = torch.ones(3, 1, dtype=torch.bool)
    assert lint_masks(KEEP[:, None, None], KEEP, queries=newest, causal=True) == []
    findings = lint_masks(~KEEP[:, None, None], KEEP, queries=newest, causal=True)
    assert [finding.rule for finding in findings] == ["padding-mask-inverted"]


def test_keep_mask_is_bool_or_zeros_and_ones():
    assert lint_masks(MASK, KEEP.long(), queries=TARGET_KEEP.long(), other=TARGET_KEEP.int()) == []
    bare = inspect.unwrap(lint_masks)  # without the type checks of the test suite
    for wrong, got in ((KEEP[0], r"bool of shape \(6,\)"), (KEEP.float(), "float32"), (KEEP.tolist(), "a list")):
        for known in ({"keep": wrong}, {"keep": KEEP, "queries": wrong}, {"keep": KEEP, "other": wrong}):
            with pytest.raises(
                ValueError, match=rf"{[*known][-1]} must be a tensor \(batch, length\) of bools.*; got {got}"
            ):
                bare(MASK, **known)


def test_refuses_integer_masks():
    with pytest.raises(ValueError, match="from_transformers"):
        lint_masks(KEEP.long()[:, None, None], KEEP)
