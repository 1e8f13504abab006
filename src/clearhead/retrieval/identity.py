"""The model and the settings that made the vectors of an index, and the check of another model against them."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clearhead.checkpoints.schema.adapters import plain_name
from clearhead.checkpoints.schema.config_schema import RATES
from clearhead.data.lines import content_hash
from clearhead.io.json import path_text
from clearhead.io.safetensors import weights_hash
from clearhead.models.config import EncoderConfig
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.precision import INT8
from clearhead.runtime.vectors import EncodeOptions

QUERY_PROMPT = "query"
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of prompts that a model may have for queries and documents, as in sentence-transformers."""

DOCUMENT_ADAPTER, QUERY_ADAPTER = "retrieval.passage", "retrieval.query"
"""Names of adapters for documents and queries, as in jina-embeddings-v3."""

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


_MAX_SHOWN = 300
"""Maximum number of characters of a value of the index in a message."""


class OtherModelError(ValueError):
    """A model that did not make the index."""


def load_query_encoder(encoder: TextEncoder, adapter: str | None) -> TextEncoder:
    """Return the model of queries: that of documents, or the same with another adapter.

    Args:
        encoder: the model of documents.
        adapter: the adapter of queries; "" for none. None for "retrieval.query" if documents have "retrieval.passage",
            else for that of documents.

    Raises:
        ValueError: the model has no such adapter.
    """
    if adapter is None:
        adapter = QUERY_ADAPTER if is_same_adapter(encoder.adapter, DOCUMENT_ADAPTER) else encoder.adapter
    if is_same_adapter(encoder.adapter, adapter):
        return encoder
    return TextEncoder.from_pretrained(
        encoder.name,
        precision=encoder.precision.name,
        device=str(encoder.device),
        revision=encoder.revision,
        adapter=adapter or None,
    )


def load_encoder(
    folder: Path,
    made_by: Mapping[str, Any],
    source: str | Path,
    precision: str | None,
    device: str,
    adapter: str | None = None,
) -> TextEncoder:
    """Load the model that made an index, for documents or for queries.

    Args:
        folder: the index, for messages.
        made_by: the description of the model.
        source: folder or Hub id of the model.
        precision: its precision; None for that of the index.
        device: as in `TextEncoder`.
        adapter: its adapter; "" for none, None for that of the index.

    Raises:
        ValueError: it cannot be loaded.
    """
    if Path(source).is_absolute() and not os.path.exists(source):  # Path.exists raises an error for a long name
        raise ValueError(
            f"the model of {folder} is not at {source!s:.500} any more. Name its new place with --model, or with "
            "Index.load_encoder() in Python"
        )
    try:
        return TextEncoder.from_pretrained(
            source,
            precision=precision or made_by["precision"],
            device=device,
            revision=made_by.get("revision") if source == made_by["model"] else None,
            adapter=made_by.get("adapter") if adapter is None else adapter or None,
        )
    except ValueError as error:
        raise ValueError(f"the model of {folder} cannot be loaded: {error}") from None


def is_same_adapter(one: str | None, other: str | None) -> bool:
    """Return whether two names are those of one adapter; None and "" are no adapter."""
    return plain_name(one or "") == plain_name(other or "")


def describe_encoder(
    encoder: TextEncoder, options: EncodeOptions, query_prompt: str | None, query_encoder: TextEncoder | None = None
) -> dict[str, Any]:
    """Return the hashes of a model, and the settings of its vectors without defaults.

    Args:
        encoder: the model.
        options: arguments of `TextEncoder.encode` for documents. By default an index has normalized vectors, and the
            model's prompt for documents if it has one.
        query_prompt: name or text of the prompt of queries; None for the model's prompt for queries, else its default.
        query_encoder: the model of queries, if it has another adapter.
    """
    settings = encoder.settings
    return {
        **describe_model(encoder),
        "pooling": options.pooling or settings.pooling,
        "normalize": True if options.normalize is None else options.normalize,
        "max_length": settings.max_length if options.max_length is None else options.max_length,
        "truncate_dim": encoder.width(options.truncate_dim),
        "prompt": _prompt(encoder, options.prompt, DOCUMENT_PROMPTS),
        "query_prompt": _prompt(query_encoder or encoder, query_prompt, (QUERY_PROMPT,)),
        "query_encoder": None if query_encoder in (None, encoder) else describe_model(query_encoder),
    }


def _prompt(encoder: TextEncoder, prompt: str | None, names: Sequence[str]) -> str:
    """Return the text of a prompt; by default that of the adapter, of one of several names, or of the model."""
    settings = encoder.settings
    if prompt is None and (encoder.adapter is None or not is_same_adapter(settings.default_prompt, encoder.adapter)):
        prompt = next((name for name in names if name in settings.prompts), None)
    return settings.prompt_text(prompt)


def describe_model(encoder: TextEncoder) -> dict[str, Any]:
    """Return name, revision, adapter, precision and hashes of a model."""
    folder = Path(encoder.name)
    int8 = encoder.precision.name == INT8.name and encoder.int8.file is not None
    return {
        "model": path_text(folder.resolve()) if folder.is_dir() else encoder.name,
        "revision": encoder.revision,
        "adapter": encoder.adapter,
        "precision": encoder.precision.name,
        "weights": weights_hash(encoder.model.state_dict()),
        "int8_weights": str(content_hash(encoder.int8.file))[:16] if int8 and encoder.int8.file else None,
        "config": _describe_config(encoder.model.config),
        "tokenizer": _tokenizer_hash(encoder),
        **{f"model_{name}": value for name, value in dataclasses.asdict(encoder.settings).items()},
    }


def _tokenizer_hash(encoder: TextEncoder) -> str:
    """Return a hash of the tokenizer.json, and of the only setting that it does not hold."""
    splits = encoder.tokenizer.backend.encode_special_tokens
    return weights_hash({}, (encoder.tokenizer.as_json() + ("splits special tokens" if splits else "")).encode())


def _describe_config(config: EncoderConfig) -> dict[str, Any]:
    """Return the fields of a config that change vectors, as JSON holds them: without rates of dropout."""
    fields = dataclasses.asdict(config)
    for name in (*RATES, "drop_prob", "initializer_range"):
        fields.pop(name, None)
    described: dict[str, Any] = json.loads(json.dumps(fields))
    return described


def _first_difference(stored: object, now: dict[str, Any]) -> str:
    before = stored if isinstance(stored, dict) else {}
    name = next(name for name in [*now, *before] if before.get(name, "missing") != now.get(name, "missing"))
    one, other = before.get(name, "missing"), now.get(name, "missing")
    return f"{name} is {one!r:.{_MAX_SHOWN}} in the index, and {other!r}"


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
    check_same_adapter(folder, made_by.get("adapter"), encoder.adapter)
    for name, value in describe_model(encoder).items():
        if name == "config" and made_by.get(name) != value:
            raise OtherModelError(
                f"{folder} was made by a model of another architecture: "
                f"{_first_difference(made_by.get(name), value)} in {encoder.name}. {fix}"
            )
        if name in _TITLES and made_by.get(name) != value:
            raise OtherModelError(
                f"{folder} was made by a model with other {_TITLES[name]}: {made_by.get(name)!r:.{_MAX_SHOWN}} in the "
                f"index, {value!r} in {encoder.name}{_other_revision(made_by, encoder)}. {fix}"
            )
    one, other = made_by["precision"], encoder.precision.name
    if one != other and INT8.name in (one, other):
        raise OtherModelError(f"{folder} was made in precision {one}, and the model computes in {other}. {fix}")


def check_same_adapter(folder: Path, stored: str | None, now: str | None, of: str = "") -> None:
    """Check that an adapter is that of an index, for documents or for queries.

    Raises:
        OtherModelError: it is not.
    """
    if not is_same_adapter(stored, now):
        before, after = (f"the adapter {name!r}" if name else "no adapter" for name in (stored, now))
        raise OtherModelError(
            f"{folder} was made with {before}{of}, and the model has {after}. Use the adapter of the index, or build "
            "the index again"
        )


def _other_revision(made_by: Mapping[str, Any], encoder: TextEncoder) -> str:
    before, now = made_by.get("revision"), encoder.revision
    if before == now or None in (before, now):
        return ""
    return f", which is revision {now} of the Hub and not {before}"


def check_same_settings(folder: Path, made_by: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that documents to append get vectors of the same model and settings as those of an index.

    Raises:
        OtherModelError: they do not; the message names the first difference.
    """
    for name, title in _TITLES.items():
        if name in now and made_by.get(name) != now[name]:
            raise OtherModelError(
                f"{folder} has another {title}: {made_by.get(name)!r:.{_MAX_SHOWN}} in the index, {now[name]!r} now. "
                "All vectors of an index need the same one"
            )
