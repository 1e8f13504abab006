"""Observe one call of a model: the facts that the rules of the linter examine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from clearhead.inspection.lint.attention_pattern import AttentionPattern
from clearhead.inspection.lint.observation.dependence import attention_patterns, nonfinite_texts
from clearhead.inspection.lint.observation.inputs import real_tokens, with_start_token
from clearhead.inspection.lint.observation.masks import MaskSummary
from clearhead.inspection.lint.observation.run import ModelRun, run_model


@dataclass(frozen=True)
class Observation:
    """Facts about one call of a model, or about one mask.

    Args:
        real_BM: real source tokens.
        target_real_BL: real target tokens, if there is a target.
        nonfinite_B: texts whose results or gradients have NaN or infinity.
        patterns: the keys that each query reaches, for each kind of attention.
        masks: the recorded masks.
        model, batch, run: the call and its record; None for a mask without a model.
    """

    real_BM: Bool[Tensor, "B M"]
    target_real_BL: Bool[Tensor, "B L"] | None
    nonfinite_B: Bool[Tensor, "B"]
    patterns: Sequence[AttentionPattern]
    masks: Sequence[MaskSummary]
    model: nn.Module | None = None
    batch: Mapping[str, Any] | None = None
    run: ModelRun | None = None

    @property
    def single_attention(self) -> bool:
        """Whether the model is one attention without a stack."""
        return self.run is not None and self.run.single_attention


def observe(model: nn.Module, batch: Mapping[str, Any], keep: Tensor | None, target_keep: Tensor | None) -> Observation:
    """Run a model and test what each of its results depends on.

    Args:
        model: the model.
        batch: its arguments by name.
        keep, target_keep: real tokens as bools; None for those that are not padding ids.

    Raises:
        ValueError: as `run_model`, or `keep` has another shape than the tokens.
    """
    run = run_model(model, batch)
    assert run.source is not None
    real_BM = real_tokens(model, run.inputs["source"], run.source, "keep", keep, batch.get("attention_mask"))
    target_real_BL = None
    if run.target is not None:
        mask = batch.get("decoder_attention_mask")
        target_real_BL = real_tokens(model, run.inputs["target"], run.target, "target_keep", target_keep, mask)
        if target_keep is None:
            target_real_BL = with_start_token(model, target_real_BL)
    nonfinite_B = nonfinite_texts(run, real_BM, target_real_BL)
    patterns = attention_patterns(run, real_BM, target_real_BL, nonfinite_B)
    return Observation(real_BM, target_real_BL, nonfinite_B, patterns, run.masks, model, batch, run)


def observe_mask(pattern: AttentionPattern, mask: MaskSummary, real: Tensor, other_real: Tensor | None) -> Observation:
    """Return the observation of one mask without a model."""
    return Observation(real, other_real, torch.zeros(len(real), dtype=torch.bool), [pattern], [mask])
