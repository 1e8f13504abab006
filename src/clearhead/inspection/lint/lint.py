"""Find masking and padding mistakes by testing which inputs each output depends on.

A token that attends to another depends on it: the gradient of its result by that token is not zero. This test works
for any model, whatever its masks are called and whatever True means in them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from clearhead.inspection.lint.observation.float_masks import float_masks
from clearhead.inspection.lint.observation.inputs import as_keep_mask
from clearhead.inspection.lint.observation.observe import Observation, observe
from clearhead.inspection.lint.observation.unpadded import states_change_without_padding
from clearhead.inspection.lint.rule import Finding, Stage, first_finding, without_consequences
from clearhead.inspection.lint.rules import load_rules


@torch.enable_grad()
def lint(
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    keep: Bool[Tensor, "B M"] | Int[Tensor, "B M"] | None = None,
    target_keep: Bool[Tensor, "B L"] | Int[Tensor, "B L"] | None = None,
) -> list[Finding]:
    """Find mistakes in a call of a model: masks that are inverted, swapped, missing or misplaced, and padding leaks.

    The model runs once in evaluation mode. It runs twice if torch.nn's modules inside have the length first, to find
    the layout of its tensors. If it returns one vector for each text, one text runs again without its padding.
    Weights, gradients and modes do not change.

    Args:
        model: a module of this library; `nn.Transformer`, its halves and layers, or `nn.MultiheadAttention`; a
            transformers model; or a module that wraps one of these and accepts ids or vectors under a usual name. For
            a pipeline such as `TextEncoder`, pass its `model`.
        batch: the arguments of the model by name. The padding checks need padded rows. `labels` of transformers'
            encoder–decoders are shifted right to a target, as in transformers.
        keep: real source tokens, as bools or as 0 and 1. By default, the ids that differ from the model's padding id,
            or all tokens if the model has none.
        target_keep: real target tokens, in the same form.

    Returns:
        The findings; an empty list for a correct call. One mistake can hide another: fix it, then run lint again.

    Raises:
        ValueError: the model is not a module, the batch is not a mapping, `keep` has another form, the batch has no
            source, the output is not supported or does not depend on the input, or the model is a decoder without an
            encoder, such as GPT-2.

    >>> import torch; from clearhead import EncoderConfig, EncoderModel, lint
    >>> model, ids = EncoderModel(EncoderConfig(vocab_size=9, num_layers=1)), torch.tensor([[4, 5, 6], [7, 8, 0]])
    >>> [finding.rule for finding in lint(model, {"ids": ids})]
    ['padding-attended']
    """
    load_rules()
    _check_arguments(model, batch)
    keep = None if keep is None else as_keep_mask("keep", keep)
    target_keep = None if target_keep is None else as_keep_mask("target_keep", target_keep)
    return _apply_rules(observe(model, batch, keep, target_keep))


def _check_arguments(model: object, batch: object) -> None:
    if not isinstance(model, nn.Module):
        hint = " Pass its `model`." if isinstance(getattr(model, "model", None), nn.Module) else ""
        raise ValueError(f"The model must be a torch.nn.Module; got a {type(model).__name__}.{hint}")
    if torch.is_inference_mode_enabled():
        raise ValueError("lint needs gradients, which torch.inference_mode() disables: call lint outside it.")
    if not isinstance(batch, Mapping):
        raise ValueError(
            "The batch must map argument names to values, such as "
            f"{{'ids': ids, 'mask': mask}}; got a {type(batch).__name__}."
        )


def _apply_rules(observation: Observation) -> list[Finding]:
    """Run the stages in order, and drop the findings that are consequences of others."""
    if bool(observation.nonfinite_B.any()):
        findings = first_finding(Stage.VALUES, observation)
        if findings:
            return findings
    findings = []
    for pattern in observation.patterns:
        if pattern.same or not findings:  # cross-attention may show the mistakes of self-attention too
            findings += first_finding(Stage.ATTENTION, pattern)
    causes = first_finding(Stage.MASKS, observation)
    findings = without_consequences(findings, causes, Stage.MASKS) or causes
    findings = without_consequences(findings, findings, Stage.ATTENTION)
    findings = _explain_by_float_masks(findings, observation) or first_finding(Stage.TOKENS, observation)
    if not findings and observation.run is not None and observation.run.pooled is not None:
        findings = first_finding(Stage.POOLING, observation)
    return [] if _is_harmless(findings, observation) else findings


def _explain_by_float_masks(findings: list[Finding], observation: Observation) -> list[Finding]:
    """Replace the consequences of ineffective float masks by the findings of those masks."""
    sequence = None if observation.run is None else observation.run.last_sequence
    if observation.batch is None or sequence is None:
        return findings
    causes = [
        (mask, first_finding(Stage.FLOAT_MASK, mask)) for mask in float_masks(observation.batch, sequence.shape[1])
    ]

    def explained(finding: Finding) -> Finding:
        for mask, cause in causes:
            explains = not without_consequences([finding], cause, Stage.FLOAT_MASK)
            if finding.rule == "future-visible":
                explains = explains and mask.may_be_causal
            if explains and mask.attention in finding.where:
                return cause[0]
        return finding

    return [explained(finding) for finding in findings]


def _is_harmless(findings: list[Finding], observation: Observation) -> bool:
    """Return whether an encoder attends to padding without any effect on its states."""
    run = observation.run
    if not findings or run is None or run.target is not None or run.memory is None:
        return False
    only_padding = all(finding.rule == "padding-attended" for finding in findings)
    return only_padding and not states_change_without_padding(observation)
