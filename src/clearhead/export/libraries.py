"""Export models to folders of transformers, sentence-transformers and CTranslate2."""

import importlib
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clearhead.export import parity
from clearhead.export.output import ExportReport, export_folder
from clearhead.export.sample_texts import TEXTS, non_empty_texts
from clearhead.io.json import read_json, write_json
from clearhead.models.config import EncoderConfig
from clearhead.pipelines.auto import Pipeline, load_pipeline
from clearhead.pipelines.reranker import Reranker
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText


def to_transformers(model: str | Path, folder: str | Path, *, texts: Sequence[str] = TEXTS) -> ExportReport:
    """Export a model to a folder of transformers: weights, config, tokenizer and generation config.

    Args:
        model: a folder, or a Hub id.
        folder: the output folder.
        texts: the results of the export in transformers are compared with the model's on these texts.

    Raises:
        ValueError: transformers is not installed; the model does not exist; its family's format cannot hold a part of
            it; or the export computes other outputs, and nothing is written then. Also the errors of `export_folder`.
    """
    _require_libraries()
    texts = non_empty_texts(texts)
    with export_folder(model, folder, "transformers") as (output, report), parity.suppress_warnings():
        pipeline = load_pipeline(model)
        _check_positions(pipeline, model)
        pipeline.save_pretrained(output)
        report.error["in float32"] = parity.transformers_error(pipeline, output, texts)
    return report


def to_sentence_transformers(model: str | Path, folder: str | Path, *, texts: Sequence[str] = TEXTS) -> ExportReport:
    """Export an encoder to a folder of sentence-transformers with pooling and prompts, or a reranker as a CrossEncoder.

    Args:
        model, folder: as in `to_transformers`.
        texts: the results of the export in sentence-transformers are compared with the model's on these texts.

    Raises:
        ValueError: the model is an encoder–decoder, or its head gives several scores; also errors of `to_transformers`.
    """
    _require_libraries("sentence_transformers")
    texts = non_empty_texts(texts)
    with export_folder(model, folder, "sentence-transformers") as (output, report), parity.suppress_warnings():
        pipeline = load_pipeline(model)
        if not isinstance(pipeline, TextEncoder | Reranker):
            what = "a decoder" if isinstance(pipeline, TextToText) else "its head"
            raise ValueError(f"sentence-transformers does not support {what} of {model}")
        _check_positions(pipeline, model)
        pipeline.save_pretrained(output)
        report.error["in float32"] = parity.sentence_transformers_error(pipeline, output, texts)
    return report


def to_ctranslate2(
    model: str | Path, folder: str | Path, *, int8: bool = False, texts: Sequence[str] = TEXTS
) -> ExportReport:
    """Export a model to a folder of CTranslate2, with CTranslate2's own converter, and its tokenizer.

    Args:
        model, folder: as in `to_transformers`.
        int8: quantize the weights to 8 bits; the quality loss is measured on the texts.
        texts: the results of the float32 export in CTranslate2 are compared with the model's on these texts.

    Raises:
        ValueError: CTranslate2 or transformers is not installed; the converter does not support the model; or the
            export computes other outputs, and nothing is written then. Also the errors of `export_folder`.
    """
    _require_libraries("ctranslate2")
    texts = non_empty_texts(texts)
    with export_folder(model, folder, "ctranslate2") as (output, report), parity.suppress_warnings():
        pipeline = load_pipeline(model)
        if not isinstance(pipeline, TextEncoder | TextToText):
            raise ValueError(f"CTranslate2 does not support the head of {model}")
        with tempfile.TemporaryDirectory() as temporary:
            transformers_folder, float32_folder = Path(temporary) / "plain", Path(temporary) / "whole"
            pipeline.save_pretrained(transformers_folder)
            try:
                _convert(pipeline, transformers_folder, float32_folder)
                report.error["in float32"] = parity.ctranslate2_error(pipeline, float32_folder, texts)
                _convert(pipeline, transformers_folder, output, "int8" if int8 else None)
            except (ValueError, RuntimeError) as problem:  # CTranslate2 raises RuntimeErrors
                raise ValueError(
                    f"CTranslate2 does not support {model}: {problem}{_unsupported_parts(pipeline)}"
                ) from None
        if int8:
            report.loss.update(parity.ctranslate2_loss(pipeline, output, texts))
        if isinstance(pipeline, TextEncoder):
            report.missing = "pooling, normalization and prompts"
            pipeline.tokenizer.save(output, pipeline.settings.max_length)
        else:
            report.missing = "the generation config"
            pipeline.tokenizer.save(output, pipeline.max_length)
    return report


def _check_positions(pipeline: Pipeline, model: str | Path) -> None:
    """Check that transformers knows the model's positions.

    Raises:
        ValueError: they are linear biases (ALiBi). transformers would load the model as BERT, without them.
    """
    config = pipeline.model.config if isinstance(pipeline, TextEncoder | TextToText) else pipeline.model.encoder.config
    if isinstance(config, EncoderConfig) and config.positions == "alibi":
        raise ValueError(f"transformers does not have the positions of {model} (ALiBi), so it cannot open an export")


def _require_libraries(*libraries: str) -> None:
    """Check that libraries are installed.

    Raises:
        ValueError: a library is not installed.
    """
    for name in ("transformers", *libraries):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"this format needs {name}: pip install {name.replace('_', '-')}")


def _convert(pipeline: TextEncoder | TextToText, source: Path, output: Path, weights: str | None = None) -> None:
    """Convert a folder of transformers to CTranslate2.

    Raises:
        ValueError: the converter does not support the model.
    """
    from ctranslate2.converters import TransformersConverter

    # the converter reads keys that transformers 5 no longer writes
    if isinstance(pipeline, TextEncoder):
        legacy_keys: dict[str, Any] = {"position_embedding_type": "absolute"}
    else:
        config = pipeline.model.config
        legacy_keys = {"normalize_before": config.norm_order == "pre", "normalize_embedding": config.embedding_norm}
    write_json(source / "config.json", {**legacy_keys, **read_json(source / "config.json")})
    try:
        TransformersConverter(str(source)).convert(str(output), quantization=weights, force=True)
    except (NotImplementedError, AttributeError, AssertionError) as problem:
        raise ValueError(str(problem) or type(problem).__name__) from None
    written = read_json(output / "config.json")
    if written.get("bos_token", "") is None:  # CTranslate2 requires a BOS token, which the tokenizer of mBART-50 lacks
        write_json(output / "config.json", {**written, "bos_token": written["eos_token"]})


def _unsupported_parts(pipeline: TextEncoder | TextToText) -> str:
    """Return the known reasons why the converter fails for an encoder–decoder, as the end of a message."""
    if not isinstance(pipeline, TextToText):
        return ""
    config, parts = pipeline.model.config, []
    if config.decoder_num_heads not in (None, config.num_heads):
        parts.append(
            f"its decoder has {config.decoder_num_heads} heads, but CTranslate2 uses the number of the encoder"
        )
    elif pipeline.family.model_type == "marian":
        (start,) = pipeline.tokenizer.ids_to_tokens([config.start_id])
        if pipeline.model.target_embedding.tokens.weight[config.start_id].any():
            parts.append(f"the embedding of its start token, {start}, is not zero, but CTranslate2 uses zeros")
        else:
            parts.append(f"CTranslate2 removes {start} from the target vocabulary, which matters if it has probability")
    return "".join(f" ({part})" for part in parts)
