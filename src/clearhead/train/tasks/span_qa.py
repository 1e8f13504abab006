"""Extractive question answering: predict the first and last token of the answer in its context."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.data.records import Row
from clearhead.models.freezing import freeze
from clearhead.models.heads import SpanClassifier
from clearhead.pipelines.question_answerer import WINDOW_LENGTH, QuestionAnswerer
from clearhead.tokenizers.question_context import ContextOverflowError, PairWindow, pair_windows
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import RecipeBase, Section
from clearhead.train.regularizers.augmentation import Ids
from clearhead.train.tasks import initialize
from clearhead.train.tasks.base import Batch, Example, TaskEntry, keep_mask, pad, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask, encoder_conflicts
from clearhead.train.tasks.predictions import ClassPredictions
from clearhead.train.tasks.samples import label_line


class SpanObjective(Section):
    """Settings of extractive question answering (Devlin et al. 2018, Sections 4.2 and 4.3).

    Args:
        stride: number of context tokens that consecutive windows share.
    """

    stride: Annotated[int, Field(ge=0)] = 128


class SpanQATask(EncoderTask[SpanClassifier]):
    """Extractive question answering: two classifications over a window's tokens, of the answer's first and last one.

    Equation: L = − Σ_n (ln softmax(s_n)_{i_n} + ln softmax(e_n)_{j_n}); without an answer, i = j = [CLS]
    Source: Devlin et al. 2018, "BERT", Sections 4.2 and 4.3

    Args:
        recipe: the recipe.
        model: the encoder with its head.
        tokenizer: its tokenizer.
        family: model family whose format the model is saved in.
    """

    fields = ("question", "context", "answer", "answer_start")
    metrics = ("exact_match", "f1")
    untruncated_field = "question"

    def __init__(self, recipe: Recipe, model: SpanClassifier, tokenizer: Tokenizer, family: EncoderFamily) -> None:
        super().__init__(recipe, model, model.encoder, tokenizer, family)
        self.objective: SpanObjective = recipe.objective
        self._use_token_types = self.config.num_token_types > 1 and tokenizer.has_token_types

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "SpanQATask":
        """Return the task with its initialized model."""
        encoder, family, tokenizer = initialize.initialize_encoder(recipe, folder, cls.fields, ("question", "context"))
        model = checkpoints.new_span_classifier(encoder, family, drop_prob=recipe.regularize.dropout.residual)
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        examples: list[list[Example]] = []
        for row in rows:
            try:
                windows = self._windows(row)
                begin, end = _answer_span(row)
            except ContextOverflowError as error:
                if self.recipe.data.strict:
                    raise ValueError(f"{row.location}: {error}") from None
                self.num_too_long += 1
                examples.append([])
                continue
            except ValueError as error:
                raise ValueError(f"{row.location}: {error}") from None
            # a row without windows counts as an example without tokens
            examples.append([self._example(window, begin, end) for window in windows] or [_EMPTY])
        return examples

    def _windows(self, row: Row) -> list[PairWindow]:
        """Return the windows of a row, or none if the question or the context is blank."""
        pair = (row.values["question"], row.values["context"])
        if not all(text.strip() for text in pair):
            return []
        (windows,) = pair_windows(self.tokenizer, [pair], self.max_length(), self.objective.stride)
        return windows

    def can_show(self, row: Row) -> bool:
        with suppress(ContextOverflowError):
            return bool(self._windows(row))
        return False

    def max_length(self) -> int:
        return min(super().max_length(), WINDOW_LENGTH)

    def _example(self, window: PairWindow, begin: int, end: int) -> Example:
        """Return a window with the positions of the answer's first and last token: (0, 0) if it lacks one of them."""
        first = last = 0
        starts = [offset[0] for offset in window.offsets]
        if begin < end and starts[0] <= begin and end <= window.offsets[-1][1]:
            first = window.context_start + bisect_right(starts, begin) - 1
            last = window.context_start + bisect_right(starts, end - 1) - 1
        return {"text": window.ids, "types": window.token_types, "begin": first, "end": last}

    def collate(self, examples: Sequence[Example], generator: np.random.Generator, *, training: bool) -> Batch:
        texts: Sequence[Ids] = [example["text"] for example in examples]
        if training:
            texts = self.augment(texts, generator)
        tensors = {
            "text": pad(texts, self.config.pad_id),
            "keep": keep_mask([len(text) for text in texts]),
            "types": pad([example["types"] for example in examples], 0),
            "begin": torch.tensor([int(example["begin"]) for example in examples]),
            "end": torch.tensor([int(example["end"]) for example in examples]),
        }
        return Batch(tensors, count=len(examples), num_tokens=int(tensors["keep"].sum()))

    def predict(self, model: nn.Module, batch: Batch, *, mask_padding: bool) -> ClassPredictions:
        assert isinstance(model, SpanClassifier)
        mask = padding_mask(batch["keep"], mask_padding)
        begin, end = model(batch["text"], mask, batch["types"] if self._use_token_types else None)
        targets = torch.cat([batch["begin"], batch["end"]])
        logits = torch.cat([_mask_logits(begin, batch["keep"]), _mask_logits(end, batch["keep"])])
        return ClassPredictions(logits, targets)

    def validate(self) -> dict[str, float]:
        from clearhead.metrics.squad import exact_match, f1

        rows = [row for row in self.validation_rows() if self.can_show(row)]
        references = [[row.values["answer"]] if row.values["answer"] else [] for row in rows]
        pairs = list(zip(self._predicted_answers(rows, rows), references, strict=True))
        return {
            "exact_match": 100 * float(np.mean([exact_match(text, answers) for text, answers in pairs])),
            "f1": 100 * float(np.mean([f1(text, answers) for text, answers in pairs])),
        }

    def samples(self) -> list[str]:
        rows = self.sample_rows()
        answers = self._predicted_answers(rows, self.validation_rows())
        return [
            label_line(row.values["question"], answer or "no answer", row.values["answer"] or "no answer")
            for row, answer in zip(rows, answers, strict=True)
        ]

    def _predicted_answers(self, rows: Sequence[Row], held_out: Sequence[Row]) -> list[str]:
        """Return the answer to each row's question; "" for no answer, which one of the held-out rows must have."""
        device = str(next(self.model.parameters()).device)
        answerer = QuestionAnswerer(
            self.model, self.tokenizer, self.family, precision=self.recipe.training.precision, device=device
        )
        results = answerer.answers(
            [(row.values["question"], row.values["context"]) for row in rows],
            allow_no_answer=any(not row.values["answer"] for row in held_out),
            max_length=self.max_length(),
            stride=self.objective.stride,
        )
        return [result.text for result in results]

    def save(self, folder: Path) -> None:
        self.family.save_with_head(self.model, folder)
        self.save_tokenizer(folder)

    def cache_key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.max_length(), self.objective.stride])

    def load_teacher(self, name: str) -> nn.Module:
        return checkpoints.load_span_classifier(self.teacher_folder(name))[0]


_EMPTY: Example = {"text": [], "types": [], "begin": 0, "end": 0}


def _answer_span(row: Row) -> tuple[int, int]:
    """Return the answer's characters [begin, end) in its context, or (0, 0) without an answer.

    Raises:
        ValueError: the context does not contain the answer at answer_start.
    """
    answer, context, start = row.values["answer"], row.values["context"], row.values["answer_start"].strip()
    if not answer.strip():
        return 0, 0
    if not start.isdigit():
        raise ValueError(f"answer_start is {start!r}; expected the index of the answer's first character")
    begin = int(start)
    if context[begin : begin + len(answer)] != answer:
        raise ValueError(f"the context does not contain the answer {answer!r} at character {begin}")
    return begin, begin + len(answer)


def _mask_logits(logits: Tensor, keep: Tensor) -> Tensor:
    """Return logits with low values at padding: probability 0, but finite, so that divergences are finite too."""
    return logits.float().masked_fill(~keep, -1e4)


def _conflicts(recipe: RecipeBase) -> Iterator[tuple[str, str]]:
    yield from encoder_conflicts(recipe)
    for name in ("token_deletion", "token_swapping", "local_shuffle"):
        if getattr(recipe.regularize.augmentation, name, 0):
            yield f"regularize.augmentation.{name}", "moves the tokens of the answer; use the other augmentations"


TASK = TaskEntry("span-answers", SpanObjective, ClassPredictions, SpanQATask.from_recipe, _conflicts)
