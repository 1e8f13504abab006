"""Collect the data of an encoder's page: its run, vector and similarities, or the labels of a classifier."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.finite import check_finite
from clearhead.inspection.report.heatmaps import Json
from clearhead.inspection.report.page_recorder import MapIndex, run_data
from clearhead.inspection.trace.records import Operation, Recorder
from clearhead.models.config import Pooling
from clearhead.models.heads import EncoderClassifier, OutputHead, pool
from clearhead.pipelines.encoding.prompts import count_prompt_tokens
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.vectors import cosine_similarity, normalized

MAX_TEXTS = 12
"""Texts of a page: their table of cosines fits into the width of a phone."""
_NORMALIZE = Operation("normalize", normalized, "B D")
_PROBABILITIES = Operation("probabilities", TextClassifier, "B C")


def encoding_data(encoder: TextEncoder, texts: Sequence[str], full_maps: frozenset[MapIndex]) -> Json:
    """Return the steps of the first text, and the vectors and cosines of all.

    Args:
        encoder: the model in float32.
        texts: one to `MAX_TEXTS` texts.
        full_maps: attention maps to keep at full size.
    """
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ValueError(f"A page shows 1 to {MAX_TEXTS} texts, got {len(texts)}. Use clearhead encode for more.")
    tokens, settings = encoder.tokenize(texts), encoder.settings
    skip = 0 if settings.pool_prompt else count_prompt_tokens(encoder.tokenizer, settings.prompt_text(None))

    def vector_of(ids: Sequence[int], recorder: Recorder) -> Tensor:
        keep = (torch.arange(len(ids)) >= skip)[None]
        vector = _record_pooling(recorder, encoder.model(torch.tensor([ids])), keep, settings.pooling)
        if settings.normalize:
            vector = normalized(vector)
            recorder.record("normalize", _NORMALIZE, vector)
        return vector

    data = run_data(encoder.model, lambda recorder: vector_of(tokens[0].ids, recorder), full_maps)
    vectors = torch.cat([vector_of(one.ids, Recorder(values=False)) for one in tokens]).numpy()
    check_finite(vectors, "vector", range(len(texts)))
    data |= {"vectors": [[float(f"{value:.5g}") for value in vector] for vector in vectors.tolist()]}
    if len(texts) > 1:
        data |= {"texts": list(texts), "cosines": cosine_similarity(vectors, vectors).tolist()}
        data |= {"truncated_texts": [one.truncated for one in tokens]}
    return data | {
        "source": encoder.tokenizer.display_tokens(tokens[0].ids),
        "target": [],
        "truncated": tokens[0].truncated,
        "pooling": {"kind": settings.pooling, "skip": skip, "normalize": settings.normalize},
    }


def classification_data(classifier: TextClassifier, text: str, full_maps: frozenset[MapIndex]) -> Json:
    """Return the steps of a text up to the probability of each label."""
    (tokens,) = classifier.tokenizer.encode([text], classifier.max_length)
    ids, model = torch.tensor([tokens.ids]), classifier.model
    probabilities = torch.empty(0)

    def run(recorder: Recorder) -> None:
        nonlocal probabilities
        probabilities = classifier.probabilities(_record_head(recorder, model, model.encoder(ids)))
        recorder.record("head.probabilities", _PROBABILITIES, probabilities)

    data = run_data(model.encoder, run, full_maps)
    return data | {
        "source": classifier.tokenizer.display_tokens(tokens.ids),
        "target": [],
        "truncated": tokens.truncated,
        "labels": dict(zip(classifier.labels, probabilities[0].tolist(), strict=True)),
        "exclusive": classifier.exclusive,
        "pooling": {"kind": model.head_config.pooling, "skip": 0, "normalize": False},
    }


def _record_pooling(recorder: Recorder, hidden: Tensor, keep: Tensor, pooling: Pooling) -> Tensor:
    pooled = pool(hidden.float(), keep, pooling)
    recorder.record("pooling", Operation(f"{pooling} pooling", pool, "B D", case=pooling), pooled)
    return pooled


def _record_head(recorder: Recorder, model: EncoderClassifier, hidden: Tensor) -> Tensor:
    """Record pooling and head, and return the logits. With the pooling "late", the head runs before the mean."""
    config, head = model.head_config, model.head
    keep = torch.ones(hidden.shape[:2], dtype=torch.bool)
    optional = (("W_1", head.dense), ("act", head.activation), ("LN", head.norm))
    missing = [name for name, layer in optional if layer is None]
    note = f", without {', '.join(missing)}" if missing else ""
    logits = model.logits(hidden, keep)
    if config.pooling == "late":
        recorder.record("head", Operation("classifier", OutputHead, "B L C", note=note), head(hidden.float()), head)
        recorder.record("pooling", Operation("mean pooling", pool, "B C", case="mean"), logits)
    else:
        _record_pooling(recorder, hidden, keep, config.pooling)
        recorder.record("head", Operation("classifier", OutputHead, "B C", note=note), logits, head)
    return logits
