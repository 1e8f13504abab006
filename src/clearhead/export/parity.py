"""Compare exported models, opened by their own libraries, with the original model."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from clearhead.equations import masks
from clearhead.export import example_inputs
from clearhead.io.json import read_json
from clearhead.models.heads import pool
from clearhead.pipelines.auto import Pipeline
from clearhead.pipelines.reranker import Reranker
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

MAX_ERROR = 1e-4
"""Maximum error in float32, relative to the largest absolute value of the output."""


_NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir", "transformers", "sentence_transformers", "clearhead")


@contextlib.contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress the warnings of converters about missing optional packages, and those about truncated example texts."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.root.addFilter(_is_not_from_onnxruntime)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.root.removeFilter(_is_not_from_onnxruntime)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _is_not_from_onnxruntime(record: logging.LogRecord) -> bool:
    """Return whether a record of the root logger is not the advice that ONNX Runtime's quantizer writes to it."""
    return "onnxruntime" not in record.pathname


def check_bound(error: float, what: str) -> float:
    """Return the error if it is within the bound.

    Raises:
        ValueError: it exceeds the bound.
    """
    if not error <= MAX_ERROR:
        raise ValueError(
            f"{what} {error:.1e} from the model's, relative to the largest value; at most {MAX_ERROR:.0e} is allowed"
        )
    return error


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected value; infinity for NaN or other shapes."""
    if result.shape != expected.shape:
        return float("inf")
    error = (result - expected).abs().max() / expected.abs().max().clamp(min=1.0)
    return float(error.nan_to_num(nan=float("inf")))


def cosine_loss(vectors: Tensor, reference: Tensor) -> dict[str, float]:
    """Return the smallest and mean cosine of vectors (B, D) with the float32 vectors."""
    cosines = functional.cosine_similarity(vectors, reference)
    return {"smallest cosine": float(cosines.min()), "mean cosine": float(cosines.mean())}


def log_prob_error(differences: Tensor) -> dict[str, float]:
    """Return the mean absolute change of log-probabilities relative to float32."""
    return {"mean change of a token's log-probability": float(differences.abs().mean())}


def transformers_error(pipeline: Pipeline, folder: Path, texts: Sequence[str]) -> float:
    """Return the largest relative error of hidden states, or of the logits of a head or decoder, in transformers.

    Args:
        made: the model.
        folder: the exported folder.
        texts: input texts, in addition to a row of the maximum length.

    Raises:
        ValueError: the error exceeds the bound.
    """
    import transformers as library

    auto_class: Any = library.AutoModelForQuestionAnswering
    if isinstance(pipeline, TextEncoder):
        auto_class = library.AutoModel
    elif isinstance(pipeline, TextToText):
        auto_class = library.AutoModelForSeq2SeqLM
    elif isinstance(pipeline, TextClassifier | Reranker):
        auto_class = library.AutoModelForSequenceClassification
    reference, error = auto_class.from_pretrained(folder, dtype=torch.float32).eval(), 0.0
    first, *others = example_inputs.example_inputs(pipeline, texts)
    for number, batch in enumerate(first.batches):
        keep, inputs, graph = batch["attention_mask"] != 0, dict(batch), first.graph
        if isinstance(pipeline, TextToText):
            graph, batch = others[0].graph, others[0].batches[number]
            inputs["decoder_input_ids"] = batch["input_ids"]
        with torch.inference_mode():
            outputs, expected = reference(**inputs), graph.module(*batch.values())
        if isinstance(pipeline, TextEncoder):
            pairs = [(outputs.last_hidden_state[keep], expected[1][keep])]
        elif isinstance(pipeline, TextToText):
            real = batch["input_ids"] != pipeline.model.config.pad_id
            real[:, 0] = True  # the start may be the padding token
            pairs = [(outputs.logits[real], expected[0][real])]
        elif isinstance(pipeline, TextClassifier | Reranker):
            pairs = [(outputs.logits, expected)]
        else:
            logits = outputs.start_logits, outputs.end_logits
            pairs = [(one[keep], other[keep]) for one, other in zip(logits, expected, strict=True)]
        error = max(error, *(relative_error(one, other) for one, other in pairs))
    return check_bound(error, f"{pipeline.name}: its hidden states or scores in transformers are")


def sentence_transformers_error(pipeline: TextEncoder | Reranker, folder: Path, texts: Sequence[str]) -> float:
    """Return the largest relative error of a vector or a score; arguments and errors as in `transformers_error`."""
    import sentence_transformers as library

    if isinstance(pipeline, Reranker):
        pairs = list(zip(texts, [*texts[1:], texts[0]], strict=True))
        scores = library.CrossEncoder(str(folder), device="cpu").predict(pairs)
        return check_bound(
            relative_error(torch.from_numpy(scores), torch.from_numpy(pipeline.score(pairs))),
            f"{pipeline.name}: its scores are",
        )
    reference = library.SentenceTransformer(str(folder), device="cpu")
    inputs = [*texts, " ".join([*texts] * (1 + 2 * pipeline.model.config.max_len // len(" ".join(texts).split())))]
    vectors = reference.encode(inputs, convert_to_numpy=True)
    return check_bound(
        relative_error(torch.from_numpy(vectors), torch.from_numpy(pipeline.encode(inputs))),
        f"{pipeline.name}: its vectors are",
    )


def ctranslate2_error(pipeline: TextEncoder | TextToText, folder: Path, texts: Sequence[str]) -> float:
    """Return the largest relative error of hidden states, or of the log-probabilities of the model's own output.

    Arguments and errors as in `transformers_error`.
    """
    if isinstance(pipeline, TextEncoder):
        what, pairs = (
            f"{pipeline.name}: its hidden states are",
            _hidden_states(
                pipeline, folder, _rows(example_inputs.example_inputs(pipeline, texts)[0].batches), "float32"
            ),
        )
    else:
        what, pairs = f"{pipeline.name}: its log-probabilities are", _log_probs(pipeline, folder, texts, "float32")
    return check_bound(max(relative_error(result, expected) for result, expected in pairs), what)


def ctranslate2_loss(pipeline: TextEncoder | TextToText, folder: Path, texts: Sequence[str]) -> dict[str, float]:
    """Return the quality loss of 8-bit weights.

    For an encoder: cosines with the float32 vectors. For an encoder–decoder: the change of log-probability of the
    tokens that the model generates.
    """
    if isinstance(pipeline, TextToText):
        both = _log_probs(pipeline, folder, texts, "default")
        return log_prob_error(torch.cat([result - expected for result, expected in both]))
    vectors: tuple[list[Tensor], list[Tensor]] = [], []
    for states in _hidden_states(
        pipeline, folder, _rows(example_inputs.example_inputs(pipeline, texts)[0].texts), "default"
    ):
        for known, hidden in zip(vectors, states, strict=True):
            known.append(pool(hidden, torch.ones(hidden.shape[:2], dtype=torch.bool), pipeline.settings.pooling))
    return cosine_loss(torch.cat(vectors[0]), torch.cat(vectors[1]))


def _rows(batches: Sequence[example_inputs.Batch]) -> list[Tensor]:
    """Return the rows of batches without padding."""
    return [
        row[kept != 0]
        for batch in batches
        for row, kept in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


def _hidden_states(
    pipeline: TextEncoder, folder: Path, rows: Sequence[Tensor], compute_type: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the hidden states (1, L, D) of CTranslate2 and of the model for each row of ids."""
    import ctranslate2 as library

    encoder = library.Encoder(str(folder), device="cpu", compute_type=compute_type)
    for row in rows:
        hidden = np.array(encoder.forward_batch([row.tolist()]).last_hidden_state)
        with torch.inference_mode():
            yield torch.from_numpy(hidden), pipeline.model(row[None])


def _log_probs(
    pipeline: TextToText, folder: Path, texts: Sequence[str], compute_type: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log-probabilities (L,) of the model's own output in CTranslate2 and in the model, for each text."""
    import ctranslate2 as library

    translator, config = library.Translator(str(folder), device="cpu", compute_type=compute_type), pipeline.model.config
    # a folder without a start token, as of mBART, gets it as the first target token
    start = [] if read_json(folder / "config.json").get("decoder_start_token") else [config.start_id]
    for tokens, output in zip(
        pipeline.tokenizer.encode(texts, pipeline.max_length),
        example_inputs.generate_greedily(pipeline, texts),
        strict=True,
    ):
        output_ids = [id_ for id_ in output.token_ids if id_ not in config.eos_ids]
        target = torch.tensor([[config.start_id, *output_ids, config.eos_ids[0]]])
        with torch.inference_mode():
            source = torch.tensor([tokens.ids])
            logits = pipeline.model(source, target[:, :-1], masks.padding(torch.ones_like(source, dtype=torch.bool)))
        expected = logits.log_softmax(-1).gather(2, target[:, 1:, None])[0, :, 0]
        words = [pipeline.tokenizer.ids_to_tokens(list(ids)) for ids in (tokens.ids, [*start, *output_ids])]
        (scored,) = translator.score_batch([words[0]], [words[1]])
        yield torch.tensor(scored.log_probs), expected
