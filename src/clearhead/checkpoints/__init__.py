"""Foreign checkpoints <-> our models."""

from pathlib import Path
from typing import Any, cast

from clearhead.checkpoints import directory
from clearhead.checkpoints.bert import BERT
from clearhead.checkpoints.distilbert import DISTILBERT
from clearhead.checkpoints.family import Family
from clearhead.checkpoints.modernbert import MODERNBERT
from clearhead.checkpoints.mpnet import MPNET
from clearhead.checkpoints.roberta import ROBERTA, XLM_ROBERTA
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, SpanReader

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (BERT, ROBERTA, XLM_ROBERTA, DISTILBERT, MPNET, MODERNBERT)
}


def load_encoder(folder: Path) -> tuple[EncoderModel, Family]:
    """The encoder in a folder, in float32 and evaluation mode, and the family that its files belong to.

    Raises:
        ValueError: files that are missing or broken, an architecture or a config key that is not understood.
    """
    family, data = _family(folder)
    return family.load(folder, data), family


def load_classifier(folder: Path) -> tuple[EncoderClassifier, Family]:
    """The encoder in a folder with its classification head, as `load_encoder`."""
    family, data = _family(folder)
    return cast(EncoderClassifier, family.load_with_head(folder, data, "classification")), family


def load_span_reader(folder: Path) -> tuple[SpanReader, Family]:
    """The encoder in a folder with its head for answers as spans of the text, as `load_encoder`."""
    family, data = _family(folder)
    return cast(SpanReader, family.load_with_head(folder, data, "span")), family


def _family(folder: Path) -> tuple[Family, dict[str, Any]]:
    data = directory.read_json(folder / "config.json")
    model_type = data.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"{folder / 'config.json'} says model_type={model_type!r}, which is not supported; "
            f"these are: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type], data
