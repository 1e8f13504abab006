"""A model in the folder of another library that has weights of its own."""

import importlib
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clearhead.export import parity
from clearhead.export.output import ExportReport, export_folder
from clearhead.export.sample_texts import TEXTS, checked
from clearhead.io.json import read_json, write_json
from clearhead.pipelines.auto import load_pipeline
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText


def to_transformers(model: str | Path, folder: str | Path, *, texts: Sequence[str] = TEXTS) -> ExportReport:
    """Writes a model as transformers opens it: weights, config, tokenizer, settings of generation.

    Args:
        model: a folder, or a Hub id.
        folder: where to.
        texts: what it is compared on with the model, opened by transformers.

    Raises:
        ValueError: transformers is not installed; no such model, or a part of it that its family's format cannot hold;
            what is written computes something else: then nothing is there. As in `export_folder`, too.
    """
    _need()
    texts = checked(texts)
    with export_folder(model, folder, "transformers") as (part, told), parity.suppress_warnings():
        made = load_pipeline(model)
        made.save_pretrained(part)
        told.error["in float32"] = parity.transformers(made, part, texts)
    return told


def to_sentence_transformers(model: str | Path, folder: str | Path, *, texts: Sequence[str] = TEXTS) -> ExportReport:
    """Writes an encoder as sentence-transformers opens it: as `to_transformers`, with pooling and prompts.

    Args:
        model, folder: as in `to_transformers`.
        texts: what it is compared on with the model, opened by sentence-transformers.

    Raises:
        ValueError: an encoder–decoder, or an encoder with a head; and as in `to_transformers`.
    """
    _need("sentence_transformers")
    texts = checked(texts)
    with export_folder(model, folder, "sentence-transformers") as (part, told), parity.suppress_warnings():
        made = load_pipeline(model)
        if not isinstance(made, TextEncoder):
            what = "a decoder" if isinstance(made, TextToText) else "its head"
            raise ValueError(f"sentence-transformers has no place for {what} of {model}")
        made.save_pretrained(part)
        told.error["in float32"] = parity.sentence_transformers(made, part, texts)
    return told


def to_ctranslate2(
    model: str | Path, folder: str | Path, *, int8: bool = False, texts: Sequence[str] = TEXTS
) -> ExportReport:
    """Writes a model as CTranslate2 opens it, by CTranslate2's own converter, and its tokenizer.

    Args:
        model, folder: as in `to_transformers`.
        int8: weights in 8 bits; what that costs is measured on the texts.
        texts: what it is compared on with the model in float32, opened by CTranslate2.

    Raises:
        ValueError: CTranslate2 or transformers is not installed; the converter does not know a part of the model, or
            what it makes computes something else: then nothing is written. As in `export_folder`, too.
    """
    _need("ctranslate2")
    texts = checked(texts)
    with export_folder(model, folder, "ctranslate2") as (part, told), parity.suppress_warnings():
        made = load_pipeline(model)
        if not isinstance(made, TextEncoder | TextToText):
            raise ValueError(f"CTranslate2 has no place for the head of {model}")
        with tempfile.TemporaryDirectory() as held:
            plain, whole = Path(held) / "plain", Path(held) / "whole"
            made.save_pretrained(plain)
            try:
                _convert(made, plain, whole)
                told.error["in float32"] = parity.ctranslate2(made, whole, texts)
                _convert(made, plain, part, "int8" if int8 else None)
            except (ValueError, RuntimeError) as problem:  # CTranslate2 raises RuntimeErrors
                raise ValueError(f"CTranslate2 cannot hold {model}: {problem}{_parts(made)}") from None
        if int8:
            told.loss.update(parity.ctranslate2_loss(made, part, texts))
        if isinstance(made, TextEncoder):
            told.missing = "pooling, normalisation and prompts"
            made.tokenizer.save(part, made.settings.max_length)
        else:
            told.missing = "the settings of generation"
            made.tokenizer.save(part, made.max_length)
    return told


def _need(*libraries: str) -> None:
    """Makes libraries ready, without transformers' bars.

    Raises:
        ValueError: one is not installed.
    """
    for name in ("transformers", *libraries):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"this format needs {name}: pip install {name.replace('_', '-')}")
    logs: Any = importlib.import_module("transformers.utils.logging")  # it says nothing of its types
    logs.disable_progress_bar()


def _convert(made: TextEncoder | TextToText, plain: Path, place: Path, weights: str | None = None) -> None:
    """Converts a folder of transformers.

    Raises:
        ValueError: the converter cannot.
    """
    from ctranslate2.converters import TransformersConverter

    # the converter asks for keys that transformers 5 does not know any more
    if isinstance(made, TextEncoder):
        asked: dict[str, Any] = {"position_embedding_type": "absolute"}
    else:
        plan = made.model.config
        asked = {"normalize_before": plan.norm_order == "pre", "normalize_embedding": plan.embedding_norm}
    write_json(plain / "config.json", {**asked, **read_json(plain / "config.json")})
    try:
        TransformersConverter(str(plain)).convert(str(place), quantization=weights, force=True)
    except (NotImplementedError, AttributeError, AssertionError) as problem:
        raise ValueError(str(problem) or type(problem).__name__) from None
    written = read_json(place / "config.json")
    if written.get("bos_token", "") is None:  # a tokenizer without one, as mBART-50's; CTranslate2 would not open it
        write_json(place / "config.json", {**written, "bos_token": written["eos_token"]})


def _parts(made: TextEncoder | TextToText) -> str:
    """The parts of an encoder–decoder that the converter is known to leave out, as the end of a message."""
    if not isinstance(made, TextToText):
        return ""
    config, parts = made.model.config, []
    if config.decoder_num_heads not in (None, config.num_heads):
        parts.append(f"its decoder has {config.decoder_num_heads} heads; it gets as many as the encoder")
    elif made.family.model_type == "marian":
        (start,) = made.tokenizer.ids_to_tokens([config.start_id])
        if made.model.target_embedding.tokens.weight[config.start_id].any():
            parts.append(f"the embedding of its start token, {start}, is not zero; it gets a vector of zeros")
        else:
            parts.append(f"{start} is left out of its target's vocabulary, which shows where it has probability")
    return "".join(f" ({part})" for part in parts)
