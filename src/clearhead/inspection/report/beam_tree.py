"""Record the beams of a search as a tree for the page."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.generation.state import DecodingState, Hypothesis

_ALTERNATIVES = 5
"""Tokens of each position on the page: the most probable ones."""

Json = dict[str, Any]
Words = Callable[[Sequence[int]], list[str]]


class RecordedDecoding(DecodingState):
    """State of a search that records the beams of each step, their parents and their scores.

    The log-probabilities are those of the search, after forced, forbidden and penalized tokens.

    Args:
        beam_size: number of beams.
        *state: arguments of `DecodingState`, for one source.
    """

    def __init__(self, beam_size: int, *state: Any) -> None:
        super().__init__(*state)
        self.columns: list[list[Json]] = []
        self._beam_size, self._scores, self._totals = beam_size, torch.zeros(0), torch.zeros(1)
        self._parents = {0: 0}  # index in the last column by row

    def record(self, scores: Tensor, ids: Tensor, sources: Tensor) -> Tensor:
        """Record the scores of a step, as the last logits processor, which changes nothing."""
        self._scores = scores if self._beam_size > 1 else scores.log_softmax(dim=1)  # greedy search has logits
        return scores

    def expand_beams(self, num_beams: int) -> None:
        super().expand_beams(num_beams)
        self._scores = self._scores.expand(num_beams, -1)
        # only the first beam is a hypothesis before the first token
        self._totals = torch.tensor([0.0] + [-math.inf] * (num_beams - 1))

    def append(self, tokens: Tensor, rows: Tensor | None = None) -> None:
        parents = torch.arange(len(tokens)) if rows is None else rows
        log_probs = self._scores[parents, tokens]
        self._totals = self._totals[parents] + log_probs
        beams = self._totals.isfinite().nonzero()[:, 0].tolist()
        self.columns.append(
            [
                {
                    "id": int(tokens[row]),
                    "from": self._parents[int(parents[row])],
                    "log_prob": float(log_probs[row]),
                    "total": float(self._totals[row]),
                    "scores": self._scores[parents[row]],
                }
                for row in beams
            ]
        )
        self._parents = {row: index for index, row in enumerate(beams)}
        super().append(tokens, rows)


def tree(columns: list[list[Json]], best: Sequence[int], words: Words) -> list[list[Json]]:
    """Return the beams of each step, with those of the best output marked.

    Args:
        columns: the recorded beams.
        best: ids of the best output.
        words: converts ids to tokens.
    """
    path = _path_of(columns, best)
    return [
        [
            {key: value for key, value in node.items() if key != "scores"}
            | {
                "token": words([node["id"]])[0],
                "alternatives": top_alternatives(node["scores"], words),
                "best": step < len(path) and path[step] == index,
            }
            for index, node in enumerate(column)
        ]
        for step, column in enumerate(columns)
    ]


def end_of(columns: list[list[Json]], output: Hypothesis, words: Words) -> Json:
    """Return where an output ends in the tree: the step, the parent beam and the last token."""
    step = len(output.ids) - 1
    path = _path_of(columns, output.ids[:-1])
    return {
        "step": step,
        "from": 0 if not step else path[-1] if len(path) == step else None,
        "token": words(output.ids[-1:])[0],
        "log_prob": output.log_probs[-1],
        "total": sum(output.log_probs),
    }


def _path_of(columns: list[list[Json]], ids: Sequence[int]) -> list[int]:
    """Return the index of the beam in each step for a sequence of tokens, as far as the tree has it."""
    path: list[int] = []
    for column, token in zip(columns, ids, strict=False):
        parent = path[-1] if path else 0
        indices = [index for index, node in enumerate(column) if node["id"] == token and node["from"] == parent]
        if not indices:  # an end token has no beam
            break
        path.append(indices[0])
    return path


def top_alternatives(scores: Tensor, words: Words) -> list[Json]:
    """Return the most probable tokens with their log-probabilities, except forbidden ones."""
    values, ids = scores.topk(min(_ALTERNATIVES, len(scores)))
    return [
        {"token": words([token])[0], "log_prob": value}
        for value, token in zip(values.tolist(), ids.tolist(), strict=True)
        if value > -math.inf
    ]
