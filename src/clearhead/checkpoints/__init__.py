"""Load and save checkpoints of other libraries: encoders, encoder–decoders, heads and tokenizers."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from clearhead.checkpoints.encoder_family import ENCODER_FAMILIES as ENCODER_FAMILIES
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.masked_lm import load_masked_lm_of
from clearhead.checkpoints.masked_lm import new_masked_lm as new_masked_lm
from clearhead.checkpoints.masked_lm import save_masked_lm as save_masked_lm
from clearhead.checkpoints.new_heads import new_classifier as new_classifier
from clearhead.checkpoints.new_heads import new_span_classifier as new_span_classifier
from clearhead.checkpoints.schema.config_schema import unchanged
from clearhead.checkpoints.seq2seq_family import SEQ2SEQ_FAMILIES as SEQ2SEQ_FAMILIES
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.checkpoints.warm_start import reinitialize_half as reinitialize_half
from clearhead.checkpoints.warm_start import seq2seq_from_encoder as seq2seq_from_encoder
from clearhead.io.json import read_json
from clearhead.models.config import EncoderConfig, Seq2SeqConfig
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, MaskedLanguageModel, SpanClassifier
from clearhead.models.seq2seq import Seq2Seq
from clearhead.tokenizers.auto import TokenizerFormat, tokenizer_from_folder
from clearhead.tokenizers.base import TextTokenizer

log = logging.getLogger(__name__)

Family = TypeVar("Family")


CheckpointType = Literal["seq2seq", "classification", "reranking", "span", "encoder"]
"""Encoder–decoder; encoder with a head of several classes, of one score, or for spans; or any other encoder."""


def checkpoint_type(folder: Path) -> CheckpointType:
    """Return the type of the checkpoint in a folder, from its config.json.

    A folder without a config.json counts as an encoder, so that `load_encoder` reports the missing file.
    """
    if not (folder / "config.json").is_file():
        return "encoder"
    data = _read_config(folder)
    if str(data.get("model_type")) in SEQ2SEQ_FAMILIES:
        return "seq2seq"
    named = architecture(folder)
    if named.endswith("ForSequenceClassification"):
        labels = data.get("id2label")
        return "reranking" if isinstance(labels, dict) and len(labels) == 1 else "classification"
    return "span" if named.endswith("ForQuestionAnswering") else "encoder"


def architecture(folder: Path) -> str:
    """Return the class that transformers opens a folder with, from config.json; "" if it has none."""
    named = _read_config(folder).get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def load_encoder(
    folder: Path,
    configure: Callable[[EncoderConfig], EncoderConfig] = unchanged,
    *,
    adapter: str | None = None,
) -> tuple[EncoderModel, EncoderFamily]:
    """Return the encoder in a folder, in float32 and evaluation mode, and its family.

    Args:
        folder: the model folder.
        configure: changes the config before the model is built, such as its dropout rates.
        adapter: the name of a low-rank adapter of the folder to merge into the weights; None for none.

    Raises:
        ValueError: a file is missing or broken, or an architecture or a config key is not supported.
    """
    family, data = _encoder_family(folder)
    return family.load(folder, data, configure, adapter), family


def load_classifier(
    folder: Path,
    configure: Callable[[EncoderConfig], EncoderConfig] = unchanged,
    *,
    head_drop_prob: float | None = None,
) -> tuple[EncoderClassifier, EncoderFamily]:
    """Return the encoder in a folder with its classification head, and its family; errors as in `load_encoder`.

    Args:
        folder: the model folder.
        configure: as in `load_encoder`.
        head_drop_prob: dropout of the head instead of the saved rate.
    """
    family, data = _encoder_family(folder)
    model = family.load_with_head(folder, data, "classification", configure, head_drop_prob)
    return cast(EncoderClassifier, model), family


def load_span_classifier(folder: Path) -> tuple[SpanClassifier, EncoderFamily]:
    """Return the encoder in a folder with its head for answer spans, and its family; errors as in `load_encoder`."""
    family, data = _encoder_family(folder)
    return cast(SpanClassifier, family.load_with_head(folder, data, "span")), family


def load_masked_lm(
    folder: Path, configure: Callable[[EncoderConfig], EncoderConfig] = unchanged
) -> tuple[MaskedLanguageModel, EncoderFamily]:
    """Return the masked language model in a folder, and its family; `save_masked_lm` saves it.

    If the folder has no head for masked language modeling, a warning is logged and the head is initialized at random:
    continuing the pretraining of an encoder is common. A pooler is ignored, because this training does not use it.

    Raises:
        ValueError: as in `load_encoder`.
    """
    family, data = _encoder_family(folder)
    return load_masked_lm_of(folder, family, data, configure), family


def load_seq2seq(
    folder: Path, configure: Callable[[Seq2SeqConfig], Seq2SeqConfig] = unchanged
) -> tuple[Seq2Seq, Seq2SeqFamily]:
    """Return the encoder–decoder in a folder, and its family; errors as in `load_encoder`."""
    family = get_seq2seq_family(folder)
    _warn_if_interrupted(folder)
    return family.load(folder, _read_config(folder), configure), family


def load_tokenizer(folder: Path, model_type: str) -> TextTokenizer:
    """Return the tokenizer in a model folder: from tokenizer.json, else from the vocabulary files of its family.

    Args:
        folder: the model folder.
        model_type: the value of model_type in config.json, such as "marian".

    Raises:
        ValueError: a file is missing or broken, or sentencepiece is required but not installed.

    >>> from clearhead.checkpoints import load_tokenizer
    >>> from clearhead.io.hub import resolve_model
    >>> tokenizer = load_tokenizer(resolve_model("all-MiniLM-L6-v2"), "bert")
    >>> tokenizer.decode(tokenizer.encode(["The old bridge."])[0].ids)
    'the old bridge.'
    """
    family = ENCODER_FAMILIES.get(model_type) or SEQ2SEQ_FAMILIES.get(model_type)
    return tokenizer_from_folder(folder, family.tokenizer if family else TokenizerFormat())


def get_seq2seq_family(folder: Path) -> Seq2SeqFamily:
    """Return the family of the encoder–decoder in a folder.

    Raises:
        ValueError: config.json is missing, or its model type is not that of a supported encoder–decoder.
    """
    model_type = _read_config(folder).get("model_type")
    if isinstance(model_type, str) and model_type in ENCODER_FAMILIES:
        raise ValueError(
            f"{folder} holds a {model_type} model, which is an encoder without a decoder. To generate text, use an "
            f"encoder–decoder: {', '.join(SEQ2SEQ_FAMILIES)}"
        )
    return _find_family(folder, model_type, SEQ2SEQ_FAMILIES)


def _encoder_family(folder: Path) -> tuple[EncoderFamily, dict[str, Any]]:
    data = _read_config(folder)
    model_type = data.get("model_type")
    if isinstance(model_type, str) and model_type in SEQ2SEQ_FAMILIES:
        raise ValueError(
            f"{folder} holds a {model_type} model, an encoder–decoder; expected an encoder: "
            f"{', '.join(ENCODER_FAMILIES)}"
        )
    _warn_if_interrupted(folder)
    for family in ENCODER_FAMILIES.values():
        if family.also_reads and all(data.get(key) == value for key, value in family.also_reads.items()):
            return family, data
    return _find_family(folder, model_type, ENCODER_FAMILIES), data


def _find_family(folder: Path, model_type: object, families: Mapping[str, Family]) -> Family:
    if not isinstance(model_type, str) or model_type not in families:
        raise ValueError(
            f"{folder / 'config.json'} has model_type={model_type!r:.80}, which is not supported. "
            f"Use one of: {', '.join(families)}"
        )
    return families[model_type]


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json.

    Raises:
        ValueError: the file is missing or broken. The message names a training run that has not saved a model yet.
    """
    if not (folder / "config.json").exists() and (folder / "recipe.yaml").exists():
        raise ValueError(f"{folder} is a training run that has not saved a model yet; continue it with --resume")
    return read_json(folder / "config.json")


def _warn_if_interrupted(folder: Path) -> None:
    """Log a warning if a folder holds the model of an interrupted training run."""
    with contextlib.suppress(ValueError):  # most folders have no such file; a broken one is ignored
        if read_json(folder / "training.json").get("finished") is False:
            log.warning("%s is the model of an interrupted training run; train --resume continues the run", folder)
