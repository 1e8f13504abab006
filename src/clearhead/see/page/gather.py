"""What the page shows of one real run, as plain values: tokens, steps, attention, the beams and the probabilities."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.checkpoints import directory, is_seq2seq
from clearhead.generation.beam import beam_search
from clearhead.generation.decoding import Decoding
from clearhead.generation.processors import processors
from clearhead.models.seq2seq import Seq2Seq
from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText
from clearhead.see.page.mathml import mathml
from clearhead.see.steps import Kind, Teller
from clearhead.see.trace import watching
from clearhead.see.watch import Weights, telling

_HEAT = (48, 96)
"""Rows and columns of a step's heat map at most; larger results are averaged down to it."""
_MAP = 256
"""Rows and columns of an attention map at most, unless it is asked for whole; larger ones keep each cell's maximum."""
_NEAR = 5
"""Tokens that are shown for each place: the one that was taken, and those that nearly were."""

Json = dict[str, Any]


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
    words = encoder.tokenizer.words(tokens.ids)
    ids = torch.tensor([tokens.ids])
    found = _watched(encoder.model, lambda: encoder.model(ids), whole)
    return found | {"source": words, "target": [], "cut": tokens.truncated}


def _translation(made: TextToText, text: str, beams: int, whole: frozenset[tuple[str, int, int]]) -> Json:
    model, words = made.model, made.tokenizer.words
    (tokens,) = made.tokenizer.encode([made.prompts.before + text], made.max_length)
    settings = made.settings.changed(beam_size=beams, num_return_sequences=beams)
    start = model.config.start_id if settings.start_id is None else settings.start_id
    ids, prompt = torch.tensor([tokens.ids]), torch.tensor([[start]])
    limit = settings.greatest_length(1, model.config.max_len)
    ends = model.config.eos_ids if settings.eos_ids is None else settings.eos_ids
    recorded = _Recorded(model, ids, torch.ones_like(ids, dtype=torch.bool), prompt, beams)
    (outputs,) = beam_search(recorded, processors(settings, 1, limit, ends), settings, limit, ends)
    best = outputs[0]
    target = torch.tensor([[start, *best.ids]])
    logits: list[Tensor] = []

    def run() -> Tensor:
        logits.append(model(ids, target[:, :-1]))
        return logits[-1]

    found = _watched(model, run, whole)
    chances = logits[-1][0].log_softmax(dim=-1)
    tree = _tree(recorded.tree, best.ids, words)
    return found | {
        "source": words(tokens.ids),
        "target": words([start, *best.ids[:-1]]),
        "cut": tokens.truncated,
        "output": made.tokenizer.decode(best.ids),
        "chosen": [
            {"token": words([token])[0], "log_prob": float(row[token]), "near": _near(row, words)}
            for token, row in zip(best.ids, chances, strict=True)
        ],
        "tree": tree,
        "outputs": [
            {"text": made.tokenizer.decode(one.ids), "score": one.score, "log_prob": sum(one.log_probs)}
            for one in outputs
        ],
    }


def _tree(
    columns: list[list[Json]], best: Sequence[int], words: Callable[[Sequence[int]], list[str]]
) -> list[list[Json]]:
    """The beams step by step, for JSON, with those that the best output went through marked."""
    before: int | None = 0
    for column, token in zip(columns, best, strict=False):
        places = [place for place, node in enumerate(column) if node["id"] == token and node["from"] == before]
        before = places[0] if places else None
        for place, node in enumerate(column):
            node["best"] = place == before
    return [
        [
            {key: value for key, value in node.items() if key != "scores"}
            | {"token": words([node["id"]])[0], "near": _near(node["scores"], words), "best": node.get("best", False)}
            for node in column
        ]
        for column in columns
    ]


def _near(scores: Tensor, words: Callable[[Sequence[int]], list[str]]) -> list[Json]:
    values, places = scores.topk(min(_NEAR, len(scores)))
    return [
        {"token": words([place])[0], "log_prob": value}
        for value, place in zip(values.tolist(), places.tolist(), strict=True)
    ]


class _Recorded(Decoding):
    """A search that is watched: for each step its beams, where each came from, and what else it might have said."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tree: list[list[Json]] = []
        self._scores = torch.zeros(0)
        self._totals = torch.zeros(len(self.ids))

    def logits(self) -> Tensor:
        found = super().logits()
        self._scores = found.log_softmax(dim=-1)
        return found

    def append(self, tokens: Tensor, rows: Tensor | None = None) -> None:
        came = torch.arange(len(tokens)) if rows is None else rows
        each = self._scores[came, tokens]
        self._totals = self._totals[came] + each
        self.tree.append(
            [
                {
                    "id": token,
                    "from": parent,
                    "log_prob": log_prob,
                    "total": total,
                    "scores": self._scores[parent],
                }
                for token, parent, log_prob, total in zip(
                    tokens.tolist(), came.tolist(), each.tolist(), self._totals.tolist(), strict=True
                )
            ]
        )
        super().append(tokens, rows)


@dataclass
class _Heat:
    """Numbers as bytes: each is its byte, from −127 to 127, times the largest, divided by 127."""

    rows: int
    columns: int
    largest: float
    data: str


class _HeatTeller(Teller):
    """Tells steps with a heat map each."""

    def __init__(self) -> None:
        super().__init__(values=True)
        self.heat: list[_Heat] = []

    def tell(self, path: str, kind: Kind, result: Tensor, module: nn.Module | None = None) -> None:
        super().tell(path, kind, result, module)
        self.heat.append(_heat(result.detach()[0] if result.ndim > 2 else result.detach()))


def _watched(model: nn.Module, run: Callable[[], Tensor], whole: frozenset[tuple[str, int, int]]) -> Json:
    teller = _HeatTeller()
    with watching(model, teller):
        run()
    attention: list[Json] = []
    with telling(model, lambda record: attention.append(_maps(record, whole))):
        run()
    return {
        "kind": "encoder–decoder" if isinstance(model, Seq2Seq) else "encoder",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": [
            step.as_dict() | {"named_shape": step.named_shape, "mathml": mathml(step.equation), "heat": vars(heat)}
            for step, heat in zip(teller.steps, teller.heat, strict=True)
        ],
        "attention": attention,
    }


def _heat(result: Tensor) -> _Heat:
    flat = result.float().reshape(-1, result.shape[-1]) if result.ndim > 1 else result.float()[None]
    flat = torch.where(flat.isfinite(), flat, 0.0)
    rows, columns = min(flat.shape[0], _HEAT[0]), min(flat.shape[1], _HEAT[1])
    if (rows, columns) != tuple(flat.shape):
        flat = functional.adaptive_avg_pool2d(flat[None], (rows, columns))[0]
    largest = float(flat.abs().max()) or 1.0
    return _Heat(rows, columns, largest, _bytes((flat * (127 / largest)).round().to(torch.int8)))


def _maps(record: Weights, whole: frozenset[tuple[str, int, int]]) -> Json:
    """The maps of a layer: each weight is its byte divided by 255."""
    heads = []
    for number, weights in zip(record.heads, record.values[0], strict=True):
        queries, keys = weights.shape
        kept = (record.part, record.layer, number) in whole or max(queries, keys) <= _MAP
        size = (queries, keys) if kept else (min(queries, _MAP), min(keys, _MAP))
        shown = weights if kept else functional.adaptive_max_pool2d(weights[None], size)[0]
        bytes_ = (shown * 255).round().to(torch.uint8)
        heads.append({"head": number, "rows": size[0], "columns": size[1], "data": _bytes(bytes_)})
    return {
        "part": record.part,
        "layer": record.layer,
        "path": record.path,
        "queries": record.values.shape[2],
        "keys": record.values.shape[3],
        "heads": heads,
    }


def _bytes(tensor: Tensor) -> str:
    return base64.b64encode(tensor.contiguous().numpy().tobytes()).decode("ascii")
