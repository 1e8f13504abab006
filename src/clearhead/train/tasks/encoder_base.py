"""Base class of the tasks on an encoder."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import nn

from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.data.records import Row
from clearhead.io import hub
from clearhead.models.encoder import EncoderModel
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.data.files import open_records
from clearhead.train.recipe.errors import named
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import RecipeBase
from clearhead.train.regularizers.augmentation import Ids, augment
from clearhead.train.tasks import initialize
from clearhead.train.tasks.base import Task
from clearhead.train.tasks.samples import spread

M = TypeVar("M", bound=nn.Module)


class EncoderTask(Task[M]):
    """A task on an encoder, with or without a head.

    Args:
        recipe: the recipe.
        model: the whole model.
        encoder: its encoder.
        tokenizer: its tokenizer.
        family: model family whose format the model is saved in.
    """

    def __init__(
        self, recipe: Recipe, model: M, encoder: EncoderModel, tokenizer: Tokenizer, family: EncoderFamily
    ) -> None:
        super().__init__()
        self.recipe, self.model, self.tokenizer, self.family = recipe, model, tokenizer, family
        self.config = encoder.config
        self._sample_rows: list[Row] | None = None

    def max_length(self) -> int:
        """Return the maximum number of tokens of a text."""
        return initialize.smallest(self.recipe.data.max_length, self.tokenizer.max_length, self.config.max_len)

    def tokenize(self, rows: Sequence[Row], field: str) -> list[list[int]]:
        """Return the token ids of a field; a blank text has none."""
        texts = [row.values[field] for row in rows]
        max_length = self.max_length()
        with named("data.max_length or model.max_len"):
            self.tokenizer.encode([""], max_length)
        encodings = self.tokenizer.encode(texts, max_length)
        self.num_truncated += sum(encoding.truncated for encoding in encodings)
        return [encoding.ids if text.strip() else [] for encoding, text in zip(encodings, texts, strict=True)]

    def augment(self, texts: Sequence[Ids], generator: np.random.Generator) -> Sequence[Ids]:
        """Return texts with the recipe's augmentation."""
        settings = self.recipe.regularize.augmentation
        return augment(texts, settings, generator, self.tokenizer, self.config.vocab_size)

    def validation_rows(self) -> list[Row]:
        """Return the held-out rows for the metrics."""
        data = self.recipe.data
        assert data.validation is not None
        records = open_records(data, data.validation, self.fields)
        return list(islice(records, self.recipe.validation.max_examples))

    def sample_rows(self) -> list[Row]:
        """Return the held-out rows that `samples` shows: a few without blank texts."""
        if self._sample_rows is None:
            self._sample_rows = spread([row for row in self.validation_rows() if self.can_show(row)])
        return self._sample_rows

    def can_show(self, row: Row) -> bool:
        """Return whether the model has a prediction for a row."""
        return all(value.strip() for value in row.values.values())

    def cache_key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.max_length(), *self.fields])

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer into the model's folder."""
        self.tokenizer.save(folder, initialize.smallest(self.tokenizer.max_length, self.config.max_len))

    def teacher_folder(self, name: str) -> Path:
        """Return the folder of a teacher with the same tokens.

        Raises:
            ValueError: the teacher has other tokens.
        """
        folder = hub.resolve_model(name)
        initialize.check_same_tokens(name, self.tokenizer, Tokenizer.from_folder(folder))
        return folder


def encoder_conflicts(recipe: RecipeBase) -> Iterator[tuple[str, str]]:
    """Yield the recipe keys that only encoder–decoders have, and why they are not allowed."""
    for name in ("init_encoder_from", "init_decoder_from", "decoder_num_layers"):
        if getattr(recipe.model, name) is not None:
            yield f"model.{name}", f"requires an encoder–decoder; the task is {recipe.task}"
    if recipe.validation.metrics:
        yield "validation.metrics", f"require the task text-to-text; the metrics of {recipe.task} are fixed"
