"""Reranking: a cross-encoder that scores a query and a document together."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.sentence_transformers import CrossEncoderSettings
from clearhead.data.records import Row
from clearhead.equations import losses
from clearhead.io import hub
from clearhead.metrics.ranking import mean_reciprocal_rank
from clearhead.metrics.similarity import correlations
from clearhead.models.freezing import freeze
from clearhead.models.heads import EncoderClassifier
from clearhead.tokenizers.base import PairTokens
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import RecipeBase, Section
from clearhead.train.regularizers.augmentation import Ids
from clearhead.train.tasks import initialize
from clearhead.train.tasks.base import Batch, Example, TaskEntry, keep_mask, pad, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask, encoder_conflicts
from clearhead.train.tasks.predictions import ScorePredictions
from clearhead.train.tasks.samples import shortened

if TYPE_CHECKING:
    from clearhead.pipelines.reranker import Reranker

_RELEVANT = 0.5
"""Labels from here on count as relevant in the reciprocal rank."""
_TRIPLE = ("query", "positive", "negative", "positive_score", "negative_score")


class RerankingObjective(Section):
    """Settings of reranking (Nogueira and Cho 2019; Hofstätter et al. 2020).

    Args:
        loss: binary-cross-entropy and mse compare the score of a query and a document with its label; margin-mse
            compares the margin between a relevant document and another with that of a teacher's scores.
    """

    loss: Literal["binary-cross-entropy", "mse", "margin-mse"] = "binary-cross-entropy"


class RerankingTask(EncoderTask[EncoderClassifier]):
    """Scores of pairs with labels, or margins of triples with a teacher's scores.

    Equation: L = −Σ_n [y_n log σ(s_n) + (1 − y_n) log (1 − σ(s_n))]; mse: L = Σ_n (s_n − y_n)²; margin-mse:
        L = Σ_n ((s⁺_n − s⁻_n) − (t⁺_n − t⁻_n))²
    Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT"; Hofstätter et al. 2020

    Args:
        recipe: the recipe.
        model: the encoder with a head of one score.
        tokenizer: its tokenizer.
        family: model family whose format the model is saved in.
    """

    metrics: tuple[str, ...]

    def __init__(self, recipe: Recipe, model: EncoderClassifier, tokenizer: Tokenizer, family: EncoderFamily) -> None:
        super().__init__(recipe, model, model.encoder, tokenizer, family)
        self.objective: RerankingObjective = recipe.objective
        self.fields = _fields(self.objective)
        self.metrics = {
            "binary-cross-entropy": ("reciprocal_rank",),
            "mse": ("spearman",),
            "margin-mse": ("correct_order",),
        }[self.objective.loss]
        self._use_token_types = self.config.num_token_types > 1 and tokenizer.has_token_types
        self._sides = ("positive", "negative") if self.objective.loss == "margin-mse" else ("document",)

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "RerankingTask":
        """Return the task with its initialized model; a checkpoint's head with one score is kept."""
        drop_prob = recipe.regularize.dropout.residual
        texts = [field for field in _fields(recipe.objective) if not field.endswith(("label", "score"))]
        encoder, family, tokenizer = initialize.initialize_encoder(recipe, folder, _fields(recipe.objective), texts)
        model = checkpoints.new_classifier(encoder, family, ["score"], "regression", drop_prob=drop_prob)
        if recipe.model.init_from is not None:
            checkpoint = hub.resolve_model(recipe.model.init_from)
            if checkpoints.checkpoint_type(checkpoint) == "reranking":
                model, family = checkpoints.load_classifier(
                    checkpoint, initialize.with_recipe_rates(recipe), head_drop_prob=drop_prob
                )
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        examples: list[dict[str, object]] = [{"target": self._target(row)} for row in rows]
        for side in self._sides:  # a pair with a blank text counts as an example without tokens
            pairs = [(row.values["query"], row.values[side]) for row in rows]
            for example, pair, tokens in zip(examples, pairs, self._tokens(pairs), strict=True):
                blank = not all(text.strip() for text in pair)
                example[side] = [] if blank else tokens.ids
                example[f"{side}_types"] = [] if blank else tokens.token_types
        return [[example] for example in examples]

    def _tokens(self, pairs: Sequence[tuple[str, str]]) -> list[PairTokens]:
        tokens = self.tokenizer.encode_pairs(pairs, self.max_length())
        self.num_truncated += sum(pair.truncated for pair in tokens)
        return tokens

    def _target(self, row: Row) -> float:
        if self.objective.loss == "margin-mse":
            return _number(row, "positive_score") - _number(row, "negative_score")
        label = _number(row, "label")
        if self.objective.loss == "binary-cross-entropy" and not 0 <= label <= 1:
            raise ValueError(f"{row.location}: the label is {label:g}; binary cross-entropy needs labels from 0 to 1")
        return label

    def collate(self, examples: Sequence[Example], generator: np.random.Generator, *, training: bool) -> Batch:
        tensors: dict[str, Tensor] = {"target": torch.tensor([float(example["target"]) for example in examples])}
        for side in self._sides:
            texts: Sequence[Ids] = [example[side] for example in examples]
            if training:
                texts = self.augment(texts, generator)
            tensors[side] = pad(texts, self.config.pad_id)
            tensors[f"{side}_keep"] = keep_mask([len(text) for text in texts])
            tensors[f"{side}_types"] = pad([example[f"{side}_types"] for example in examples], 0)
        num_tokens = sum(int(tensors[f"{side}_keep"].sum()) for side in self._sides)
        return Batch(tensors, count=len(examples), num_tokens=num_tokens)

    def predict(self, model: nn.Module, batch: Batch, *, mask_padding: bool) -> ScorePredictions:
        assert isinstance(model, EncoderClassifier)
        scores = []
        for side in self._sides:
            keep, types = batch[f"{side}_keep"], batch[f"{side}_types"] if self._use_token_types else None
            hidden = model.encoder(batch[side], padding_mask(keep, mask_padding), types)
            scores.append(model.logits(hidden, keep)[:, 0])
        target = batch["target"]
        match self.objective.loss:
            case "binary-cross-entropy":
                loss = losses.binary_cross_entropy(scores[0], target)
            case "mse":
                loss = losses.squared_error(scores[0], target)
            case "margin-mse":
                loss = losses.margin_mse(scores[0], scores[1], target)
        return ScorePredictions(loss, torch.cat(scores))

    def validate(self) -> dict[str, float]:
        rows = [row for row in self.validation_rows() if self.can_show(row)]
        scores = self._scores(rows)
        targets = [self._target(row) for row in rows]
        match self.objective.loss:
            case "binary-cross-entropy":
                queries, relevant = [row.values["query"] for row in rows], [target >= _RELEVANT for target in targets]
                return {"reciprocal_rank": mean_reciprocal_rank(queries, scores[0].tolist(), relevant)}
            case "mse":
                return {"spearman": correlations(scores[0], targets).spearman}
            case "margin-mse":
                agree = np.sign(scores[0] - scores[1]) == np.sign(targets)
                return {"correct_order": float(agree.mean())}

    def samples(self) -> list[str]:
        rows = self.sample_rows()
        lines = []
        for row, scores in zip(rows, np.stack(self._scores(rows), axis=1), strict=True):
            compared = " > ".join(f"{score:.2f}" for score in scores)
            texts = " | ".join(shortened(row.values[field]) for field in ("query", *self._sides))
            lines.append(f"  score {compared}, given {self._target(row):.2f}: {texts}")
        return lines

    def _scores(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """Return for each side the scores of its documents."""
        reranker = self._reranker(str(next(self.model.parameters()).device), self.recipe.training.precision)
        sides = []
        for side in self._sides:
            pairs = [(row.values["query"], row.values[side]) for row in rows]
            sides.append(reranker.score_tokens(self.tokenizer.encode_pairs(pairs, self.max_length()))[:, 0])
        return sides

    def save(self, folder: Path) -> None:
        self._reranker("cpu", "float32").save_pretrained(folder)

    def _reranker(self, device: str, precision: str) -> "Reranker":
        from clearhead.pipelines.reranker import Reranker

        settings = CrossEncoderSettings("sigmoid" if self.objective.loss == "binary-cross-entropy" else "identity")
        return Reranker(self.model, self.tokenizer, self.family, settings, precision=precision, device=device)

    def cache_key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.max_length(), *self.fields, self.objective.loss])

    def load_teacher(self, name: str) -> nn.Module:
        model, _ = checkpoints.load_classifier(self.teacher_folder(name))
        if len(model.head_config.labels) != 1:
            raise ValueError(f"the teacher {name} has {len(model.head_config.labels)} scores for a pair; expected one")
        return model


def _fields(objective: RerankingObjective) -> tuple[str, ...]:
    return _TRIPLE if objective.loss == "margin-mse" else ("query", "document", "label")


def _number(row: Row, field: str) -> float:
    try:
        number = float(row.values[field])
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise ValueError(f"{row.location}: the {field} is {row.values[field]!r:.60}; expected a number")
    return number


def _conflicts(recipe: RecipeBase) -> Iterator[tuple[str, str]]:
    yield from encoder_conflicts(recipe)
    for name in ("token_deletion", "token_swapping", "local_shuffle"):
        if getattr(recipe.regularize.augmentation, name, 0):
            yield f"regularize.augmentation.{name}", "mixes query and document; use the other augmentations"


TASK = TaskEntry("reranking", RerankingObjective, ScorePredictions, RerankingTask.from_recipe, _conflicts)
