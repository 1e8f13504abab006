"""Foreign checkpoints <-> our models."""

from pathlib import Path

from clearhead.checkpoints import directory
from clearhead.checkpoints.bert import BERT
from clearhead.checkpoints.family import Family
from clearhead.models.encoder import EncoderModel

FAMILIES: dict[str, Family] = {family.model_type: family for family in (BERT,)}


def load_encoder(folder: Path) -> tuple[EncoderModel, Family]:
    """The encoder in a folder, in float32 and evaluation mode, and the family that its files belong to.

    Raises:
        ValueError: files that are missing or broken, an architecture or a config key that is not understood.
    """
    data = directory.read_json(folder / "config.json")
    model_type = data.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(
            f"{folder / 'config.json'} says model_type={model_type!r}, which is not supported; "
            f"these are: {', '.join(FAMILIES)}"
        )
    family = FAMILIES[model_type]
    return family.load(folder, data), family
