"""Foreign checkpoints <-> our models."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.families.bart import BART, MBART
from clearhead.checkpoints.families.bert import BERT
from clearhead.checkpoints.families.distilbert import DISTILBERT
from clearhead.checkpoints.families.m2m_100 import M2M_100
from clearhead.checkpoints.families.marian import MARIAN
from clearhead.checkpoints.families.modernbert import MODERNBERT
from clearhead.checkpoints.families.mpnet import MPNET
from clearhead.checkpoints.families.pegasus import PEGASUS
from clearhead.checkpoints.families.roberta import ROBERTA, XLM_ROBERTA
from clearhead.checkpoints.families.t5 import MT5, T5
from clearhead.checkpoints.masked_lm import load_masked_lm_of
from clearhead.checkpoints.masked_lm import new_masked_lm as new_masked_lm
from clearhead.checkpoints.masked_lm import save_masked_lm as save_masked_lm
from clearhead.checkpoints.new_heads import new_classifier as new_classifier
from clearhead.checkpoints.new_heads import new_span_classifier as new_span_classifier
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.checkpoints.warm_start import reinitialize_half as reinitialize_half
from clearhead.checkpoints.warm_start import seq2seq_from_encoder as seq2seq_from_encoder
from clearhead.io.json import read_json
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, MaskedLanguageModel, SpanClassifier
from clearhead.models.seq2seq import Seq2Seq

FAMILIES: dict[str, EncoderFamily] = {
    family.model_type: family for family in (BERT, ROBERTA, XLM_ROBERTA, DISTILBERT, MPNET, MODERNBERT)
}
SEQ2SEQ_FAMILIES: dict[str, Seq2SeqFamily] = {
    family.model_type: family for family in (MARIAN, BART, T5, MT5, MBART, PEGASUS, M2M_100)
}


CheckpointType = Literal["seq2seq", "classification", "span", "encoder"]
"""Encoder–decoder, encoder with a classification head, encoder with a span head, or any other encoder."""


def checkpoint_type(folder: Path) -> CheckpointType:
    """Return the type of the checkpoint in a folder, from its config.json.

    A folder without a config.json counts as an encoder: the loaders report what is missing or not supported.
    """
    if not (folder / "config.json").is_file():
        return "encoder"
    if str(read_json(folder / "config.json").get("model_type")) in SEQ2SEQ_FAMILIES:
        return "seq2seq"
    named = architecture(folder)
    if named.endswith("ForSequenceClassification"):
        return "classification"
    return "span" if named.endswith("ForQuestionAnswering") else "encoder"


def architecture(folder: Path) -> str:
    """The class that transformers opens a folder with, as its config.json names it; "" where it names none."""
    return str((read_json(folder / "config.json").get("architectures") or [""])[0])


def load_encoder(folder: Path) -> tuple[EncoderModel, EncoderFamily]:
    """The encoder in a folder, in float32 and evaluation mode, and the family that its files belong to.

    Raises:
        ValueError: files that are missing or broken, an architecture or a config key that is not understood.
    """
    family, data = _family(folder)
    return family.load(folder, data), family


def load_classifier(folder: Path) -> tuple[EncoderClassifier, EncoderFamily]:
    """The encoder in a folder with its classification head, as `load_encoder`."""
    family, data = _family(folder)
    return cast(EncoderClassifier, family.load_with_head(folder, data, "classification")), family


def load_span_reader(folder: Path) -> tuple[SpanClassifier, EncoderFamily]:
    """The encoder in a folder with its head for answers as spans of the text, as `load_encoder`."""
    family, data = _family(folder)
    return cast(SpanClassifier, family.load_with_head(folder, data, "span")), family


def load_masked_lm(folder: Path) -> tuple[MaskedLanguageModel, EncoderFamily]:
    """The encoder in a folder with its head for hidden tokens, as `load_encoder`; `save_masked_lm` writes it.

    Where the folder holds no such head, a new one is drawn from torch's random numbers, and a warning logged: to go on
    with the pretraining of any encoder is a common case. A pooler, which this training does not reach, is left aside.
    """
    family, data = _family(folder)
    return load_masked_lm_of(folder, family, data), family


def load_seq2seq(folder: Path) -> tuple[Seq2Seq, Seq2SeqFamily]:
    """The encoder–decoder in a folder, as `load_encoder`."""
    family = seq2seq_family(folder)
    return family.load(folder, read_json(folder / "config.json")), family


def seq2seq_family(folder: Path) -> Seq2SeqFamily:
    """The family of the encoder–decoder in a folder.

    Raises:
        ValueError: it holds none, or one that is not understood.
    """
    model_type = read_json(folder / "config.json").get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        raise ValueError(
            f"{folder} holds a {model_type} model, which is an encoder without a decoder; generating text needs an "
            f"encoder–decoder: {', '.join(SEQ2SEQ_FAMILIES)}"
        )
    if not isinstance(model_type, str) or model_type not in SEQ2SEQ_FAMILIES:
        raise ValueError(_unknown(folder, model_type, SEQ2SEQ_FAMILIES))
    return SEQ2SEQ_FAMILIES[model_type]


def _family(folder: Path) -> tuple[EncoderFamily, dict[str, Any]]:
    data = read_json(folder / "config.json")
    model_type = data.get("model_type")
    if isinstance(model_type, str) and model_type in SEQ2SEQ_FAMILIES:
        raise ValueError(
            f"{folder} holds a {model_type} model, an encoder–decoder; an encoder is wanted: {', '.join(FAMILIES)}"
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(_unknown(folder, model_type, FAMILIES))
    return FAMILIES[model_type], data


def _unknown(folder: Path, model_type: object, known: Iterable[str]) -> str:
    listed = ", ".join(known)
    return f"{folder / 'config.json'} says model_type={model_type!r}, which is not supported; these are: {listed}"
