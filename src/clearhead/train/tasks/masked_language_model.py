"""Masked language model: some tokens are hidden, and guessed from the others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.data.augmentation import mask_tokens
from clearhead.data.records import Row
from clearhead.io import hub
from clearhead.models.freezing import freeze
from clearhead.models.heads import MaskedLanguageModel
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.recipe.recipe import MaskedObjective, Recipe
from clearhead.train.tasks import initialize
from clearhead.train.tasks.base import Batch, Example, TokenPredictions, lengths_mask, padded, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask


class MaskedTask(EncoderTask[MaskedLanguageModel]):
    """BERT's pretraining, without its second task (as RoBERTa's).

    Equation: L = − Σ_{i masked} ln P(x_i | the others)
    Source: Devlin et al. 2018, "BERT", Section 3.1; masks are drawn anew in each epoch (Liu et al. 2019, Section 4.1)

    Args:
        recipe: the run's.
        model: the encoder with its head.
        tokenizer: its tokenizer.
        family: whose folders it is written in.
    """

    fields = ("text",)
    scores = ()

    def __init__(self, recipe: Recipe, model: MaskedLanguageModel, tokenizer: Tokenizer, family: EncoderFamily) -> None:
        super().__init__(recipe, model, model.encoder, tokenizer, family)
        self.objective: MaskedObjective = recipe.objective
        self._mask_id = initialize.token_id(tokenizer, "mask", "[MASK]")

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "MaskedTask":
        """The task as training starts."""
        if recipe.model.start is not None:
            found = hub.resolve_model(recipe.model.start)
            model, family = checkpoints.load_masked_lm(found)
            tokenizer = check_vocabulary(Tokenizer.from_folder(found), found, model.encoder.config.vocab_size)
        else:
            body, family, tokenizer = initialize.encoder(recipe, folder, cls.fields, cls.fields)
            model = checkpoints.new_masked_lm(body, family)
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        return [[{"text": ids}] for ids in self.read(rows, "text")]

    def collate(self, examples: Sequence[Example], draws: np.random.Generator, *, learning: bool) -> Batch:
        masked = [
            mask_tokens(
                example["text"],
                draws,
                mask_id=self._mask_id,
                vocab_size=self.plan.vocab_size,
                protected=self.tokenizer.special_ids,
                rate=self.objective.mask_rate,
            )
            for example in examples
        ]
        wanted = padded([labels for _, labels in masked], -100)
        return Batch(
            {
                "text": padded([inputs for inputs, _ in masked], self.plan.pad_id),
                "keep": lengths_mask([len(inputs) for inputs, _ in masked]),
                "wanted": wanted,
            },
            count=int((wanted != -100).sum()),
            tokens=sum(len(inputs) for inputs, _ in masked),
        )

    def guess(self, model: nn.Module, batch: Batch, *, masked: bool) -> TokenPredictions:
        assert isinstance(model, MaskedLanguageModel)
        chosen = batch["wanted"] != -100
        hidden = model.encoder(batch["text"], padding_mask(batch["keep"], masked))
        # only the hidden tokens go through the head and the vocabulary
        return TokenPredictions(model.head(hidden[chosen]), model.output, batch["wanted"][chosen])

    def validate(self) -> dict[str, float]:
        return {}

    def save(self, folder: Path) -> None:
        checkpoints.save_masked_lm(self.model, self.family, folder)
        self.save_tokenizer(folder)

    def teacher(self, name: str) -> nn.Module:
        model = checkpoints.load_masked_lm(self.teachers_folder(name))[0]
        initialize.check_width(name, self.recipe, self.plan.d_model, model.encoder.config.d_model)
        return model
