"""Masked language modeling: predict masked tokens from the others."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
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
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import RecipeBase, Section
from clearhead.train.tasks import initialize
from clearhead.train.tasks.base import Batch, Example, TaskEntry, keep_mask, pad, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask, encoder_conflicts
from clearhead.train.tasks.predictions import TokenPredictions
from clearhead.train.tasks.samples import label_line

_SAMPLE_TOKENS = 32
"""Tokens of a held-out text that a sample shows."""

_IGNORED = -100
"""Target at positions that are not predicted."""


class MaskedLanguageModelObjective(Section):
    """Settings of masked language modeling (Devlin et al. 2018, Section 3.1).

    Args:
        mask_rate: share of tokens to predict.
    """

    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15


class MaskedLanguageModelTask(EncoderTask[MaskedLanguageModel]):
    """BERT's pretraining without next-sentence prediction, as in RoBERTa.

    Equation: L = − Σ_{i masked} ln P(x_i | the others)
    Source: Devlin et al. 2018, "BERT", Section 3.1; new masks in each epoch (Liu et al. 2019, Section 4.1)

    Args:
        recipe: the recipe.
        model: the encoder with its head.
        tokenizer: its tokenizer.
        family: model family whose format the model is saved in.
    """

    fields = ("text",)
    metrics = ()

    def __init__(self, recipe: Recipe, model: MaskedLanguageModel, tokenizer: Tokenizer, family: EncoderFamily) -> None:
        super().__init__(recipe, model, model.encoder, tokenizer, family)
        self.objective: MaskedLanguageModelObjective = recipe.objective
        self._mask_id = initialize.special_token_id(tokenizer, "mask", "[MASK]", recipe)

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "MaskedLanguageModelTask":
        """Return the task with its initialized model."""
        if recipe.model.init_from is not None:
            checkpoint = hub.resolve_model(recipe.model.init_from)
            model, family = checkpoints.load_masked_lm(checkpoint, initialize.with_recipe_rates(recipe))
            vocab_size = model.encoder.config.vocab_size
            tokenizer = check_vocabulary(Tokenizer.from_folder(checkpoint), checkpoint, vocab_size)
        else:
            encoder, family, tokenizer = initialize.initialize_encoder(recipe, folder, cls.fields, cls.fields)
            model = checkpoints.new_masked_lm(encoder, family)
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        return [[{"text": ids}] for ids in self.tokenize(rows, "text")]

    def collate(self, examples: Sequence[Example], generator: np.random.Generator, *, training: bool) -> Batch:
        masked = [
            mask_tokens(
                example["text"],
                generator,
                mask_id=self._mask_id,
                vocab_size=self.config.vocab_size,
                protected=self.tokenizer.special_ids,
                rate=self.objective.mask_rate,
            )
            for example in examples
        ]
        targets = pad([labels for _, labels in masked], _IGNORED)
        return Batch(
            {
                "text": pad([inputs for inputs, _ in masked], self.config.pad_id),
                "keep": keep_mask([len(inputs) for inputs, _ in masked]),
                "targets": targets,
            },
            count=int((targets != _IGNORED).sum()),
            num_tokens=sum(len(inputs) for inputs, _ in masked),
        )

    def predict(self, model: nn.Module, batch: Batch, *, mask_padding: bool) -> TokenPredictions:
        assert isinstance(model, MaskedLanguageModel)
        predicted = batch["targets"] != _IGNORED
        hidden = model.encoder(batch["text"], padding_mask(batch["keep"], mask_padding))
        # only masked tokens pass through the head and the output projection
        return TokenPredictions(model.head(hidden[predicted]), model.output, batch["targets"][predicted])

    def validate(self) -> dict[str, float]:
        return {}

    def samples(self) -> list[str]:
        """Show which tokens the model predicts at the gaps of some texts."""
        texts, device = [row.values["text"] for row in self.sample_rows()], next(self.model.parameters()).device
        lines = []
        for number, encoding in enumerate(self.tokenizer.encode(texts, min(_SAMPLE_TOKENS, self.max_length()))):
            example = {"text": np.asarray(encoding.ids)}
            batch = self.collate([example], np.random.default_rng(number), training=False).to(device)
            if not batch.count:
                continue
            prediction = self.predict(self.model, batch, mask_padding=True)
            predicted = prediction.output(prediction.hidden_ND).argmax(-1).tolist()
            gaps = (batch["targets"][0] != _IGNORED).tolist()
            text = self._text_with_gaps(encoding.ids, gaps)
            lines.append(label_line(text, self._token_list(predicted), self._token_list(prediction.targets_N.tolist())))
        return lines

    def _text_with_gaps(self, ids: Sequence[int], gaps: Sequence[bool]) -> str:
        parts = [
            "___" if is_gap else self.tokenizer.decode([number for number, _ in group])
            for is_gap, group in groupby(zip(ids, gaps, strict=True), key=lambda pair: pair[1])
        ]
        return " ".join(parts)

    def _token_list(self, ids: Sequence[int]) -> str:
        return " / ".join(self.tokenizer.decode([number]).strip() or "·" for number in ids)

    def save(self, folder: Path) -> None:
        checkpoints.save_masked_lm(self.model, self.family, folder)
        self.save_tokenizer(folder)

    def load_teacher(self, name: str) -> nn.Module:
        model = checkpoints.load_masked_lm(self.teacher_folder(name))[0]
        initialize.check_width(name, self.recipe, self.config.d_model, model.encoder.config.d_model)
        return model


def _conflicts(recipe: RecipeBase) -> Iterator[tuple[str, str]]:
    yield from encoder_conflicts(recipe)
    if recipe.regularize.augmentation is not None:
        yield "regularize.augmentation", "would change the tokens to predict; use objective.mask_rate instead"


TASK = TaskEntry(
    "masked-language-model",
    MaskedLanguageModelObjective,
    TokenPredictions,
    MaskedLanguageModelTask.from_recipe,
    _conflicts,
)
