"""The pipeline "text-classification"."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clearhead.checkpoints.sentence_transformers import CrossEncoderSettings
from clearhead.choices import check_choice
from clearhead.integrations.transformers.base import TextPipeline
from clearhead.pipelines.base import warn_truncated
from clearhead.pipelines.reranker import Reranker
from clearhead.tokenizers.base import PairTokens

_FUNCTIONS = ("softmax", "sigmoid", "none")


class TextClassification(TextPipeline):
    """Labels of texts or of pairs of texts, with their scores: {"label": ..., "score": ...}.

    Args:
        task: name of the task.
        model: an encoder with a classification head.
        defaults: options of every call.

    Options of a call: `top_k`, the number of labels, None for all; without it, a result is the best label and no list.
    `function_to_apply`, "softmax", "sigmoid" or "none", for the scores; None for that of the model's problem type.
    """

    options = ("top_k", "function_to_apply", "return_all_scores")

    def __init__(self, task: str, model: Reranker, defaults: Mapping[str, Any]) -> None:
        super().__init__(task, defaults)
        model.settings = CrossEncoderSettings("identity")
        self.model = model

    def compute(self, inputs: list[Any], options: Mapping[str, Any]) -> list[Any]:
        tokens = [self._tokens(number, item) for number, item in enumerate(inputs)]
        warn_truncated([one.truncated for one in tokens], self.model.max_length, "Split them")
        scores = self._apply(torch.from_numpy(self.model.score_tokens(tokens)), options.get("function_to_apply"))
        results = [
            [{"label": label, "score": score} for label, score in zip(self.model.labels, row, strict=True)]
            for row in scores.tolist()
        ]
        if options.get("return_all_scores") and "top_k" not in options:
            return results
        count = _check_top_k(options.get("top_k", 1))
        ranked = [sorted(labels, key=lambda one: -one["score"])[:count] for labels in results]
        return ranked if "top_k" in options else [labels[0] for labels in ranked]

    def single(self, inputs: Any, result: Any, options: Mapping[str, Any]) -> Any:
        return [result] if isinstance(inputs, str) and "top_k" not in options else result

    def _tokens(self, number: int, item: Any) -> PairTokens:
        tokenizer, limit = self.model.tokenizer, self.model.max_length
        if isinstance(item, list) and len(item) == 1 and isinstance(item[0], list) and len(item[0]) == 2:
            item = dict(zip(("text", "text_pair"), item[0], strict=True))
        if isinstance(item, Mapping):
            if not {"text"} <= set(item) <= {"text", "text_pair"}:
                raise ValueError(
                    f"input {number} has the keys {', '.join(map(str, item))}; expected text and text_pair"
                )
            if item.get("text_pair") is not None:
                return tokenizer.encode_pairs([(item["text"], item["text_pair"])], limit)[0]
            item = item["text"]
        if not isinstance(item, str):
            raise ValueError(
                f'input {number} is a {type(item).__name__}; expected a text, or {{"text": ..., "text_pair": ...}} for '
                "a pair of texts"
            )
        (tokens,) = tokenizer.encode([item], limit)
        return PairTokens(tokens.ids, tokens.truncated, [0] * len(tokens.ids))

    def _apply(self, logits: Tensor, function: str | None) -> Tensor:
        problem = self.model.model.head_config.problem
        if function is None:
            several = problem != "multi_label_classification" and len(self.model.labels) > 1
            function = "none" if problem == "regression" else "softmax" if several else "sigmoid"
        function = str(function).lower()
        check_choice("function_to_apply", function, _FUNCTIONS)
        if function == "softmax":
            return logits.softmax(dim=-1)
        return logits.sigmoid() if function == "sigmoid" else logits


def _check_top_k(top_k: int | None) -> int | None:
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, or None for all labels; got {top_k}")
    return top_k
