"""What the tasks on an encoder have in common."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import nn

from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.data.records import Records, Row
from clearhead.io import hub
from clearhead.models.encoder import EncoderModel
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.tasks import initialize
from clearhead.train.tasks.augmentation import Ids, augmented
from clearhead.train.tasks.base import Task

M = TypeVar("M", bound=nn.Module)


class EncoderTask(Task[M]):
    """A task whose model is an encoder, with a head or without.

    Args:
        recipe: the run's.
        model: the model, all of it.
        body: its encoder.
        tokenizer: its tokenizer.
        family: whose folders it is written in.
    """

    def __init__(
        self, recipe: Recipe, model: M, body: EncoderModel, tokenizer: Tokenizer, family: EncoderFamily
    ) -> None:
        super().__init__()
        self.recipe, self.model, self.tokenizer, self.family = recipe, model, tokenizer, family
        self.plan = body.config

    def limit(self) -> int:
        """Tokens after which a text is cut."""
        return initialize.longest(self.recipe.data.max_length, self.tokenizer.max_length, self.plan.max_len)

    def read(self, rows: Sequence[Row], field: str) -> list[list[int]]:
        """A field's texts as ids; none at all for a blank text."""
        texts = [row.values[field] for row in rows]
        tokens = self.tokenizer.encode(texts, self.limit())
        self.cut += sum(text.truncated for text in tokens)
        return [read.ids if text.strip() else [] for read, text in zip(tokens, texts, strict=True)]

    def augmented(self, texts: Sequence[Ids], draws: np.random.Generator) -> Sequence[Ids]:
        """Texts with the recipe's changes of their tokens."""
        told = self.recipe.regularize.augmentation
        return augmented(texts, told, draws, self.tokenizer, self.plan.vocab_size)

    def held_out(self) -> list[Row]:
        """The held-out rows that are scored."""
        data = self.recipe.data
        assert data.validation is not None
        records = Records(data.validation, fields=self.fields, columns=data.columns, encoding=data.encoding)
        return list(islice(records, self.recipe.validation.examples))

    def key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.limit(), *self.fields])

    def save_tokenizer(self, folder: Path) -> None:
        """Writes the tokenizer beside the model."""
        self.tokenizer.save(folder, initialize.longest(self.tokenizer.max_length, self.plan.max_len))

    def teachers_folder(self, name: str) -> Path:
        """The folder of a teacher with the same tokens.

        Raises:
            ValueError: its tokens are others.
        """
        found = hub.resolve_model(name)
        initialize.check_alike(name, self.tokenizer, Tokenizer.from_folder(found))
        return found
