"""Texts whose vectors show whether a model still computes as it did when it made an index."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.io.json import read_json, write_json
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.retrieval import identity
from clearhead.retrieval.identity import OtherModelError
from clearhead.retrieval.manifest import CANARIES_FILE, MANIFEST, IndexFolderError
from clearhead.runtime.vectors import Vectors

_SENTENCE = "The committee met on Tuesday to discuss the new bridge, its cost, and the noise that it would cause. "
TEXTS = (
    "a",
    "Hello",
    "hello",
    "HELLO, WORLD!",
    "The old bridge was closed after the storm.",
    "Who closed the old bridge, and when?",
    "It did not rain yesterday.",
    "It rained yesterday.",
    "To be, or not to be: that is the question.",
    "3.14159 is not 22/7, but 1,000,000 is 10^6.",
    "SELECT name FROM users WHERE id = 42;",
    "def area(r): return 3.14 * r ** 2",
    "https://example.org/search?q=index&lang=en#results",
    "someone@example.org wrote on 2024-02-29 at 23:59.",
    "An umlaut changes a word: schon, schön.",
    "Où est la bibliothèque ? À côté du café.",
    "¿Dónde está la estación de tren?",
    "Być albo nie być, oto jest pytanie.",
    "Съешь ещё этих мягких французских булок.",
    "كل عام وأنتم بخير",
    "नमस्ते दुनिया",
    "今天天气很好，我们去公园吧。",
    "東京は日本の首都です。",
    "서울은 대한민국의 수도입니다.",
    "🙂🚀 emoji and ünïcödé",
    "tabs\tand\nnew lines  and   spaces",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "word " * 20,
    _SENTENCE * 3,
    _SENTENCE * 8,
    _SENTENCE * 30 + "The end of a long text.",
    "x" * 600,
)
"""32 texts of several languages and lengths; long ones show the truncation."""

BOUNDS = {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.1}
"""Largest relative distance of two vectors of one text that the kernels of different processors may cause."""

_computed: dict[str, Vectors] = {}
"""Vectors of this process, by model and settings."""


def compute(encoder: TextEncoder, made_by: Mapping[str, Any], *, for_queries: bool = False) -> Vectors:
    """Return the vectors (32, d) of the texts, once per process for each model and settings.

    Args:
        encoder: the model.
        made_by: the description of an index, with the settings of its vectors.
        for_queries: whether the texts count as queries.
    """
    options = identity.options_of(made_by, for_queries=for_queries)
    key = repr((identity.describe_model(encoder), options, str(encoder.device)))
    if key not in _computed:
        tokens = encoder.tokenize(TEXTS, max_length=options.max_length, prompt=options.prompt)
        _computed[key] = np.asarray(encoder.encode_tokens(tokens, options), np.float32)
    return _computed[key]


def write(folder: Path, encoder: TextEncoder, query_encoder: TextEncoder, made_by: Mapping[str, Any]) -> None:
    """Write the vectors of the texts into the folder of an index, and those as queries if they have another model."""
    data = {"texts": TEXTS, "vectors": compute(encoder, made_by).tolist()}
    if query_encoder is not encoder:
        data["query_vectors"] = compute(query_encoder, made_by, for_queries=True).tolist()
    write_json(folder / CANARIES_FILE, data)


def read_vectors(folder: Path, made_by: Mapping[str, Any], *, for_queries: bool = False) -> Vectors:
    """Return the vectors (32, d) of the texts that an index has, as documents or as queries of another model.

    Raises:
        IndexFolderError: their file is missing or damaged.
    """
    try:
        data = read_json(folder / CANARIES_FILE)
        with np.errstate(over="ignore"):
            vectors = np.array(data["query_vectors" if for_queries else "vectors"], np.float32)
        is_finite = bool(np.isfinite(vectors).all())
        if tuple(data["texts"]) != TEXTS or not is_finite or vectors.shape != (len(TEXTS), made_by["truncate_dim"]):
            raise ValueError
    except (ValueError, KeyError, TypeError, OverflowError):
        raise IndexFolderError(f"{folder / CANARIES_FILE} is damaged. Copy or build the index again") from None
    return vectors


def check(folder: Path, encoder: TextEncoder, made_by: Mapping[str, Any], *, for_queries: bool = False) -> None:
    """Check that a model still gives the texts the vectors that an index has.

    Equation: max_i ‖u_i − v_i‖ / ‖v_i‖ ≤ b, with b from `BOUNDS` for the coarser of the two precisions

    Args:
        folder: the index.
        encoder: the model.
        made_by: the description of the index.
        for_queries: whether it is the model of queries, which has another adapter.

    Raises:
        OtherModelError: a vector is farther away.
        IndexFolderError: the file of the vectors is damaged.
    """
    stored = read_vectors(folder, made_by, for_queries=for_queries)
    norms = np.maximum(np.linalg.norm(stored, axis=1), 1e-12)
    try:
        vectors = compute(encoder, made_by, for_queries=for_queries)
    except ValueError as error:  # a setting of the index that the model does not support
        raise IndexFolderError(f"{folder / MANIFEST}: {error}") from None
    distances = np.linalg.norm(vectors - stored, axis=1) / norms
    bound = max(BOUNDS.get(name, 0.1) for name in (made_by["precision"], encoder.precision.name))
    worst = int(np.argmax(np.nan_to_num(distances, nan=np.inf)))
    if not distances[worst] <= bound:
        raise OtherModelError(
            f"{folder} has other vectors than {encoder.name} computes now: that of the text {TEXTS[worst][:30]!r} "
            f"differs by {distances[worst]:.2g}, expected at most {bound:g}. Build the index again"
        )
