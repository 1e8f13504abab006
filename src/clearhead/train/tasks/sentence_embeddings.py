"""Sentence embeddings: vectors of texts that mean the same lie near each other."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints import sentence_transformers
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.sentence_transformers import SentenceSettings
from clearhead.data.records import Row
from clearhead.equations import losses
from clearhead.io import hub
from clearhead.models.encoder import EncoderModel
from clearhead.models.freezing import freeze
from clearhead.models.heads import pool
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.recipe.recipe import EmbeddingObjective, Recipe
from clearhead.train.tasks import initialize
from clearhead.train.tasks.augmentation import Ids
from clearhead.train.tasks.base import Batch, EmbeddingPredictions, Example, lengths_mask, padded, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask


class EmbeddingTask(EncoderTask[EncoderModel]):
    """Pairs of texts: in-batch contrastive, or with a score each.

    Equation: contrastive: L = − Σ_i ln softmax_j(scale · cos(a_i, b_j))_i; regression: L = Σ_i (cos(a_i, b_i) − s_i)²
    Source: Henderson et al. 2017; Reimers and Gurevych 2019, "Sentence-BERT", Section 3

    Args:
        recipe: the run's.
        model: the encoder.
        tokenizer: its tokenizer.
        family: whose folders it is written in.
        settings: what becomes of its hidden states.
    """

    scores: tuple[str, ...]

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
        self.objective: EmbeddingObjective = recipe.objective
        self.fields = _fields(self.objective)
        self.scores = ("spearman", "pearson") if "score" in self.fields and recipe.data.validation is not None else ()

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "EmbeddingTask":
        """The task as training starts."""
        objective: EmbeddingObjective = recipe.objective
        model, family, tokenizer = initialize.encoder(recipe, folder, _fields(objective), ("first", "second"))
        settings = SentenceSettings(pooling=objective.pooling, normalize=True)
        if recipe.model.start is not None:
            held = sentence_transformers.read_settings(hub.resolve_model(recipe.model.start))
            settings = replace(held, pooling=objective.pooling, normalize=True)
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family, settings)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        made: list[list[Example]] = []
        for row, first, second in zip(rows, self.read(rows, "first"), self.read(rows, "second"), strict=True):
            example: dict[str, object] = {"first": first, "second": second}
            made.append([{**example, "score": self._score(row)} if "score" in self.fields else example])
        return made

    def limit(self) -> int:
        return initialize.longest(super().limit(), self.settings.max_length)

    def _score(self, row: Row) -> float:
        low, high = self.objective.score_range
        try:
            score = float(row.values["score"])
        except ValueError:
            raise ValueError(f"{row.location}: the score is {row.values['score']!r}; a number is wanted") from None
        if not low <= score <= high:
            raise ValueError(f"{row.location}: the score {score} is not within objective.score_range, {low} to {high}")
        return (score - low) / (high - low)

    def collate(self, examples: Sequence[Example], draws: np.random.Generator, *, learning: bool) -> Batch:
        tensors: dict[str, Tensor] = {}
        for field in ("first", "second"):
            texts: Sequence[Ids] = [example[field] for example in examples]
            if learning:
                texts = self.augmented(texts, draws)
            tensors[field] = padded(texts, self.plan.pad_id)
            tensors[f"{field}_keep"] = lengths_mask([len(text) for text in texts])
        if "score" in self.fields:
            tensors["score"] = torch.tensor([float(example["score"]) for example in examples])
        tokens = int(tensors["first_keep"].sum() + tensors["second_keep"].sum())
        compared = () if "score" in self.fields else ("second", "second_keep")
        return Batch(tensors, count=len(examples), tokens=tokens, compared=frozenset(compared))

    def guess(self, model: nn.Module, batch: Batch, *, masked: bool) -> EmbeddingPredictions:
        first, second = (
            pool(
                model(batch[field], padding_mask(batch[f"{field}_keep"], masked)).float(),
                batch[f"{field}_keep"],
                self.settings.pooling,
            )
            for field in ("first", "second")
        )
        if "score" in self.fields:
            loss = losses.cosine_regression(first, second, batch["score"])
        else:
            loss = losses.contrastive(first, second, scale=self.objective.scale)
        return EmbeddingPredictions(
            loss, torch.cat([first, second[: len(first)]])
        )  # partners alone, not the others' ones

    def validate(self) -> dict[str, float]:
        if not self.scores:
            return {}
        from clearhead.metrics.similarity import evaluate_similarity
        from clearhead.pipelines.text_encoder import TextEncoder

        rows = self.held_out()
        device = str(next(self.model.parameters()).device)
        encoder = TextEncoder(
            self.model, self.tokenizer, self.settings, self.family, precision="float32", device=device
        )
        found = evaluate_similarity(
            encoder.encode,
            [row.values["first"] for row in rows],
            [row.values["second"] for row in rows],
            [self._score(row) for row in rows],
        )
        return {"spearman": found.spearman, "pearson": found.pearson}

    def save(self, folder: Path) -> None:
        from clearhead.pipelines.text_encoder import TextEncoder

        TextEncoder(
            self.model, self.tokenizer, self.settings, self.family, precision="float32", device="cpu"
        ).save_pretrained(folder)

    def key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.limit(), *self.fields, *self.objective.score_range])

    def teacher(self, name: str) -> nn.Module:
        model, _ = checkpoints.load_encoder(self.teachers_folder(name))
        if model.config.d_model != self.plan.d_model:
            raise ValueError(
                f"the teacher {name} has vectors of {model.config.d_model} numbers, this model of "
                f"{self.plan.d_model}; they must be as many"
            )
        return model


def _fields(objective: EmbeddingObjective) -> tuple[str, ...]:
    return ("first", "second", "score") if objective.loss == "regression" else ("first", "second")
