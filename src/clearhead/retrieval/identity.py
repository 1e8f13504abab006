"""The model and the settings that made the vectors of an index, and the check of another model against them."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearhead.checkpoints.schema.config_schema import RATES
from clearhead.data.lines import content_hash
from clearhead.io.safetensors import weights_hash
from clearhead.models.config import EncoderConfig
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.precision import INT8
from clearhead.runtime.vectors import EncodeOptions

QUERY_PROMPT = "query"
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of prompts that a model may have for queries and documents, as in sentence-transformers."""

_TITLES = {
    "weights": "weights",
    "int8_weights": "8-bit weights",
    "tokenizer": "tokenizer",
    "pooling": "pooling",
    "normalize": "normalization",
    "max_length": "maximum length",
    "model_pooling": "default pooling",
    "model_normalize": "default normalization",
    "model_max_length": "default maximum length",
    "model_prompts": "prompts",
    "model_default_prompt": "default prompt",
    "model_pool_prompt": "pooling of the prompt",
    "truncate_dim": "number of dimensions",
    "prompt": "prompt of documents",
    "query_prompt": "prompt of queries",
}
"""What each compared value is called in messages."""


class OtherModelError(ValueError):
    """A model that did not make the index."""


def describe_encoder(encoder: TextEncoder, options: EncodeOptions, query_prompt: str | None) -> dict[str, Any]:
    """Return the hashes of a model, and the settings of its vectors without defaults.

    Args:
        encoder: the model.
        options: arguments of `TextEncoder.encode` for documents. By default an index has normalized vectors, and the
            model's prompt for documents if it has one.
        query_prompt: name or text of the prompt of queries; None for the model's prompt for queries, else its default.
    """
    settings, prompts = encoder.settings, encoder.settings.prompts
    document_prompt = options.prompt
    if document_prompt is None:
        document_prompt = next((name for name in DOCUMENT_PROMPTS if name in prompts), None)
    if query_prompt is None and QUERY_PROMPT in prompts:
        query_prompt = QUERY_PROMPT
    return {
        **describe_model(encoder),
        "pooling": options.pooling or settings.pooling,
        "normalize": True if options.normalize is None else options.normalize,
        "max_length": options.max_length or settings.max_length,
        "truncate_dim": encoder.width(options.truncate_dim),
        "prompt": settings.prompt_text(document_prompt),
        "query_prompt": settings.prompt_text(query_prompt),
    }


def describe_model(encoder: TextEncoder) -> dict[str, Any]:
    """Return name, precision and hashes of a model."""
    folder = Path(encoder.name)
    int8 = encoder.precision.name == INT8.name and encoder.int8.file is not None
    return {
        "model": str(folder.resolve()) if folder.is_dir() else encoder.name,
        "precision": encoder.precision.name,
        "weights": weights_hash(encoder.model.state_dict()),
        "int8_weights": str(content_hash(encoder.int8.file))[:16] if int8 and encoder.int8.file else None,
        "config": _describe_config(encoder.model.config),
        "tokenizer": weights_hash({}, encoder.tokenizer.as_json().encode()),
        **{f"model_{name}": value for name, value in dataclasses.asdict(encoder.settings).items()},
    }


def _describe_config(config: EncoderConfig) -> dict[str, Any]:
    """Return the fields of a config that change vectors, as JSON holds them: without rates of dropout."""
    fields = dataclasses.asdict(config)
    for name in (*RATES, "drop_prob", "initializer_range"):
        fields.pop(name, None)
    described: dict[str, Any] = json.loads(json.dumps(fields))
    return described


def _first_difference(stored: object, now: dict[str, Any]) -> str:
    before = stored if isinstance(stored, dict) else {}
    name = next(name for name in [*now, *before] if before.get(name) != now.get(name))
    return f"{name} is {before.get(name)!r} in the index, and {now.get(name)!r}"


def options_of(description: Mapping[str, Any], *, for_queries: bool = False) -> EncodeOptions:
    """Return the arguments of `TextEncoder.encode` that a description states, for documents or for queries."""
    return EncodeOptions(
        pooling=description["pooling"],
        normalize=description["normalize"],
        max_length=description["max_length"],
        prompt=description["query_prompt" if for_queries else "prompt"],
        truncate_dim=description["truncate_dim"],
    )


def check_same_model(folder: Path, made_by: Mapping[str, Any], encoder: TextEncoder) -> None:
    """Check that a model is the one that made an index.

    float32 and bfloat16 may differ: they are the same model in another rounding.

    Args:
        folder: the index, for messages.
        made_by: the description in the index.
        encoder: the model.

    Raises:
        OtherModelError: it is not; the message names the first difference.
    """
    fix = f"Use the model {made_by['model']}, or build the index again"
    for name, value in describe_model(encoder).items():
        if name == "config" and made_by.get(name) != value:
            raise OtherModelError(
                f"{folder} was made by a model of another architecture: "
                f"{_first_difference(made_by.get(name), value)} in {encoder.name}. {fix}"
            )
        if name in _TITLES and made_by.get(name) != value:
            raise OtherModelError(
                f"{folder} was made by a model with other {_TITLES[name]}: {made_by.get(name)!r} in the index, "
                f"{value!r} in {encoder.name}. {fix}"
            )
    one, other = made_by["precision"], encoder.precision.name
    if one != other and INT8.name in (one, other):
        raise OtherModelError(f"{folder} was made in precision {one}, and the model computes in {other}. {fix}")


def check_same_settings(folder: Path, made_by: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that documents to append get vectors of the same model and settings as those of an index.

    Raises:
        OtherModelError: they do not; the message names the first difference.
    """
    for name, title in _TITLES.items():
        if name in now and made_by.get(name) != now[name]:
            raise OtherModelError(
                f"{folder} has another {title}: {made_by.get(name)!r} in the index, {now[name]!r} now. All vectors of "
                "an index need the same one"
            )
