"""Collect the data of the page from one run: tokens, steps, attention, beams, probabilities and vectors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.finite import error_context
from clearhead.generation.beam import beam_search
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import check_search
from clearhead.generation.greedy import greedy_search
from clearhead.generation.logits_processors import logits_processors
from clearhead.generation.state import Hypothesis
from clearhead.generation.strategy import resolve_eos_ids
from clearhead.inspection.report import beam_tree
from clearhead.inspection.report.encoding import classification_data, encoding_data
from clearhead.inspection.report.heatmaps import Json
from clearhead.inspection.report.page_recorder import MapIndex, check_maps, run_data
from clearhead.inspection.trace.records import Recorder
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.auto import load_to_inspect
from clearhead.pipelines.seq2seq.source_preparation import PreparedText
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.tokenizers.base import as_texts

Inspectable = TextEncoder | TextToText | TextClassifier


def collect_checkpoint(
    name: str, text: str | Sequence[str], *, beam_size: int | None = None, full_maps: Sequence[MapIndex] = ()
) -> Json:
    """Run a checkpoint on a text and collect the data of the page.

    Args:
        name: a folder, or a Hub id.
        text: the text; for a `TextEncoder`, or several texts to compare.
        beam_size: number of beams of an encoder–decoder; by default the checkpoint's.
        full_maps: attention maps to keep at full size for any length of the text.

    Raises:
        ValueError: the model or an attention map does not exist, the text is too long, or there are several texts and
            the model does not return vectors.
    """
    return collect(name, load_to_inspect(name), text, beam_size=beam_size, full_maps=full_maps)


def collect(
    name: str,
    pipeline: Inspectable,
    text: str | Sequence[str],
    *,
    beam_size: int | None = None,
    full_maps: Sequence[MapIndex] = (),
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> Json:
    """Run a loaded model on a text, in float32, and collect the data of the page.

    Args:
        name: name of the model on the page.
        pipeline: the model.
        text, beam_size, full_maps: as in `collect_checkpoint`. Sampling is replaced by search.
        source_lang, target_lang: languages, for models that need them.

    Raises:
        ValueError: as in `collect_checkpoint`.
        NonFiniteError: a step or the search produced NaN or infinity.
    """
    texts = as_texts(text)[0]
    if len(texts) != 1 and not isinstance(pipeline, TextEncoder):
        raise ValueError(f"Only an encoder compares several texts; {name} takes 1, got {len(texts)}.")
    model: nn.Module = pipeline.model.encoder if isinstance(pipeline, TextClassifier) else pipeline.model
    check_maps(model, full_maps)
    maps = frozenset(full_maps)

    def index_of(index: int) -> int:  # the index of a beam is not that of a text
        return index if len(texts) > 1 else 0

    with torch.inference_mode(), error_context(index=index_of, text=lambda index: texts[index_of(index)], model=name):
        if isinstance(pipeline, TextToText):
            settings, prepared = pipeline.prepare(
                texts[0], source_lang=source_lang, target_lang=target_lang, beam_size=beam_size
            )
            data = {"kind": "encoder–decoder"} | _generation_data(pipeline, prepared, settings, maps)
        elif isinstance(pipeline, TextClassifier):
            data = {"kind": "classifier"} | classification_data(pipeline, texts[0], maps)
        else:
            data = {"kind": "encoder"} | encoding_data(pipeline, texts, maps)
    parameters = sum(parameter.numel() for parameter in pipeline.model.parameters())
    return {"model": name, "text": texts[0], "parameters": parameters} | data


def _generation_data(
    pipeline: TextToText, prepared: PreparedText, settings: GenerationConfig, full_maps: frozenset[MapIndex]
) -> Json:
    if prepared.empty:
        raise ValueError("The text is empty.")
    model, words, prompt = pipeline.model, pipeline.tokenizer.display_tokens, prepared.source.decoder_prefix
    settings = settings.updated(do_sample=False, num_return_sequences=settings.beam_size)
    recorded, outputs = _search(pipeline, prepared, settings)
    best = outputs[0]
    ids, target = torch.tensor([prepared.source.ids]), torch.tensor([[*prompt, *best.ids]])
    logits: list[Tensor] = []

    def run(recorder: Recorder) -> None:
        logits.append(model(ids, target[:, :-1]))

    data = run_data(model, run, full_maps)
    log_probs = logits[-1][0, len(prompt) - 1 :].log_softmax(dim=-1)
    return data | {
        "source": words(prepared.source.ids),
        "target": words([*prompt, *best.ids[:-1]]),
        "prompt": {"length": len(prompt), "start": _role(model, prompt[0], resolve_eos_ids(model, settings))},
        "length_penalty": settings.length_penalty,
        "truncated": prepared.truncated,
        "output": pipeline.tokenizer.decode(best.ids),
        "output_tokens": [
            {
                "token": words([token])[0],
                "log_prob": float(row[token]),
                "alternatives": beam_tree.top_alternatives(row, words),
            }
            for token, row in zip(best.ids, log_probs, strict=True)
        ],
        "tree": beam_tree.tree(recorded.columns, best.ids, words),
        "outputs": [
            {
                "text": pipeline.tokenizer.decode(output.ids),
                "score": output.score,
                "log_prob": sum(output.log_probs),
                "end": beam_tree.end_of(recorded.columns, output, words),
            }
            for output in outputs
        ],
    }


def _role(model: Seq2Seq, start: int, ends: Sequence[int]) -> str | None:
    """Return the other role of the start token, if the model has no token for the start alone."""
    if start == model.config.pad_id:
        return "padding token"
    return "end token" if start in ends else None


def _search(
    pipeline: TextToText, prepared: PreparedText, settings: GenerationConfig
) -> tuple[beam_tree.RecordedDecoding, list[Hypothesis]]:
    """Search the output of a prepared text; return the recorded search and the outputs, best first."""
    model, prompt = pipeline.model, prepared.source.decoder_prefix
    check_search(model, [prepared.source], settings)
    ids, keep = torch.tensor([prepared.source.ids]), torch.ones(1, len(prepared.source.ids), dtype=torch.bool)
    recorded = beam_tree.RecordedDecoding(settings.beam_size, model, ids, keep, torch.tensor([prompt]))
    limit, ends = settings.max_target_length(len(prompt), model.config.max_len), resolve_eos_ids(model, settings)
    changes = [*logits_processors(settings, len(prompt), limit, ends), recorded.record]
    if settings.beam_size > 1:
        (outputs,) = beam_search(recorded, changes, settings, limit, ends)
    else:
        outputs = greedy_search(recorded, changes, limit, ends, settings.length_penalty)
    return recorded, outputs
