"""Foreign checkpoints <-> our models."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

from clearhead.checkpoints import directory
from clearhead.checkpoints.bart import BART, MBART
from clearhead.checkpoints.bert import BERT
from clearhead.checkpoints.distilbert import DISTILBERT
from clearhead.checkpoints.family import Family
from clearhead.checkpoints.fresh import fresh_classifier as fresh_classifier
from clearhead.checkpoints.fresh import fresh_span_reader as fresh_span_reader
from clearhead.checkpoints.m2m_100 import M2M_100
from clearhead.checkpoints.marian import MARIAN
from clearhead.checkpoints.masked import fresh_masked_lm as fresh_masked_lm
from clearhead.checkpoints.masked import load_masked_lm_of
from clearhead.checkpoints.masked import save_masked_lm as save_masked_lm
from clearhead.checkpoints.modernbert import MODERNBERT
from clearhead.checkpoints.mpnet import MPNET
from clearhead.checkpoints.pegasus import PEGASUS
from clearhead.checkpoints.roberta import ROBERTA, XLM_ROBERTA
from clearhead.checkpoints.seq2seq import Seq2SeqFamily
from clearhead.checkpoints.t5 import MT5, T5
from clearhead.checkpoints.warm import decoder_on as decoder_on
from clearhead.checkpoints.warm import with_fresh as with_fresh
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, MaskedLanguageModel, SpanReader
from clearhead.models.seq2seq import Seq2Seq

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (BERT, ROBERTA, XLM_ROBERTA, DISTILBERT, MPNET, MODERNBERT)
}
SEQ2SEQ_FAMILIES: dict[str, Seq2SeqFamily] = {
    family.model_type: family for family in (MARIAN, BART, T5, MT5, MBART, PEGASUS, M2M_100)
}


def is_seq2seq(folder: Path) -> bool:
    """Whether a folder holds an encoder–decoder; what else it holds, or does not, is for the loaders to say."""
    config = folder / "config.json"
    return config.is_file() and str(directory.read_json(config).get("model_type")) in SEQ2SEQ_FAMILIES


def architecture(folder: Path) -> str:
    """The class that transformers opens a folder with, as its config.json names it; "" where it names none."""
    return str((directory.read_json(folder / "config.json").get("architectures") or [""])[0])


def head_in(folder: Path) -> Literal["classification", "span"] | None:
    """The head over the encoder in a folder, as its config.json names the architecture."""
    named = architecture(folder)
    if named.endswith("ForSequenceClassification"):
        return "classification"
    return "span" if named.endswith("ForQuestionAnswering") else None


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


def load_masked_lm(folder: Path) -> tuple[MaskedLanguageModel, Family]:
    """The encoder in a folder with its head for hidden tokens, as `load_encoder`; `save_masked_lm` writes it.

    Where the folder holds no such head, a new one is drawn from torch's random numbers, and a warning logged: to go on
    with the pretraining of any encoder is a common case. A pooler, which this training does not reach, is left aside.
    """
    family, data = _family(folder)
    return load_masked_lm_of(folder, family, data), family


def load_seq2seq(folder: Path) -> tuple[Seq2Seq, Seq2SeqFamily]:
    """The encoder–decoder in a folder, as `load_encoder`."""
    family = seq2seq_family(folder)
    return family.load(folder, directory.read_json(folder / "config.json")), family


def seq2seq_family(folder: Path) -> Seq2SeqFamily:
    """The family of the encoder–decoder in a folder.

    Raises:
        ValueError: it holds none, or one that is not understood.
    """
    model_type = directory.read_json(folder / "config.json").get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        raise ValueError(
            f"{folder} holds a {model_type} model, which is an encoder without a decoder; generating text needs an "
            f"encoder–decoder: {', '.join(SEQ2SEQ_FAMILIES)}"
        )
    if not isinstance(model_type, str) or model_type not in SEQ2SEQ_FAMILIES:
        raise ValueError(_unknown(folder, model_type, SEQ2SEQ_FAMILIES))
    return SEQ2SEQ_FAMILIES[model_type]


def _family(folder: Path) -> tuple[Family, dict[str, Any]]:
    data = directory.read_json(folder / "config.json")
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
