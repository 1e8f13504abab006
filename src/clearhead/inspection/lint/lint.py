"""Mistakes in how a model is used, found from outside: what each token's result depends on, beside what it should.

A token that attends to another depends on it, and its gradient by that other is not zero. So the same questions can be
asked of any model, whatever its masks are called and whichever way round they are.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.inspection.lint.findings import Finding, causal_encoder, fully_masked, inverted, masks_nothing, unseen
from clearhead.inspection.lint.mask_rules import Attended, diagnose, kept
from clearhead.inspection.lint.observation import Observed, observe, padding_id
from clearhead.inspection.lint.pooling import changes_nothing, counts, leaks, not_zero

_MOST = 12
"""Tokens whose results are looked at, of a text; each takes a backward pass."""
_OF_PADDING = ("padding is attended", "text is ignored")
_FOLLOWS = {
    "a row is fully masked": (*_OF_PADDING, "the decoder sees the future"),
    "a result is not a number": (*_OF_PADDING, "the decoder sees the future"),
    "the padding mask is inverted": (*_OF_PADDING, "the decoder sees the future", "nothing is attended"),
}
"""What may be seen because of another mistake: a query that is masked by finite numbers everywhere attends to all
alike, and hands that on in the next layer; under a causal mask an inverted padding mask leaves nothing of the text."""

_PARTS = {
    "src": "encoder's self-attention",
    "tgt": "decoder's self-attention",
    "target": "decoder's self-attention",
    "decoder": "decoder's self-attention",
    "memory": "cross-attention",
}
"""How names of masks begin, and the attention to which they belong; others may belong to any."""
_OF_QUERIES = ("tgt_mask", "target_mask", "attn_mask", "mask")
"""Names under which a causal mask is given."""


@torch.enable_grad()
def lint(
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    keep: Bool[Tensor, "B M"] | Int[Tensor, "B M"] | None = None,
    target_keep: Bool[Tensor, "B L"] | Int[Tensor, "B L"] | None = None,
) -> list[Finding]:
    """Mistakes in how a model is called: masks inverted, swapped, missing or in the wrong place, padding that leaks.

    The model runs as it is, in evaluation mode, once (twice around torch.nn's modules with the length first, to see
    which way round its tensors are, and again with one text alone where it gives one vector a text); its weights,
    gradients and modes stay as they are.

    Args:
        model: any module of this library; `nn.Transformer`, its halves and layers, `nn.MultiheadAttention`; a
            transformers model; or a module around one of these, which takes ids or vectors under one of the usual
            names. Of what runs texts, such as a `TextEncoder`, its `model`.
        batch: what the model is called with, by name. For the checks of padding some rows must be padded. The `labels`
            of transformers' encoder–decoders are shifted right for a target, as they do it.
        keep: which source tokens are real, as bools or as 0 and 1; for ids, those that are not the model's padding id
            where it is not given.
        target_keep: which target tokens are; alike.

    Returns:
        The mistakes; none where everything is as it should be.

    Raises:
        ValueError: no module, no batch by name, or real tokens that are told in another way; no source is found among
            the names, or the model's output is not understood or depends on none; or the model is a decoder without an
            encoder, such as GPT-2.

    >>> import torch; from clearhead import EncoderConfig, EncoderModel, lint
    >>> model, ids = EncoderModel(EncoderConfig(vocab_size=9, num_layers=1)), torch.tensor([[4, 5, 6], [7, 8, 0]])
    >>> [finding.mistake for finding in lint(model, {"ids": ids})]
    ['padding is attended']
    """
    _check_given(model, batch)
    keep, target_keep = (
        None if given is None else kept(name, given) for name, given in (("keep", keep), ("target_keep", target_keep))
    )
    seen = observe(model, batch)
    assert seen.source is not None
    real = _real(model, seen.given["source"], seen.source, "keep", keep, batch.get("attention_mask"))
    target_real = None
    if seen.target is not None:
        told = batch.get("decoder_attention_mask")
        target_real = _real(model, seen.given["target"], seen.target, "target_keep", target_keep, told)
        if target_keep is None:
            target_real = _with_start(model, target_real)
    spoilt_B = _not_numbers(seen, real, target_real)
    if bool(spoilt_B.any()):
        found = _weights_or_inputs(model, seen)
        if found:
            return found
    findings: list[Finding] = []
    for attended in _attentions(seen, real, target_real, spoilt_B):
        if attended.same or not findings:  # what is wrong before may show in cross-attention, too
            findings += diagnose(attended)
    full = _masked(seen, real, target_real, spoilt_B)
    if full:
        follow = _FOLLOWS[full[0].mistake]
        findings = [finding for finding in findings if finding.mistake not in follow] or full
    if any(finding.mistake == "source and target padding are swapped" for finding in findings):
        findings = [finding for finding in findings if finding.mistake not in _OF_PADDING]
    queries = (seen.source if seen.target is None else seen.target).shape[1]
    findings = _by_floats(batch, findings, queries) or _unseen(seen, real, target_real)
    if not findings and seen.pooled is not None:
        findings = leaks(seen, real) or counts(model, batch, seen.pooled, real)
    only_attended = bool(findings) and all(finding.mistake == "padding is attended" for finding in findings)
    if only_attended and seen.target is None and seen.memory is not None:
        findings = [] if changes_nothing(model, batch, seen.memory, real) else findings
    return findings


def _check_given(model: object, batch: object) -> None:
    if not isinstance(model, nn.Module):
        inside = ": give its `model`" if isinstance(getattr(model, "model", None), nn.Module) else ""
        raise ValueError(f"a module is looked at; got a {type(model).__name__}{inside}")
    if torch.is_inference_mode_enabled():
        raise ValueError("gradients are asked for here, and torch.inference_mode() knows none: call lint outside it")
    if not isinstance(batch, Mapping):
        raise ValueError(
            "the batch holds what the model is called with, by name, such as "
            f"{{'ids': ids, 'mask': mask}}; got a {type(batch).__name__}"
        )


def _attentions(seen: Observed, real: Tensor, target_real: Tensor | None, spoilt_B: Tensor) -> Iterator[Attended]:
    """Who reached whom, beside who should."""
    asking = _telling(seen, real, spoilt_B, decoding=False)
    other = target_real if target_real is not None and target_real.shape == real.shape else None
    if seen.memory is not None and seen.source is not None:
        name, causal = ("self-attention", None) if seen.alone else ("the encoder's self-attention", False)
        yield Attended(name, _reached(seen.memory, seen.source, asking), asking, real, causal=causal, other_BM=other)
    if seen.states is None or seen.target is None or target_real is None or seen.source is None:
        return
    asking = _telling(seen, target_real, spoilt_B, decoding=True)
    if not seen.alone:
        own = _reached(seen.states, seen.target, asking)
        yield Attended("the decoder's self-attention", own, asking, target_real, causal=True)
    # each vector of the memory is of one token alone only as a key: what went in was mixed by the encoder before
    across = _reached(seen.states, seen.source if seen.memory is None else seen.memory, asking)
    yield Attended("cross-attention", across, asking, real, same=False, other_BM=other)


def _telling(seen: Observed, real: Tensor, spoilt_B: Tensor, *, decoding: bool) -> Tensor:
    """The tokens whose results tell what was attended: not where no key is left, nor where there are no numbers."""
    left = real & ~spoilt_B[:, None]
    for mask in seen.masked:
        if mask.decoding == decoding and mask.keyless_BL is not None:
            left = left & ~mask.keyless_BL
    return _some(left if bool(left.any()) or bool(spoilt_B.any()) else real)


def _masked(seen: Observed, real: Tensor, target_real: Tensor | None, spoilt_B: Tensor) -> list[Finding]:
    """What the masks of single attentions show: only padding is left, or nothing for some real queries, or padding
    whose NaN came back; where no mask tells, what is not a number."""
    for mask in seen.masked:
        keys = real if not mask.decoding or mask.same is False else target_real
        if keys is None or mask.visible_BM is None or (mask.decoding and mask.same is None) or bool(keys.all()):
            continue
        if torch.equal(mask.visible_BM, ~keys):
            row, place = (~keys).nonzero()[0].tolist()
            return [inverted(mask.path or "attention", row, place)]
    for mask in seen.masked:
        asking = target_real if mask.decoding else real
        if asking is None or mask.keyless_BL is None:
            continue
        rows = mask.keyless_BL & (asking | spoilt_B[:, None])
        if bool(rows.any()):
            return [fully_masked(mask.path or "attention", *rows.nonzero()[0].tolist())]
    if not bool(spoilt_B.any()):
        return []
    return [
        Finding(
            "a result is not a number",
            f"row {int(spoilt_B.nonzero()[0])}",
            "Weights and inputs are numbers, and every token has a key: a step overflows, in the pass or its gradient.",
            "Run it in float32, or bfloat16, which has the same range; float16 ends at 65,504.",
        )
    ]


def _unseen(seen: Observed, real: Tensor, target_real: Tensor | None) -> list[Finding]:
    """What no other token's result tells, of single attentions: real tokens that may not attend to themselves, and
    a layer of an encoder that is causal, where another is not."""
    for mask in seen.masked:
        asking, other = (target_real, real) if mask.decoding else (real, target_real)
        if asking is not None and mask.unseen_BL is not None:
            found = unseen(mask.path or "attention", mask.unseen_BL & asking, other)
            if found:
                return found
    followed = real & (real.flip(1).cumsum(dim=1).flip(1) > 1)
    for mask in seen.masked:
        if mask.decoding or seen.alone or mask.later_BL is None or mask.earlier_BL is None or not bool(followed.any()):
            continue
        if not bool((mask.later_BL & followed).any()) and bool((mask.earlier_BL & real).any()):
            return [causal_encoder(mask.path or "attention", *followed.nonzero()[0].tolist())]
    return []


def _some(asking_BL: Tensor) -> Tensor:
    """These tokens; of a long text some, spread over it."""
    some_BL = torch.zeros_like(asking_BL)
    for row, asking in enumerate(asking_BL):
        places = asking.nonzero().flatten()
        some_BL[row, places[torch.linspace(0, len(places) - 1, min(len(places), _MOST)).round().long()]] = True
    return some_BL


def _reached(states: Tensor, inputs: Tensor, asked_BL: Tensor) -> Tensor:
    """Whether the result at each asked place depends on what went in at each place: a place of every row at a time."""
    batch, length, width = states.shape
    direction = torch.randn(width, generator=torch.Generator().manual_seed(0)).to(states)
    seen_BLM = torch.zeros(batch, length, inputs.shape[1], dtype=torch.bool)
    turn_BL = torch.where(asked_BL, asked_BL.cumsum(dim=1), 0)
    for turn in range(1, int(turn_BL.max()) + 1):
        rows, places = (turn_BL == turn).nonzero(as_tuple=True)
        total = (states[rows, places] * direction).sum()
        (gradient,) = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
        if gradient is not None:
            seen_BLM[rows, places] = not_zero(gradient)[rows]
    return seen_BLM


def _real(model: nn.Module, given: Tensor, vectors: Tensor, name: str, keep: Tensor | None, told: object) -> Tensor:
    """Which tokens are real: what was said, or those that are not padding."""
    if keep is not None:
        if keep.shape != vectors.shape[:2]:
            raise ValueError(f"{name} has a shape of {tuple(keep.shape)}; the tokens have {tuple(vectors.shape[:2])}")
        return keep.cpu()
    pad = None if given.is_floating_point() else padding_id(model)
    if pad is None:
        return torch.ones(vectors.shape[:2], dtype=torch.bool)
    real = (given != pad).cpu()
    end = getattr(getattr(model, "config", None), "eos_token_id", None)
    if end == pad and isinstance(told, Tensor) and told.shape == real.shape:
        # an end that is spelt as padding: the first after the text, where the mask lets it be seen
        real[:, 1:] |= real[:, :-1] & told.cpu()[:, 1:].bool()
    return real


def _with_start(model: nn.Module, real: Tensor) -> Tensor:
    """A target's start is real, though in some families it is spelt as padding: the last such before the text."""
    config = getattr(model, "config", None)
    start = getattr(config, "start_id", getattr(config, "decoder_start_token_id", None))
    if start is not None and start != padding_id(model):
        return real
    following = torch.cat([real[:, 1:], torch.zeros_like(real[:, :1])], dim=1)
    return real | (following & (real.cumsum(dim=1) == 0))


def _not_numbers(seen: Observed, real: Tensor, target_real: Tensor | None) -> Tensor:
    """The rows of the batch in which a real token's result, or its gradient, is not a number."""
    spoilt_B = torch.zeros(len(real), dtype=torch.bool)
    for states, wanted in ((seen.memory, real), (seen.states, target_real), (seen.pooled, None)):
        if states is None:
            continue
        asked = states if wanted is None else states[wanted.to(states.device)]
        inputs = [vectors for vectors in (seen.source, seen.target) if vectors is not None]
        gradients = torch.autograd.grad(asked.sum(), inputs, retain_graph=True, allow_unused=True)
        wrong = ~states.detach().isfinite().all(dim=-1).cpu()
        spoilt_B |= (wrong if wanted is None else wrong & wanted).reshape(len(real), -1).any(dim=1)
        for gradient in gradients:
            if gradient is not None:
                spoilt_B |= ~gradient.isfinite().flatten(1).all(dim=1).cpu()
    return spoilt_B


def _weights_or_inputs(model: nn.Module, seen: Observed) -> list[Finding]:
    """Weights or inputs that are not numbers; masks have no part in it."""
    for name, weight in model.named_parameters():
        wrong = int((~weight.detach().isfinite()).sum())
        if wrong:
            return [
                Finding(
                    "a weight is not a number",
                    f"{name}, {wrong} of {weight.numel()}",
                    "It holds NaN or infinity, and so do the results; masks have no part in it.",
                    "Load the weights again, or go back to the last checkpoint that is whole.",
                )
            ]
    for role, given in seen.given.items():
        if given.is_floating_point() and not bool(given.isfinite().all()):
            return [
                Finding(
                    "an input is not a number",
                    f"the {role}",
                    "Its vectors hold NaN or infinity, and so do the results.",
                    "Look at what made them; padding must be numbers too, for 0 · NaN is NaN.",
                )
            ]
    return []


def _by_floats(batch: Mapping[str, Any], findings: list[Finding], queries: int) -> list[Finding]:
    """The findings; what is attended, and should not be, is explained by a mask of floats that masks nothing."""
    told: list[tuple[str, Finding]] = []
    causal: list[tuple[str, Finding]] = []  # of masks that may be meant as causal ones
    for name, value in batch.items():
        added = value.float_bias() if isinstance(value, masks.Mask) else value
        if "mask" not in name or not isinstance(added, Tensor) or not added.is_floating_point():
            continue
        if "attention_mask" not in name or added.ndim > 2:  # as (B, M), transformers takes 0 and 1 as floats, too
            found = [(name, finding) for finding in masks_nothing(name, added)]
            told += found
            causal += found if name in _OF_QUERIES and added.shape[-2:] == (queries, queries) else []
    reasons = {"padding is attended": told, "the decoder sees the future": causal}

    def reason(finding: Finding) -> Finding:
        for name, other in reasons.get(finding.mistake, []):
            part = next((part for begins, part in _PARTS.items() if name.startswith(begins)), "")
            if part in finding.where:
                return other
        return finding

    return [reason(finding) for finding in findings]
