"""Mistakes in masks: what attends to what, compared with what should."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.inspection.lint.findings import (
    Finding,
    causal_encoder,
    fully_masked,
    ignored,
    inverted,
    masks_nothing,
    opened,
    swapped,
    unseen,
)


@dataclass(frozen=True)
class Attended:
    """Which query reached which key, beside the truth.

    Args:
        part: which attention, such as "the encoder's self-attention".
        seen_BLM: whether query i reached key j.
        real_BL: which queries are real tokens whose results were looked at.
        keep_BM: which keys are.
        causal: whether a query may only reach keys at its own place and before; None where both may be meant.
        same: whether queries and keys are the same tokens; what a token has of itself then says nothing.
        other_BM: the padding of the other sequence, with which this one's may have been confused.
    """

    part: str
    seen_BLM: Bool[Tensor, "B L M"]
    real_BL: Bool[Tensor, "B L"]
    keep_BM: Bool[Tensor, "B M"]
    causal: bool | None = False
    same: bool = True
    other_BM: Bool[Tensor, "B M"] | None = None


def lint_masks(
    mask: MaskLike,
    keep: Bool[Tensor, "B M"] | Int[Tensor, "B M"],
    *,
    queries: Bool[Tensor, "B L"] | Int[Tensor, "B L"] | None = None,
    causal: bool = False,
    other: Bool[Tensor, "B N"] | Int[Tensor, "B N"] | None = None,
) -> list[Finding]:
    """Mistakes in one mask, before any model sees it.

    Args:
        mask: as everywhere here: True = may attend, or floats that are added. Other libraries' masks come through
            `masks.from_torch_nn` or `masks.from_transformers`.
        keep: which keys are real tokens: bools, or 0 and 1 as transformers' tokenizers give them.
        queries: which queries are; as keep where queries and keys are the same tokens.
        causal: whether no query may attend to a later key: a decoder's self-attention.
        other: which tokens of the other sequence (target or source) are real, to tell masks that were swapped.

    Returns:
        The mistakes; none where the mask does what it should.

    Raises:
        ValueError: a mask that does not fit, or real tokens that are told in another way.

    >>> import torch; from clearhead import lint_masks
    >>> keep = torch.tensor([[True, True, False]])
    >>> [finding.mistake for finding in lint_masks(~keep[:, None, None], keep)]
    ['the padding mask is inverted']
    """
    keep, same = kept("keep", keep), queries is None
    real = keep if queries is None else kept("queries", queries)
    other = None if other is None else kept("other", other)
    batch, length = real.shape
    if isinstance(mask, Tensor) and not mask.is_floating_point() and mask.dtype != torch.bool:
        raise ValueError(
            "a mask of whole numbers says neither who may attend nor what is added; masks.from_transformers"
        )
    heads = mask.shape[1] if isinstance(mask, Tensor) and mask.ndim == 4 else 1
    checked = masks.as_mask(mask, batch=batch, heads=heads, queries=length, keys=keep.shape[1])
    findings = [] if checked is None else _floats(checked, keep)
    dense = masks.additive(checked, length)
    allowed_BHLM = opened(dense).expand(batch, heads, length, keep.shape[1])
    allowed, empty = allowed_BHLM.any(dim=1), real & ~allowed_BHLM.any(dim=3).all(dim=1)
    asking = real & ~empty if bool((real & ~empty).any()) else real
    # under causality the last query stands at the last key, as with a cache
    attended = Attended("the mask", allowed, asking, keep, causal=causal, same=same or causal, other_BM=other)
    full = [fully_masked("the mask", row, place) for row, place in empty.nonzero().tolist()[:1]]
    findings = findings or diagnose(attended) or full
    if not findings and same:
        findings = unseen("the mask", keep & ~allowed.diagonal(dim1=1, dim2=2), other)
    return findings


def kept(name: str, given: object) -> Bool[Tensor, "B L"]:
    """Which tokens are real, as bools.

    Args:
        name: the argument's.
        given: bools or 0 and 1, of (batch, length).

    Raises:
        ValueError: anything else.
    """
    wanted = f"{name} is a tensor (batch, length) of bools, or of the integers 0 and 1, True or 1 at real tokens; got "
    if not isinstance(given, Tensor):
        raise ValueError(f"{wanted}a {type(given).__name__}: torch.tensor makes one of lists")
    told = given.dtype == torch.bool or (not given.is_floating_point() and bool(((given == 0) | (given == 1)).all()))
    if not told or given.ndim != 2 or given.numel() == 0:
        raise ValueError(f"{wanted}{str(given.dtype).removeprefix('torch.')} of shape {tuple(given.shape)}")
    return given.bool()


@dataclass(frozen=True)
class _Pairs:
    """Pairs of a query and a key: those that may be reached, those that may not, and those that must be."""

    truth: Tensor
    padding: Tensor
    due: Tensor
    later: Tensor
    earlier: Tensor
    causal: bool

    @staticmethod
    def of(attended: Attended) -> "_Pairs":
        seen_BLM, keep_BM, causal = attended.seen_BLM, attended.keep_BM, attended.causal
        _, length, keys = seen_BLM.shape
        place_L, place_M = torch.arange(length) + (keys - length if attended.same else 0), torch.arange(keys)
        ahead_LM = place_M[None, :] - place_L[:, None]
        off_LM = ahead_LM != 0 if attended.same else torch.ones(length, keys, dtype=torch.bool)
        pairs_BLM = attended.real_BL[:, :, None] & off_LM
        truth_BLM, padding_BLM = pairs_BLM & keep_BM[:, None, :], pairs_BLM & ~keep_BM[:, None, :]
        later_BLM, earlier_BLM = truth_BLM & (ahead_LM > 0), truth_BLM & (ahead_LM < 0)
        if causal is None:  # a triangle is meant for one, whichever way round it is
            causal = not (bool((seen_BLM & later_BLM).any()) and bool((seen_BLM & earlier_BLM).any()))
        if causal:
            truth_BLM = truth_BLM & (ahead_LM <= 0)
        if attended.causal:
            padding_BLM = padding_BLM & (ahead_LM <= 0)
        due_BLM = truth_BLM
        if attended.same:  # a window hides what is far off, but no neighbour, and nothing before what it shows
            reached_BLM = (seen_BLM & truth_BLM).int()
            since_BLM, until_BLM = reached_BLM.cumsum(dim=2), reached_BLM.flip(2).cumsum(dim=2).flip(2)
            # where a key is reached from behind alone, the mask is causal from some place on: its last token, by none
            behind_BM, before_BM = ((seen_BLM & part_BLM).any(dim=1) for part_BLM in (earlier_BLM, later_BLM))
            partly_B = (behind_BM & ~before_BM & later_BLM.any(dim=1)).any(dim=1)
            near_BLM = (ahead_LM == -1) | ((ahead_LM == 1) & ~partly_B[:, None, None])
            due_BLM = truth_BLM & (near_BLM | ((since_BLM > 0) & (until_BLM > 0)))
        return _Pairs(truth_BLM, padding_BLM, due_BLM, later_BLM, earlier_BLM, causal)


def diagnose(attended: Attended) -> list[Finding]:
    """What is wrong with who reached whom; the most telling mistake only, for others follow from it."""
    pairs = _Pairs.of(attended)
    return _turned_round(attended, pairs) or _triangle(attended, pairs) or _padding(attended, pairs)


def _at(attended: Attended, mistake: str, which_BLM: Tensor, why: str, mend: str) -> list[Finding]:
    row, query, key = which_BLM.nonzero()[0].tolist()
    return [Finding(mistake, f"{attended.part}, row {row}, position {query} and {key}", why, mend)]


def _turned_round(attended: Attended, pairs: _Pairs) -> list[Finding]:
    """Where nothing is reached that should be."""
    seen_BLM = attended.seen_BLM
    if not pairs.truth.any() or bool((seen_BLM & pairs.truth).any()):
        return []
    if pairs.causal and bool((seen_BLM & pairs.later).any()):
        return _at(
            attended,
            "the causal mask is upside down",
            seen_BLM & pairs.later,
            "A token reaches those after it, and none before it.",
            "Turn the mask round (~mask), or transpose it: masks.causal(n) is right here, "
            "nn.Transformer.generate_square_subsequent_mask(n) in torch.nn.",
        )
    if bool((seen_BLM & pairs.padding).any()):
        row, query, key = (seen_BLM & pairs.padding).nonzero()[0].tolist()
        return [inverted(attended.part, row, f"{query} and {key}")]
    return _at(
        attended,
        "nothing is attended",
        pairs.truth,
        "No token reaches any other: every row is fully masked, or attention's output is lost.",
        "Look at the mask's polarity, and at float masks that are -inf everywhere.",
    )


def _triangle(attended: Attended, pairs: _Pairs) -> list[Finding]:
    """A causal mask that is missing, or that should be."""
    later_BLM = attended.seen_BLM & pairs.later
    if pairs.causal and bool(later_BLM.any()):
        return _at(
            attended,
            "the decoder sees the future",
            later_BLM,
            "A token reaches one that comes after it; trained so, it learns to copy, and generates nonsense.",
            "Give the decoder's self-attention a causal mask: masks.causal(n), or tgt_mask in torch.nn.",
        )
    if not attended.same:
        reached_BLM, missed_BLM = attended.seen_BLM & pairs.truth, ~attended.seen_BLM & pairs.truth
        by_some_BM = reached_BLM.any(dim=1) & missed_BLM.any(dim=1)
        if bool(by_some_BM.any()) and torch.equal(missed_BLM, pairs.later):
            return _at(
                attended,
                "cross-attention is causal",
                missed_BLM,
                "A token of the target reaches none of the source that stands after its own place.",
                "Leave the causal mask to the decoder's self-attention: of the source nothing is in the future.",
            )
    both_ways = attended.same and bool(pairs.later.any()) and bool(pairs.earlier.any())
    if not pairs.causal and both_ways and not bool(later_BLM.any()):
        row, query, key = pairs.later.nonzero()[0].tolist()
        return [causal_encoder(attended.part, row, f"{query} and {key}")]
    return []


def _padding(attended: Attended, pairs: _Pairs) -> list[Finding]:
    """Padding that is reached, or text that is not."""
    truth_BLM, padding_BLM = pairs.truth, pairs.padding
    seen_BLM, keep_BM, other_BM = attended.seen_BLM, attended.keep_BM, attended.other_BM
    leaks_BLM = seen_BLM & padding_BLM
    ignored_BM = keep_BM & pairs.due.any(dim=1) & ~(seen_BLM & truth_BLM).any(dim=1)
    if not leaks_BLM.any() and not ignored_BM.any():
        return []
    asked_BM = (truth_BLM | padding_BLM).any(dim=1)
    reached_BM = (seen_BLM & (truth_BLM | padding_BLM)).any(dim=1)
    others = other_BM is not None and other_BM.shape == keep_BM.shape and not bool(other_BM.all())
    if other_BM is not None and others and bool(((reached_BM == other_BM) | ~asked_BM).all()):
        row, key = ((keep_BM != other_BM) & asked_BM).nonzero()[0].tolist()
        return [swapped(f"{attended.part}, row {row}, position {key}")]
    if leaks_BLM.any():
        row, query, key = leaks_BLM.nonzero()[0].tolist()
        return [
            Finding(
                "padding is attended",
                f"{attended.part}, row {row}, position {query} reaches {key}",
                "What stands in the padding changes the result: it depends on the batch.",
                "Pass a padding mask: masks.padding(ids != pad_id), attention_mask in transformers, "
                "src_key_padding_mask and memory_key_padding_mask in torch.nn.",
            )
        ]
    row, key = ignored_BM.nonzero()[0].tolist()
    return [ignored(f"{attended.part}, row {row}, position {key}", "No other token reaches this real one.")]


def _floats(mask: masks.Mask, keep_BM: Tensor) -> list[Finding]:
    added = mask.float_bias()
    if added is None or mask.keep_BM is not None or mask.causal or not (~keep_BM).any():
        return []
    return masks_nothing("the mask", added)
