"""The beams of a search, as the page draws them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.generation.state import DecodingState, Hypothesis

_NEAR = 5
"""Tokens that are shown for each place: the one that was taken, and those that nearly were."""

Json = dict[str, Any]
Words = Callable[[Sequence[int]], list[str]]


class RecordedDecoding(DecodingState):
    """A search that is watched: for each step its beams, where each came from, and what else it might have said.

    The numbers are the search's own: log-probabilities after what the settings force, forbid or penalise.

    Args:
        beams: how many there will be.
        given: as in `Decoding`, of one source.
    """

    def __init__(self, beams: int, *given: Any) -> None:
        super().__init__(*given)
        self.columns: list[list[Json]] = []
        self._beams, self._scores, self._totals = beams, torch.zeros(0), torch.zeros(1)
        self._places = {0: 0}  # of the beams in the column before, by their rows

    def record(self, scores: Tensor, ids: Tensor, sources: Tensor) -> Tensor:
        """The last of the processors: it changes nothing."""
        self._scores = scores if self._beams > 1 else scores.log_softmax(dim=1)  # greedy search chooses by logits
        return scores

    def expand_beams(self, num_beams: int) -> None:
        super().expand_beams(num_beams)
        self._scores = self._scores.expand(num_beams, -1)
        # the others are no hypotheses until they take one over
        self._totals = torch.tensor([0.0] + [-math.inf] * (num_beams - 1))

    def append(self, tokens: Tensor, rows: Tensor | None = None) -> None:
        came = torch.arange(len(tokens)) if rows is None else rows
        each = self._scores[came, tokens]
        self._totals = self._totals[came] + each
        real = self._totals.isfinite().nonzero()[:, 0].tolist()
        self.columns.append(
            [
                {
                    "id": int(tokens[row]),
                    "from": self._places[int(came[row])],
                    "log_prob": float(each[row]),
                    "total": float(self._totals[row]),
                    "scores": self._scores[came[row]],
                }
                for row in real
            ]
        )
        self._places = {row: place for place, row in enumerate(real)}
        super().append(tokens, rows)


def tree(columns: list[list[Json]], best: Sequence[int], words: Words) -> list[list[Json]]:
    """The beams step by step, those that the best output went through marked."""
    through = _followed(columns, best)
    return [
        [
            {key: value for key, value in node.items() if key != "scores"}
            | {
                "token": words([node["id"]])[0],
                "near": top_alternatives(node["scores"], words),
                "best": step < len(through) and through[step] == place,
            }
            for place, node in enumerate(column)
        ]
        for step, column in enumerate(columns)
    ]


def ended(columns: list[list[Json]], output: Hypothesis, words: Words) -> Json:
    """Where an output ended: after which beam of which step, and with which token."""
    step = len(output.ids) - 1
    through = _followed(columns, output.ids[:-1])
    return {
        "step": step,
        "from": 0 if not step else through[-1] if len(through) == step else None,
        "token": words(output.ids[-1:])[0],
        "log_prob": output.log_probs[-1],
        "total": sum(output.log_probs),
    }


def _followed(columns: list[list[Json]], ids: Sequence[int]) -> list[int]:
    """The beams that tokens went through, as far as they are there: an end token is not."""
    found: list[int] = []
    for column, token in zip(columns, ids, strict=False):
        before = found[-1] if found else 0
        places = [place for place, node in enumerate(column) if node["id"] == token and node["from"] == before]
        if not places:
            break
        found.append(places[0])
    return found


def top_alternatives(scores: Tensor, words: Words) -> list[Json]:
    """The most probable tokens, with their log-probabilities."""
    values, places = scores.topk(min(_NEAR, len(scores)))
    return [
        {"token": words([place])[0], "log_prob": value}
        for value, place in zip(values.tolist(), places.tolist(), strict=True)
        if value > -math.inf  # what the settings forbid is no alternative
    ]
