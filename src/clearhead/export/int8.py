"""Write a copy of a model with 8-bit weights for Clearhead's own kernels."""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from clearhead.export.output import ExportReport, export_folder
from clearhead.export.sample_texts import TEXTS, non_empty_texts
from clearhead.finite import error_context
from clearhead.generation.shortlist.shortlist import FILE as SHORTLIST_FILE
from clearhead.generation.shortlist.shortlist import read_shortlist
from clearhead.io import hub
from clearhead.pipelines.auto import Pipeline, load_pipeline
from clearhead.pipelines.base import warn_truncated
from clearhead.pipelines.question_answerer import QuestionAnswerer
from clearhead.pipelines.reranker import Reranker
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.converters.int8 import why_no_int8
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.int8.files import FILE, write_int8
from clearhead.runtime.int8.quantize import quantize_model
from clearhead.runtime.packed_batch import hidden_states
from clearhead.runtime.precision import INT8
from clearhead.tokenizers.base import Tokens

_CPU = torch.device("cpu")
_MAX_NEW_TOKENS = 60


def quantize(model: str | Path, folder: str | Path, *, texts: Sequence[str] = TEXTS) -> ExportReport:
    """Write a copy of a model with 8-bit weights next to its weights, and measure the loss of accuracy.

    The copy has the model's shortlist, if there is one.

    Args:
        model: a folder, or a Hub id.
        folder: the output folder.
        texts: texts for the comparison of outputs in 8 bits and in float32.

    Raises:
        ValueError: the model does not exist, its shortlist is damaged or was made for another vocabulary, or it cannot
            run in 8 bits here. Also the errors of `export_folder`.
    """
    texts = non_empty_texts(texts)
    with export_folder(model, folder, "int8") as (output, report):
        pipeline = load_pipeline(model)
        reason = why_no_int8(pipeline.model, _CPU)
        if reason is not None:
            raise ValueError(f"{model} cannot run in 8 bits: {reason}")
        shortlist = hub.resolve_model(model) / SHORTLIST_FILE
        if isinstance(pipeline, TextToText) and shortlist.is_file():
            pipeline.shortlist = read_shortlist(shortlist, pipeline.tokenizer, pipeline.model.config)
        pipeline.save_pretrained(output)
        with error_context(model=str(model)):
            weights = quantize_model(pipeline.model, pipeline.int8.calibrate)
        quantized = copy.copy(pipeline)
        quantized.model = inference_copy(pipeline.model, INT8.with_weights(weights), _CPU).eval()
        quantized.inference_model = quantized.model
        cosines = _cosines(pipeline, quantized, texts)
        report.loss |= {"smallest cosine": min(cosines), "mean cosine": sum(cosines) / len(cosines)}
        write_int8(output / FILE, pipeline.model, weights, cosines)
    return report


@torch.inference_mode()
def _cosines(exact: Pipeline, quantized: Pipeline, texts: Sequence[str]) -> list[float]:
    """Return for each text the cosine of its outputs from both models.

    The outputs are the vector of a text encoder, the hidden states under a head, and the centered logits of an
    encoder–decoder for the greedy output in float32; multilingual models translate into their first language.
    """
    if isinstance(exact, TextToText) and isinstance(quantized, TextToText):
        target = min(exact.tokenizer.languages, default=None)  # the loss hardly depends on the language
        details = exact.generate_iter(texts, beam_size=1, max_new_tokens=_MAX_NEW_TOKENS, target_lang=target)
        pairs = [
            (_logits(exact, text, target, output.token_ids), _logits(quantized, text, target, output.token_ids))
            for text, output in zip(texts, details, strict=True)
        ]
    else:
        assert not isinstance(exact, TextToText)
        assert not isinstance(quantized, TextToText)
        limit = exact.settings.max_length if isinstance(exact, TextEncoder) else exact.max_length
        tokens = exact.tokenize(texts) if isinstance(exact, TextEncoder) else exact.tokenizer.encode(texts, limit)
        warn_truncated([one.truncated for one in tokens], limit, "Only their beginnings are compared")
        rows = [_states(pipeline, tokens) for pipeline in (exact, quantized)]
        pairs = list(zip(*rows, strict=True))
    return [float(functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)) for one, other in pairs]


def _logits(pipeline: TextToText, text: str, language: str | None, target: Sequence[int]) -> Tensor:
    """Return the logits (L, V) of the tokens of a target in a language, less their means."""
    source = pipeline.prepare(text, target_lang=language)[1].source
    target_ids = torch.tensor([[*source.decoder_prefix, *target[:-1]]])
    logits: Tensor = pipeline.model(torch.tensor([list(source.ids)]), target_ids)[0]
    return logits - logits.mean(dim=1, keepdim=True)


def _states(
    pipeline: TextEncoder | TextClassifier | Reranker | QuestionAnswerer, tokens: Sequence[Tokens]
) -> list[Tensor]:
    """Return the vector of each text; for a model with a head, the mean of its hidden states."""
    if isinstance(pipeline, TextEncoder):
        return [torch.as_tensor(vector) for vector in pipeline.encode_tokens(tokens)]
    rows = [torch.empty(0)] * len(tokens)
    encoder = pipeline.model.encoder
    for indices, hidden, keep in hidden_states(encoder, tokens, None, encoder.config, _CPU):
        for index, row, kept in zip(indices, hidden, keep, strict=True):
            rows[index] = row[kept].mean(dim=0)
    return rows
