"""What the page shows of one real run, as plain values: tokens, steps, attention, the beams and the probabilities."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from clearhead.finite import NonFiniteError, naming
from clearhead.generation.beam import beam_search
from clearhead.generation.config import GenerationConfig
from clearhead.generation.greedy import greedy_search
from clearhead.generation.logits_processors import logits_processors
from clearhead.generation.strategy import resolve_eos_ids
from clearhead.inspection.attention.capture import attentions
from clearhead.inspection.report import beam_tree
from clearhead.inspection.report.heatmaps import Blobs, Heat, Json, Map, heatmap, maps, pack
from clearhead.inspection.report.mathml import mathml
from clearhead.inspection.trace.records import Operation, Recorder, dotted
from clearhead.inspection.trace.trace import watching
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.auto import load_without_head
from clearhead.pipelines.source_preparation import PreparedText
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

_HEAT_CELLS = 1_200_000
"""Cells of all heat maps together: a short sentence's page stays under 2 MB, however many steps the model has."""
_MAPS = 34_000_000
"""Letters that all attention maps may take: with steps and tokens the page stays under 40 MB."""


def of_text(name: str, text: str, *, beams: int | None = None, whole: Sequence[tuple[str, int, int]] = ()) -> Json:
    """A text through a checkpoint.

    Args:
        name: a folder, or a Hub id.
        text: the text.
        beams: of an encoder–decoder's search; None for as many as the checkpoint says.
        whole: attention maps to keep whole however long the text is, as (part, layer, head).

    Raises:
        ValueError: no such model, a text that is longer than it takes, or no such map.
    """
    return of_model(name, load_without_head(name), text, beams=beams, whole=whole)


def of_model(
    name: str,
    made: TextEncoder | TextToText,
    text: str,
    *,
    beams: int | None = None,
    whole: Sequence[tuple[str, int, int]] = (),
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> Json:
    """A text through a model that is loaded, whose weights are read in float32.

    Args:
        name: what the model is called.
        made: the model.
        text, beams, whole: as in `of_text`; where a checkpoint draws samples, the most probable tokens are shown.
        source_lang, target_lang: for encoder–decoders that are told them.

    Raises:
        ValueError: as in `of_text`.
        NonFiniteError: a step or the search produced NaN or infinity.
    """
    _check_maps(made.model, whole)
    with torch.inference_mode(), naming(index=lambda index: 0, text=lambda index: text, model=name):
        if isinstance(made, TextToText):
            settings, given = made.prepare(text, source_lang=source_lang, target_lang=target_lang, beam_size=beams)
            found = _translation(made, given, settings, frozenset(whole))
        else:
            found = _encoding(made, text, frozenset(whole))
    return {"model": name, "text": text} | found


def _check_maps(model: nn.Module, whole: Sequence[tuple[str, int, int]]) -> None:
    last: dict[str, str] = {}
    known = set()
    for place in attentions(model):
        known |= {(place.part, place.layer, head) for head in range(place.num_heads)}
        last[place.part] = f"{place.part}.{place.layer}.{place.num_heads - 1}"
    for part, layer, head in whole:
        if (part, layer, head) not in known:
            raise ValueError(f"there is no attention {part}.{layer}.{head}; the last are {', '.join(last.values())}")


def _encoding(encoder: TextEncoder, text: str, whole: frozenset[tuple[str, int, int]]) -> Json:
    (tokens,) = encoder.tokenize([text])
    words = encoder.tokenizer.display_tokens(tokens.ids)
    ids = torch.tensor([tokens.ids])
    found = _watched(encoder.model, lambda: encoder.model(ids), whole)
    return found | {"source": words, "target": [], "cut": tokens.truncated}


def _translation(
    made: TextToText, given: PreparedText, settings: GenerationConfig, whole: frozenset[tuple[str, int, int]]
) -> Json:
    if given.empty:
        raise ValueError("the text is empty: there is nothing to translate")
    model, words, prompt = made.model, made.tokenizer.display_tokens, given.source.decoder_prefix
    settings = settings.updated(do_sample=False, num_return_sequences=settings.beam_size)
    ids, keep = torch.tensor([given.source.ids]), torch.ones(1, len(given.source.ids), dtype=torch.bool)
    recorded = beam_tree.RecordedDecoding(settings.beam_size, model, ids, keep, torch.tensor([prompt]))
    limit, ends = settings.max_target_length(len(prompt), model.config.max_len), resolve_eos_ids(model, settings)
    changes = [*logits_processors(settings, len(prompt), limit, ends), recorded.record]
    if settings.beam_size > 1:
        (outputs,) = beam_search(recorded, changes, settings, limit, ends)
    else:
        outputs = greedy_search(recorded, changes, limit, ends, settings.length_penalty)
    best = outputs[0]
    target = torch.tensor([[*prompt, *best.ids]])
    logits: list[Tensor] = []

    def run() -> None:
        logits.append(model(ids, target[:, :-1]))

    found = _watched(model, run, whole)
    chances = logits[-1][0, len(prompt) - 1 :].log_softmax(dim=-1)
    return found | {
        "source": words(given.source.ids),
        "target": words([*prompt, *best.ids[:-1]]),
        "cut": given.truncated,
        "output": made.tokenizer.decode(best.ids),
        "chosen": [
            {"token": words([token])[0], "log_prob": float(row[token]), "near": beam_tree.top_alternatives(row, words)}
            for token, row in zip(best.ids, chances, strict=True)
        ],
        "tree": beam_tree.tree(recorded.columns, best.ids, words),
        "outputs": [
            {
                "text": made.tokenizer.decode(one.ids),
                "score": one.score,
                "log_prob": sum(one.log_probs),
                "end": beam_tree.ended(recorded.columns, one, words),
            }
            for one in outputs
        ],
    }


class _PageTeller(Recorder):
    """Tells steps with a heat map each, and the maps of all attention."""

    def __init__(self, model: nn.Module, whole: frozenset[tuple[str, int, int]], most: int, blobs: Blobs) -> None:
        super().__init__(values=True)
        self.heat: list[Heat] = []
        self.layers: list[tuple[Json, list[Map]]] = []
        self._attentions = {dotted(place.path, "softmax"): place for place in attentions(model)}
        self._whole, self._most, self._blobs = whole, most, blobs

    def tell(self, path: str, kind: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        _check_step(result, path)
        super().tell(path, kind, result, module)
        self.heat.append(heatmap(result.detach(), self._most, self._blobs))
        place = self._attentions.get(path)
        if place is not None:
            about = {"part": place.part, "layer": place.layer, "path": place.path}
            about |= {"queries": result.shape[2], "keys": result.shape[3]}
            self.layers.append((about, maps(place, result[0].detach(), self._whole)))


def _check_step(result: Tensor, path: str) -> None:
    """Raise an error for NaN or +∞ in the result of a step; −∞ is the score of a masked key."""
    if result.is_floating_point() and result.numel() and not float(result.detach().amax()) < math.inf:
        raise NonFiniteError(f"step {path}", 0)


def _watched(model: nn.Module, run: Callable[[], object], whole: frozenset[tuple[str, int, int]]) -> Json:
    """Two runs: one that counts the steps, for they share their room; and one that shows them."""
    blobs, counted = Blobs(), Recorder(values=False)
    with watching(model, counted):
        run()
    teller = _PageTeller(model, whole, _HEAT_CELLS // len(counted.steps), blobs)
    with watching(model, teller):
        run()
    return {
        "kind": "encoder–decoder" if isinstance(model, Seq2Seq) else "encoder",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": [
            step.as_dict() | {"named_shape": step.named_shape, "heat": vars(heat)}
            for step, heat in zip(teller.steps, teller.heat, strict=True)
        ],
        "equations": {step.equation: mathml(step.equation) for step in teller.steps},
        "attention": pack(teller.layers, _MAPS, blobs),
        "blobs": blobs.texts,
    }
