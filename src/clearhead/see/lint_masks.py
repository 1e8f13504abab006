"""Mistakes in masks: what attends to what, compared with what should."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike


@dataclass(frozen=True)
class Finding:
    """A mistake.

    Args:
        mistake: what is wrong, such as "padding is attended".
        where: in which attention, which row of the batch, which positions.
        why: what shows it.
        mend: what to do.

    >>> from clearhead import Finding
    >>> print(Finding("padding is attended", "row 1", "The result depends on the batch.", "Pass a padding mask."))
    padding is attended (row 1): The result depends on the batch. Pass a padding mask.
    """

    mistake: str
    where: str
    why: str
    mend: str

    def __str__(self) -> str:
        return f"{self.mistake} ({self.where}): {self.why} {self.mend}"


@dataclass(frozen=True)
class Attended:
    """Which query reached which key, beside the truth.

    Args:
        part: which attention, such as "the encoder's self-attention".
        seen_BLM: whether query i reached key j.
        real_BL: which queries are real tokens.
        keep_BM: which keys are.
        causal: whether a query may only reach keys at its own place and before.
        same: whether queries and keys are the same tokens; what a token has of itself then says nothing.
        other_BM: the padding of the other sequence, with which this one's may have been confused.
    """

    part: str
    seen_BLM: Bool[Tensor, "B L M"]
    real_BL: Bool[Tensor, "B L"]
    keep_BM: Bool[Tensor, "B M"]
    causal: bool = False
    same: bool = True
    other_BM: Bool[Tensor, "B M"] | None = None


def lint_masks(
    mask: MaskLike,
    keep: Bool[Tensor, "B M"],
    *,
    queries: Bool[Tensor, "B L"] | None = None,
    causal: bool = False,
    other: Bool[Tensor, "B M"] | None = None,
) -> list[Finding]:
    """Mistakes in one mask, before any model sees it.

    Args:
        mask: as everywhere here: True = may attend, or floats that are added. Other libraries' masks come through
            `masks.from_torch_nn` or `masks.from_transformers`.
        keep: which keys are real tokens.
        queries: which queries are; as keep where queries and keys are the same tokens.
        causal: whether no query may attend to a later key: a decoder's self-attention.
        other: which tokens of the other sequence (target or source) are real, to tell masks that were swapped.

    Returns:
        The mistakes; none where the mask does what it should.

    >>> import torch; from clearhead import lint_masks
    >>> keep = torch.tensor([[True, True, False]])
    >>> [finding.mistake for finding in lint_masks(~keep[:, None, None], keep)]
    ['the padding mask is inverted']
    """
    same = queries is None
    real = keep if queries is None else queries
    batch, length = real.shape
    if isinstance(mask, Tensor) and not mask.is_floating_point() and mask.dtype != torch.bool:
        raise ValueError(
            "a mask of whole numbers says neither who may attend nor what is added; masks.from_transformers"
        )
    heads = mask.shape[1] if isinstance(mask, Tensor) and mask.ndim == 4 else 1
    checked = masks.of(mask, batch=batch, heads=heads, queries=length, keys=keep.shape[1])
    findings = [] if checked is None else _floats(checked, keep)
    dense = masks.additive(checked, length)
    # what is added to one score makes its weight 0 where it is this much below the others
    allowed = (dense > -1e4).expand(batch, heads, length, keep.shape[1]).any(dim=1)
    attended = Attended("the mask", allowed, real, keep, causal=causal, same=same, other_BM=other)
    if findings:
        return findings
    empty = [
        Finding(
            "a row is fully masked",
            f"the mask, row {row}, position {place}",
            "This real token may attend to nothing: torch.nn gives NaN for it, other kernels the mean or zeros.",
            "Let each real token attend to one at least, itself for instance.",
        )
        for row, place in (real & ~allowed.any(dim=2)).nonzero().tolist()[:1]
    ]
    return judged(attended) or empty


def judged(attended: Attended) -> list[Finding]:
    """What is wrong with who reached whom; the most telling mistake only, for others follow from it."""
    seen_BLM, real_BL, keep_BM = attended.seen_BLM, attended.real_BL, attended.keep_BM
    _, length, keys = seen_BLM.shape
    place_L, place_M = torch.arange(length) + (keys - length if attended.same else 0), torch.arange(keys)
    ahead_LM = place_M[None, :] - place_L[:, None]
    off_LM = ahead_LM != 0 if attended.same else torch.ones(length, keys, dtype=torch.bool)
    pairs_BLM = real_BL[:, :, None] & off_LM
    truth_BLM = pairs_BLM & keep_BM[:, None, :]
    padding_BLM = pairs_BLM & ~keep_BM[:, None, :]
    later_BLM, earlier_BLM = truth_BLM & (ahead_LM > 0), truth_BLM & (ahead_LM < 0)
    if attended.causal:
        truth_BLM = truth_BLM & (ahead_LM <= 0)
        padding_BLM = padding_BLM & (ahead_LM <= 0)

    def has(which_BLM: Tensor) -> bool:
        return bool((seen_BLM & which_BLM).any())

    def finding(mistake: str, which_BLM: Tensor, why: str, mend: str) -> Finding:
        row, query, key = which_BLM.nonzero()[0].tolist()
        return Finding(mistake, f"{attended.part}, row {row}, position {query} and {key}", why, mend)

    if truth_BLM.any() and not has(truth_BLM):
        if has(padding_BLM):
            return [
                finding(
                    "the padding mask is inverted",
                    seen_BLM & padding_BLM,
                    "Padding is attended, and the text is ignored.",
                    "Turn the mask round (~mask): here and in scaled_dot_product_attention True means may attend, in "
                    "torch.nn's masks it means may not.",
                )
            ]
        if attended.causal and has(later_BLM):
            return [
                finding(
                    "the causal mask is upside down",
                    seen_BLM & later_BLM,
                    "A token reaches those after it, and none before it.",
                    "Turn the mask round (~mask), or transpose it: masks.causal(n) is right here, "
                    "nn.Transformer.generate_square_subsequent_mask(n) in torch.nn.",
                )
            ]
        return [
            finding(
                "nothing is attended",
                truth_BLM,
                "No token reaches any other: every row is fully masked, or attention's output is lost.",
                "Look at the mask's polarity, and at float masks that are -inf everywhere.",
            )
        ]
    if attended.causal and has(later_BLM):
        return [
            finding(
                "the decoder sees the future",
                seen_BLM & later_BLM,
                "A token reaches one that comes after it; trained so, it learns to copy, and generates nonsense.",
                "Give the decoder's self-attention a causal mask: masks.causal(n), or tgt_mask in torch.nn.",
            )
        ]
    if not attended.causal and attended.same and later_BLM.any() and earlier_BLM.any() and not has(later_BLM):
        return [
            finding(
                "the encoder is causal",
                later_BLM,
                "No token reaches any that comes after it.",
                "Leave the causal mask to the decoder: an encoder sees the whole text.",
            )
        ]
    return _padding(attended, truth_BLM, padding_BLM)


def _padding(attended: Attended, truth_BLM: Tensor, padding_BLM: Tensor) -> list[Finding]:
    seen_BLM, keep_BM, other_BM = attended.seen_BLM, attended.keep_BM, attended.other_BM
    leaks_BLM = seen_BLM & padding_BLM
    # a window may hide a token from some; one that nobody reaches is ignored
    ignored_BM = keep_BM & truth_BLM.any(dim=1) & ~(seen_BLM & truth_BLM).any(dim=1)
    if not leaks_BLM.any() and not ignored_BM.any():
        return []
    asked_BM = (truth_BLM | padding_BLM).any(dim=1)
    reached_BM = (seen_BLM & (truth_BLM | padding_BLM)).any(dim=1)
    if other_BM is not None and other_BM.shape == keep_BM.shape and bool(((reached_BM == other_BM) | ~asked_BM).all()):
        row, key = ((keep_BM != other_BM) & asked_BM).nonzero()[0].tolist()
        return [
            Finding(
                "source and target padding are swapped",
                f"{attended.part}, row {row}, position {key}",
                "What is attended is what is real in the other sequence.",
                "Give each attention the padding of its own keys; cross-attention's keys are the source's.",
            )
        ]
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
    return [
        Finding(
            "text is ignored",
            f"{attended.part}, row {row}, position {key}",
            "No other token reaches this real one.",
            "Look where the mask says padding: is pad_id a word here, or was the mask made for another batch?",
        )
    ]


def _floats(mask: masks.Mask, keep_BM: Tensor) -> list[Finding]:
    """A mask of floats that masks nothing: 0 and 1 mostly, meant as false and true."""
    added = mask.added()
    if added is None or mask.keep_BM is not None or mask.causal or bool((added < -1e4).any()) or not (~keep_BM).any():
        return []
    return [
        Finding(
            "a float mask masks nothing",
            "the mask",
            f"Its numbers, from {float(added.min()):g} to {float(added.max()):g}, are added to the scores: none is so "
            "low that a weight becomes 0.",
            "Make it bool (mask != 0), or 0 where attention is allowed and -inf where it is not.",
        )
    ]
