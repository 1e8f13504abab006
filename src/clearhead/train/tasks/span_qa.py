"""Answers as spans: where in the context does the answer begin, and where does it end?"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.data.records import Row
from clearhead.models.freezing import freeze
from clearhead.models.heads import SpanClassifier
from clearhead.pipelines.question_answerer import WINDOW_LENGTH, QuestionAnswerer
from clearhead.tokenizers.question_context import ContextOverflowError, PairWindow, pair_windows
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.recipe.recipe import Recipe, SpanObjective
from clearhead.train.tasks import initialize
from clearhead.train.tasks.augmentation import Ids
from clearhead.train.tasks.base import Batch, ClassPredictions, Example, lengths_mask, padded, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask


class SpanTask(EncoderTask[SpanClassifier]):
    """Two choices among the tokens of a window: the answer's first and its last.

    Equation: L = − Σ_n (ln softmax(s_n)_{i_n} + ln softmax(e_n)_{j_n}); without an answer, i = j = [CLS]
    Source: Devlin et al. 2018, "BERT", Sections 4.2 and 4.3

    Args:
        recipe: the run's.
        model: the encoder with its head.
        tokenizer: its tokenizer.
        family: whose folders it is written in.
    """

    fields = ("question", "context", "answer", "answer_start")
    scores = ("exact_match", "f1")
    uncut = "question"

    def __init__(self, recipe: Recipe, model: SpanClassifier, tokenizer: Tokenizer, family: EncoderFamily) -> None:
        super().__init__(recipe, model, model.encoder, tokenizer, family)
        self.objective: SpanObjective = recipe.objective
        told = tokenizer.config.get("model_input_names")
        # as `QuestionAnswerer` will read
        self._typed = self.plan.num_token_types > 1 and (not isinstance(told, list) or "token_type_ids" in told)

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "SpanTask":
        """The task as training starts."""
        body, family, tokenizer = initialize.encoder(recipe, folder, cls.fields, ("question", "context"))
        model = checkpoints.new_span_classifier(body, family)
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        made: list[list[Example]] = []
        for row in rows:
            try:
                windows = self._windows(row)
                begin, end = _place(row)
            except ContextOverflowError as error:
                if self.recipe.data.strict:
                    raise ValueError(f"{row.location}: {error}") from None
                self.longer += 1
                made.append([])
                continue
            except ValueError as error:
                raise ValueError(f"{row.location}: {error}") from None
            # a row without a window is counted as an example without tokens
            made.append([self._example(window, begin, end) for window in windows] or [_NOTHING])
        return made

    def _windows(self, row: Row) -> list[PairWindow]:
        """The windows of a row; none where there is no question or no context."""
        pair = (row.values["question"], row.values["context"])
        if not all(text.strip() for text in pair):
            return []
        (windows,) = pair_windows(self.tokenizer, [pair], self.limit(), self.objective.stride)
        return windows

    def _read(self, row: Row) -> bool:
        """Whether a row is one that examples are made of."""
        with suppress(ContextOverflowError):
            return bool(self._windows(row))
        return False

    def limit(self) -> int:
        return min(super().limit(), WINDOW_LENGTH)

    def _example(self, window: PairWindow, begin: int, end: int) -> Example:
        """A window, with the places of the answer's first and last token in it: (0, 0) where it does not hold both."""
        first = last = 0
        starts = [offset[0] for offset in window.offsets]
        if begin < end and starts[0] <= begin and end <= window.offsets[-1][1]:
            first = window.context_start + bisect_right(starts, begin) - 1
            last = window.context_start + bisect_right(starts, end - 1) - 1
        return {"text": window.ids, "types": window.token_types, "begin": first, "end": last}

    def collate(self, examples: Sequence[Example], draws: np.random.Generator, *, learning: bool) -> Batch:
        texts: Sequence[Ids] = [example["text"] for example in examples]
        if learning:
            texts = self.augmented(texts, draws)
        tensors = {
            "text": padded(texts, self.plan.pad_id),
            "keep": lengths_mask([len(text) for text in texts]),
            "types": padded([example["types"] for example in examples], 0),
            "begin": torch.tensor([int(example["begin"]) for example in examples]),
            "end": torch.tensor([int(example["end"]) for example in examples]),
        }
        return Batch(tensors, count=len(examples), tokens=int(tensors["keep"].sum()))

    def guess(self, model: nn.Module, batch: Batch, *, masked: bool) -> ClassPredictions:
        assert isinstance(model, SpanClassifier)
        mask = padding_mask(batch["keep"], masked)
        begin, end = model(batch["text"], mask, batch["types"] if self._typed else None)
        wanted = torch.cat([batch["begin"], batch["end"]])
        return ClassPredictions(torch.cat([_real(begin, batch["keep"]), _real(end, batch["keep"])]), wanted)

    def validate(self) -> dict[str, float]:
        from clearhead.metrics.squad import exact_match, f1

        rows = [row for row in self.held_out() if self._read(row)]
        device = str(next(self.model.parameters()).device)
        reader = QuestionAnswerer(
            self.model, self.tokenizer, self.family, precision=self.recipe.training.precision, device=device
        )
        none = any(not row.values["answer"] for row in rows)
        found = reader.answers(
            [(row.values["question"], row.values["context"]) for row in rows],
            allow_no_answer=none,
            max_length=self.limit(),
            stride=self.objective.stride,
        )
        golds = [[row.values["answer"]] if row.values["answer"] else [] for row in rows]
        pairs = list(zip([answer.text for answer in found], golds, strict=True))
        return {
            "exact_match": 100 * float(np.mean([exact_match(text, gold) for text, gold in pairs])),
            "f1": 100 * float(np.mean([f1(text, gold) for text, gold in pairs])),
        }

    def save(self, folder: Path) -> None:
        self.family.save_with_head(self.model, folder)
        self.save_tokenizer(folder)

    def key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.limit(), self.objective.stride])

    def teacher(self, name: str) -> nn.Module:
        return checkpoints.load_span_classifier(self.teachers_folder(name))[0]


_NOTHING: Example = {"text": [], "types": [], "begin": 0, "end": 0}


def _place(row: Row) -> tuple[int, int]:
    """The answer's characters [begin, end) in its context; (0, 0) where there is none.

    Raises:
        ValueError: the answer does not stand where the row says.
    """
    answer, context, told = row.values["answer"], row.values["context"], row.values["answer_start"].strip()
    if not answer.strip():
        return 0, 0
    if not told.isdigit():
        raise ValueError(
            f"answer_start is {told!r}; the number of the answer's first character in the context is wanted"
        )
    begin = int(told)
    if context[begin : begin + len(answer)] != answer:
        raise ValueError(f"the answer {answer!r} does not stand at character {begin} of its context")
    return begin, begin + len(answer)


def _real(logits: Tensor, keep: Tensor) -> Tensor:
    """Logits of real tokens; padding's are so low that its probability is 0, and finite, so that divergences are."""
    return logits.float().masked_fill(~keep, -1e4)
