"""Recipe keys that were renamed, refused with their new names."""

from collections.abc import Mapping
from typing import Any

RENAMED_KEYS = {
    "model.start": "model.init_from",
    "model.encoder": "model.init_encoder_from",
    "model.decoder": "model.init_decoder_from",
    "model.layout": "model.architecture",
    "regularize.augmentation.noise": "regularize.augmentation.token_replacement",
    "regularize.augmentation.shuffling": "regularize.augmentation.local_shuffle",
    "regularize.distillation.sequence": "regularize.distillation.sequence_level",
    "training.accumulate": "training.gradient_accumulation_steps",
    "training.final": "training.final_weights",
    "training.shard": "training.fsdp",
    "validation.examples": "validation.max_examples",
    "validation.scores": "validation.metrics",
    "validation.select": "validation.monitor",
}
"""Old key to new key, with dots between sections."""


def check_renamed(data: Mapping[str, Any], prefix: str = "") -> None:
    """Check that a recipe uses no renamed key.

    Raises:
        ValueError: a renamed key; the message gives its new name.

    >>> check_renamed({"model": {"start": "runs/a"}})
    Traceback (most recent call last):
        ...
    ValueError: model.start was renamed to model.init_from
    """
    for key, value in data.items():
        path = f"{prefix}{key}"
        if path in RENAMED_KEYS:
            raise ValueError(f"{path} was renamed to {RENAMED_KEYS[path]}")
        if isinstance(value, Mapping):
            check_renamed(value, f"{path}.")
