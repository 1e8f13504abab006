"""What the page shows of one real run, as plain values: tokens, steps, attention, the beams and the probabilities."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from clearhead.checkpoints import directory, is_seq2seq
from clearhead.generation.beam import beam_search
from clearhead.generation.processors import processors
from clearhead.models.seq2seq import Seq2Seq
from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText
from clearhead.see.page import search
from clearhead.see.page.arrays import Blobs, Heat, Json, Map, heat, maps, pack
from clearhead.see.page.mathml import mathml
from clearhead.see.steps import Kind, Teller
from clearhead.see.trace import watching
from clearhead.see.watch import Weights, telling

_HEAT_CELLS = 1_200_000
"""Cells of all heat maps together: a short sentence's page stays under 2 MB, however many steps the model has."""
_MAPS = 34_000_000
"""Letters that all attention maps may take: with steps and tokens the page stays under 40 MB."""


def of_text(name: str, text: str, *, beams: int = 4, whole: Sequence[tuple[str, int, int]] = ()) -> Json:
    """A text through a checkpoint.

    Args:
        name: a folder, or a Hub id.
        text: the text.
        beams: of an encoder–decoder's search.
        whole: attention maps to keep whole however long the text is, as (part, layer, head).

    Raises:
        ValueError: no such model, or a text that is longer than it takes.
    """
    made = TextToText if is_seq2seq(directory.find(name)) else TextEncoder
    return of_model(name, made.from_pretrained(name, precision="float32", device="cpu"), text, beams=beams, whole=whole)


def of_model(
    name: str,
    made: TextEncoder | TextToText,
    text: str,
    *,
    beams: int = 4,
    whole: Sequence[tuple[str, int, int]] = (),
) -> Json:
    """A text through a model that is loaded, whose weights are read in float32; arguments as in `of_text`."""
    with torch.inference_mode():
        if isinstance(made, TextToText):
            found = _translation(made, text, beams, frozenset(whole))
        else:
            found = _encoding(made, text, frozenset(whole))
    return {"model": name, "text": text} | found


def _encoding(encoder: TextEncoder, text: str, whole: frozenset[tuple[str, int, int]]) -> Json:
    (tokens,) = encoder.tokenize([text])
    words = encoder.tokenizer.shown(tokens.ids)
    ids = torch.tensor([tokens.ids])
    found = _watched(encoder.model, lambda: encoder.model(ids), whole)
    return found | {"source": words, "target": [], "cut": tokens.truncated}


def _translation(made: TextToText, text: str, beams: int, whole: frozenset[tuple[str, int, int]]) -> Json:
    model, words = made.model, made.tokenizer.shown
    (tokens,) = made.tokenizer.encode([made.prompts.before + text], made.max_length)
    settings = made.settings.changed(beam_size=beams, num_return_sequences=beams)
    start = model.config.start_id if settings.start_id is None else settings.start_id
    ids, prompt = torch.tensor([tokens.ids]), torch.tensor([[start]])
    limit = settings.greatest_length(1, model.config.max_len)
    ends = model.config.eos_ids if settings.eos_ids is None else settings.eos_ids
    recorded = search.Recorded(model, ids, torch.ones_like(ids, dtype=torch.bool), prompt, beams)
    (outputs,) = beam_search(recorded, processors(settings, 1, limit, ends), settings, limit, ends)
    best = outputs[0]
    target = torch.tensor([[start, *best.ids]])
    logits: list[Tensor] = []

    def run() -> None:
        logits.append(model(ids, target[:, :-1]))

    found = _watched(model, run, whole)
    chances = logits[-1][0].log_softmax(dim=-1)
    return found | {
        "source": words(tokens.ids),
        "target": words([start, *best.ids[:-1]]),
        "cut": tokens.truncated,
        "output": made.tokenizer.decode(best.ids),
        "chosen": [
            {"token": words([token])[0], "log_prob": float(row[token]), "near": search.near(row, words)}
            for token, row in zip(best.ids, chances, strict=True)
        ],
        "tree": search.tree(recorded.columns, best.ids, words),
        "outputs": [
            {
                "text": made.tokenizer.decode(one.ids),
                "score": one.score,
                "log_prob": sum(one.log_probs),
                "end": search.ended(recorded.columns, one, words),
            }
            for one in outputs
        ],
    }


class _HeatTeller(Teller):
    """Tells steps with a heat map each."""

    def __init__(self, most: int, blobs: Blobs) -> None:
        super().__init__(values=True)
        self.heat: list[Heat] = []
        self._most, self._blobs = most, blobs

    def tell(self, path: str, kind: Kind, result: Tensor, module: nn.Module | None = None) -> None:
        super().tell(path, kind, result, module)
        self.heat.append(heat(result.detach(), self._most, self._blobs))


def _watched(model: nn.Module, run: Callable[[], object], whole: frozenset[tuple[str, int, int]]) -> Json:
    """Two runs: one for attention, which counts the steps as well; one for the steps, which share their room."""
    blobs, counted = Blobs(), Teller(values=False)
    layers: list[tuple[Json, list[Map]]] = []
    with watching(model, counted), telling(model, lambda record: layers.append((_about(record), maps(record, whole)))):
        run()
    teller = _HeatTeller(_HEAT_CELLS // len(counted.steps), blobs)
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
        "attention": pack(layers, _MAPS, blobs),
        "blobs": blobs.texts,
    }


def _about(record: Weights) -> Json:
    _, _, queries, keys = record.values.shape
    return {"part": record.part, "layer": record.layer, "path": record.path, "queries": queries, "keys": keys}
