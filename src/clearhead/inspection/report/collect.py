"""Collect the data of the page from one run: tokens, steps, attention, beams and probabilities."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from clearhead.finite import NonFiniteError, error_context
from clearhead.generation.beam import beam_search
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import check_search
from clearhead.generation.greedy import greedy_search
from clearhead.generation.logits_processors import logits_processors
from clearhead.generation.state import Hypothesis
from clearhead.generation.strategy import resolve_eos_ids
from clearhead.inspection.attention.capture import attention_layers
from clearhead.inspection.attention.weights import AttentionLayer
from clearhead.inspection.report import beam_tree
from clearhead.inspection.report.heatmaps import AttentionMap, Blobs, Heatmap, Json, attention_maps, heatmap, pack
from clearhead.inspection.report.mathml import mathml
from clearhead.inspection.trace.records import Operation, Recorder, join_path
from clearhead.inspection.trace.trace import recording
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.auto import load_without_head
from clearhead.pipelines.seq2seq.source_preparation import PreparedText
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

_HEATMAP_CELLS = 1_200_000
"""Cells of all heat maps together, so that the page of a short sentence is smaller than 2 MB."""
_MAP_CHARACTERS = 34_000_000
"""Characters of all attention maps together, so that the page is smaller than 40 MB."""

MapIndex = tuple[str, int, int]
"""Part ("encoder", "decoder" or "cross"), layer and head of an attention map."""


def collect_checkpoint(
    name: str, text: str, *, beam_size: int | None = None, full_maps: Sequence[MapIndex] = ()
) -> Json:
    """Run a checkpoint on a text and collect the data of the page.

    Args:
        name: a folder, or a Hub id.
        text: the text.
        beam_size: number of beams of an encoder–decoder; by default the checkpoint's.
        full_maps: attention maps to keep at full size for any length of the text.

    Raises:
        ValueError: the model or an attention map does not exist, or the text is too long.
    """
    return collect(name, load_without_head(name), text, beam_size=beam_size, full_maps=full_maps)


def collect(
    name: str,
    pipeline: TextEncoder | TextToText,
    text: str,
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
    _check_maps(pipeline.model, full_maps)
    with torch.inference_mode(), error_context(index=lambda index: 0, text=lambda index: text, model=name):
        if isinstance(pipeline, TextToText):
            settings, prepared = pipeline.prepare(
                text, source_lang=source_lang, target_lang=target_lang, beam_size=beam_size
            )
            data = _generation_data(pipeline, prepared, settings, frozenset(full_maps))
        else:
            data = _encoding_data(pipeline, text, frozenset(full_maps))
    return {"model": name, "text": text} | data


def _check_maps(model: nn.Module, full_maps: Sequence[MapIndex]) -> None:
    last: dict[str, str] = {}
    available = set()
    for layer in attention_layers(model):
        available |= {(layer.part, layer.layer, head) for head in range(layer.num_heads)}
        last[layer.part] = f"{layer.part}.{layer.layer}.{layer.num_heads - 1}"
    for part, index, head in full_maps:
        if (part, index, head) not in available:
            last_maps = ", ".join(last.values())
            raise ValueError(f"The model has no attention map {part}.{index}.{head}; the last ones are {last_maps}.")


def _encoding_data(encoder: TextEncoder, text: str, full_maps: frozenset[MapIndex]) -> Json:
    (tokens,) = encoder.tokenize([text])
    words = encoder.tokenizer.display_tokens(tokens.ids)
    ids = torch.tensor([tokens.ids])
    data = _run_data(encoder.model, lambda: encoder.model(ids), full_maps)
    return data | {"source": words, "target": [], "truncated": tokens.truncated}


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

    def run() -> None:
        logits.append(model(ids, target[:, :-1]))

    data = _run_data(model, run, full_maps)
    log_probs = logits[-1][0, len(prompt) - 1 :].log_softmax(dim=-1)
    return data | {
        "source": words(prepared.source.ids),
        "target": words([*prompt, *best.ids[:-1]]),
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


class _PageRecorder(Recorder):
    """Recorder of steps with a heat map each, and of all attention maps.

    Args:
        model: the model.
        full_maps: attention maps to keep at full size.
        max_cells: cells of one heat map.
        blobs: receives the bytes of the maps.
    """

    def __init__(self, model: nn.Module, full_maps: frozenset[MapIndex], max_cells: int, blobs: Blobs) -> None:
        super().__init__(values=True)
        self.heatmaps: list[Heatmap] = []
        self.attention: list[tuple[Json, list[AttentionMap]]] = []
        # layers that share weights have the same path, and run in their order
        self._layers: dict[str, list[AttentionLayer]] = {}
        for layer in attention_layers(model):
            self._layers.setdefault(join_path(layer.path, "softmax"), []).append(layer)
        self._full_maps, self._max_cells, self._blobs = full_maps, max_cells, blobs

    def record(self, path: str, operation: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        _check_step(result, path)
        super().record(path, operation, result, module)
        self.heatmaps.append(heatmap(result.detach(), self._max_cells, self._blobs))
        if self._layers.get(path):
            layer = self._layers[path].pop(0)
            data = {"part": layer.part, "layer": layer.layer, "path": layer.path}
            data |= {"queries": result.shape[2], "keys": result.shape[3]}
            self.attention.append((data, attention_maps(layer, result[0].detach(), self._full_maps)))


def _check_step(result: Tensor, path: str) -> None:
    """Raise an error for NaN or +∞ in the result of a step; −∞ is the score of a masked key."""
    if result.is_floating_point() and result.numel() and not float(result.detach().amax()) < math.inf:
        raise NonFiniteError(f"step {path}", 0)


def _run_data(model: nn.Module, run: Callable[[], object], full_maps: frozenset[MapIndex]) -> Json:
    """Run the model twice: to count the steps, which share the cells of the heat maps, and to record them."""
    blobs, counter = Blobs(), Recorder(values=False)
    with recording(model, counter):
        run()
    recorder = _PageRecorder(model, full_maps, _HEATMAP_CELLS // len(counter.steps), blobs)
    with recording(model, recorder):
        run()
    return {
        "kind": "encoder–decoder" if isinstance(model, Seq2Seq) else "encoder",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": [
            step.as_dict() | {"named_shape": step.named_shape, "heat": vars(heat)}
            for step, heat in zip(recorder.steps, recorder.heatmaps, strict=True)
        ],
        "equations": {step.equation: mathml(step.equation) for step in recorder.steps},
        "attention": pack(recorder.attention, _MAP_CHARACTERS, blobs),
        "blobs": blobs.texts,
    }
