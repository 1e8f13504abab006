"""Sentence embeddings: similar texts get similar vectors."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints import sentence_transformers
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.sentence_transformers import SentenceSettings
from clearhead.data.records import Row
from clearhead.equations import losses
from clearhead.io import hub
from clearhead.models.config import Pooling
from clearhead.models.encoder import EncoderModel
from clearhead.models.freezing import freeze
from clearhead.models.heads import pool
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import Section
from clearhead.train.regularizers.augmentation import Ids
from clearhead.train.tasks import initialize
from clearhead.train.tasks.base import Batch, Example, TaskEntry, keep_mask, pad, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask, encoder_conflicts
from clearhead.train.tasks.predictions import EmbeddingPredictions
from clearhead.train.tasks.samples import shortened

if TYPE_CHECKING:
    from clearhead.pipelines.text_encoder import TextEncoder


class SentenceEmbeddingObjective(Section):
    """Settings of sentence embeddings (Reimers and Gurevych 2019; Henderson et al. 2017).

    Args:
        loss: contrastive classifies the second text of each pair among all second texts of the batch; regression
            compares the cosine of a pair with its score.
        pooling: mean, cls or max.
        scale: factor of the cosines in the contrastive loss.
        score_range: lowest and highest score in the data; scores are mapped to 0 … 1.
    """

    loss: Literal["contrastive", "regression"] = "contrastive"
    pooling: Pooling = "mean"
    scale: Annotated[float, Field(gt=0)] = 20.0
    score_range: tuple[float, float] = (0.0, 5.0)

    @model_validator(mode="after")
    def _check_range(self) -> "SentenceEmbeddingObjective":
        low, high = self.score_range
        if not low < high:
            raise ValueError(f"score_range must increase; got {low} to {high}")
        return self


class SentenceEmbeddingTask(EncoderTask[EncoderModel]):
    """Pairs of similar texts, or pairs with a similarity score.

    Equation: contrastive: L = − Σ_i ln softmax_j(scale · cos(a_i, b_j))_i; regression: L = Σ_i (cos(a_i, b_i) − s_i)²
    Source: Henderson et al. 2017; Reimers and Gurevych 2019, "Sentence-BERT", Section 3

    Args:
        recipe: the recipe.
        model: the encoder.
        tokenizer: its tokenizer.
        family: model family whose format the model is saved in.
        settings: pooling and normalization.
    """

    metrics: tuple[str, ...]

    def __init__(
        self,
        recipe: Recipe,
        model: EncoderModel,
        tokenizer: Tokenizer,
        family: EncoderFamily,
        settings: SentenceSettings,
    ) -> None:
        super().__init__(recipe, model, model, tokenizer, family)
        self.settings = settings
        self.objective: SentenceEmbeddingObjective = recipe.objective
        self.fields = _fields(self.objective)
        self.metrics = ("spearman", "pearson") if "score" in self.fields and recipe.data.validation is not None else ()

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "SentenceEmbeddingTask":
        """Return the task with its initialized model."""
        objective: SentenceEmbeddingObjective = recipe.objective
        fields, text_fields = _fields(objective), ("first", "second")
        model, family, tokenizer = initialize.initialize_encoder(recipe, folder, fields, text_fields)
        settings = SentenceSettings(pooling=objective.pooling, normalize=True)
        if recipe.model.init_from is not None:
            saved = sentence_transformers.read_settings(hub.resolve_model(recipe.model.init_from))
            settings = replace(saved, pooling=objective.pooling, normalize=True)
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family, settings)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        examples: list[list[Example]] = []
        for row, first, second in zip(rows, self.tokenize(rows, "first"), self.tokenize(rows, "second"), strict=True):
            example: dict[str, object] = {"first": first, "second": second}
            examples.append([{**example, "score": self._score(row)} if "score" in self.fields else example])
        return examples

    def max_length(self) -> int:
        return initialize.smallest(super().max_length(), self.settings.max_length)

    def _score(self, row: Row) -> float:
        low, high = self.objective.score_range
        try:
            score = float(row.values["score"])
        except ValueError:
            raise ValueError(f"{row.location}: the score is {row.values['score']!r}; expected a number") from None
        if not low <= score <= high:
            raise ValueError(f"{row.location}: the score {score} is outside objective.score_range, {low} to {high}")
        return (score - low) / (high - low)

    def collate(self, examples: Sequence[Example], generator: np.random.Generator, *, training: bool) -> Batch:
        tensors: dict[str, Tensor] = {}
        for field in ("first", "second"):
            texts: Sequence[Ids] = [example[field] for example in examples]
            if training:
                texts = self.augment(texts, generator)
            tensors[field] = pad(texts, self.config.pad_id)
            tensors[f"{field}_keep"] = keep_mask([len(text) for text in texts])
        if "score" in self.fields:
            tensors["score"] = torch.tensor([float(example["score"]) for example in examples])
        num_tokens = int(tensors["first_keep"].sum() + tensors["second_keep"].sum())
        shared = () if "score" in self.fields else ("second", "second_keep")
        return Batch(tensors, count=len(examples), num_tokens=num_tokens, shared=frozenset(shared))

    def predict(self, model: nn.Module, batch: Batch, *, mask_padding: bool) -> EmbeddingPredictions:
        first, second = (
            pool(
                model(batch[field], padding_mask(batch[f"{field}_keep"], mask_padding)).float(),
                batch[f"{field}_keep"],
                self.settings.pooling,
            )
            for field in ("first", "second")
        )
        if "score" in self.fields:
            loss = losses.cosine_regression(first, second, batch["score"])
        else:
            loss = losses.contrastive(first, second, scale=self.objective.scale)
        # a shared `second` starts with this process's rows; the others belong to other processes
        return EmbeddingPredictions(loss, torch.cat([first, second[: len(first)]]))

    def validate(self) -> dict[str, float]:
        if not self.metrics:
            return {}
        from clearhead.metrics.similarity import evaluate_similarity

        rows = self.validation_rows()
        result = evaluate_similarity(
            self._encoder(str(next(self.model.parameters()).device)).encode,
            [row.values["first"] for row in rows],
            [row.values["second"] for row in rows],
            [self._score(row) for row in rows],
        )
        return {"spearman": result.spearman, "pearson": result.pearson}

    def samples(self) -> list[str]:
        """Compare the cosine of a pair with its score on the scale 0 … 1, or with the cosines of other pairs' texts."""
        rows = self.sample_rows()
        if len(rows) < 2:
            return []
        encoder = self._encoder(str(next(self.model.parameters()).device))
        cosines = encoder.similarity(*([row.values[field] for row in rows] for field in ("first", "second")))
        lines = []
        for number, row in enumerate(rows):
            text = f"{shortened(row.values['first'])} | {shortened(row.values['second'])}"
            others = np.delete(cosines[number], number).mean()
            compared = f"given {self._score(row):.2f}" if "score" in self.fields else f"with other texts {others:.2f}"
            lines.append(f"  cosine {cosines[number, number]:.2f}, {compared}: {text}")
        return lines

    def save(self, folder: Path) -> None:
        self._encoder("cpu").save_pretrained(folder)

    def _encoder(self, device: str) -> "TextEncoder":
        from clearhead.pipelines.text_encoder import TextEncoder

        return TextEncoder(self.model, self.tokenizer, self.settings, self.family, precision="float32", device=device)

    def cache_key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.max_length(), *self.fields, *self.objective.score_range])

    def load_teacher(self, name: str) -> nn.Module:
        model, _ = checkpoints.load_encoder(self.teacher_folder(name))
        if model.config.d_model != self.config.d_model:
            raise ValueError(
                f"the teacher {name} has embeddings of width {model.config.d_model}, this model of width "
                f"{self.config.d_model}; distillation requires equal widths"
            )
        return model


def _fields(objective: SentenceEmbeddingObjective) -> tuple[str, ...]:
    return ("first", "second", "score") if objective.loss == "regression" else ("first", "second")


TASK = TaskEntry(
    "sentence-embeddings",
    SentenceEmbeddingObjective,
    EmbeddingPredictions,
    SentenceEmbeddingTask.from_recipe,
    encoder_conflicts,
)
