"""Classification: one label per text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.choices import suggest
from clearhead.data.records import Row
from clearhead.io import hub
from clearhead.io.json import read_json
from clearhead.metrics.classification import classification_scores, label_of
from clearhead.models.freezing import freeze
from clearhead.models.heads import EncoderClassifier
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.data.files import open_records
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import Section
from clearhead.train.regularizers.augmentation import Ids
from clearhead.train.tasks import initialize
from clearhead.train.tasks.base import Batch, Example, TaskEntry, keep_mask, pad, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask, encoder_conflicts
from clearhead.train.tasks.predictions import ClassPredictions
from clearhead.train.tasks.samples import label_line


class ClassificationObjective(Section):
    """Settings of classification.

    Args:
        labels: names of the classes. Defaults to the sorted labels of the training data.
    """

    labels: list[str] | None = None


class ClassificationTask(EncoderTask[EncoderClassifier]):
    """Single-label classification.

    Equation: L = − Σ_n ln softmax(y_n)_{c_n}
    Source: Devlin et al. 2018, "BERT", Section 4.1

    Args:
        recipe: the recipe.
        model: the encoder with its head.
        tokenizer: its tokenizer.
        family: model family whose format the model is saved in.
    """

    fields = ("text", "label")
    metrics = ("accuracy", "macro_f1")

    def __init__(self, recipe: Recipe, model: EncoderClassifier, tokenizer: Tokenizer, family: EncoderFamily) -> None:
        super().__init__(recipe, model, model.encoder, tokenizer, family)
        self._label_ids = {label: number for number, label in enumerate(model.head_config.labels)}

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "ClassificationTask":
        """Return the task with its initialized model; a checkpoint's head is kept if its labels are the same."""
        drop_prob = recipe.regularize.dropout.residual
        encoder, family, tokenizer = initialize.initialize_encoder(recipe, folder, cls.fields, ("text",))
        labels = _labels(recipe)
        model = checkpoints.new_classifier(encoder, family, labels, "single_label_classification", drop_prob=drop_prob)
        if recipe.model.init_from is not None:
            checkpoint = hub.resolve_model(recipe.model.init_from)
            saved_labels = read_json(checkpoint / "config.json").get("id2label") or {}
            if tuple(saved_labels.values()) == labels:
                model, family = checkpoints.load_classifier(
                    checkpoint, initialize.with_recipe_rates(recipe), head_drop_prob=drop_prob
                )
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        texts = self.tokenize(rows, "text")
        return [[{"text": ids, "label": self._label_id(row)}] for ids, row in zip(texts, rows, strict=True)]

    def _label_id(self, row: Row) -> int:
        label = label_of(row)
        if label not in self._label_ids:
            raise ValueError(f"{row.location}: unknown label {label!r}{suggest(label, list(self._label_ids))}")
        return self._label_ids[label]

    def collate(self, examples: Sequence[Example], generator: np.random.Generator, *, training: bool) -> Batch:
        texts: Sequence[Ids] = [example["text"] for example in examples]
        if training:
            texts = self.augment(texts, generator)
        return Batch(
            {
                "text": pad(texts, self.config.pad_id),
                "keep": keep_mask([len(text) for text in texts]),
                "targets": torch.tensor([int(example["label"]) for example in examples]),
            },
            count=len(examples),
            num_tokens=sum(len(text) for text in texts),
        )

    def predict(self, model: nn.Module, batch: Batch, *, mask_padding: bool) -> ClassPredictions:
        assert isinstance(model, EncoderClassifier)
        hidden = model.encoder(batch["text"], padding_mask(batch["keep"], mask_padding))
        return ClassPredictions(model.logits(hidden, batch["keep"]), batch["targets"])

    def validate(self) -> dict[str, float]:
        rows, labels = self.validation_rows(), self.model.head_config.labels
        scores = classification_scores(self._predicted_labels(rows), [label_of(row) for row in rows], labels=labels)
        return {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}

    def samples(self) -> list[str]:
        rows = self.sample_rows()
        return [
            label_line(row.values["text"], predicted, label_of(row))
            for row, predicted in zip(rows, self._predicted_labels(rows), strict=True)
        ]

    def _predicted_labels(self, rows: Sequence[Row]) -> list[str]:
        from clearhead.pipelines.text_classifier import TextClassifier

        device = str(next(self.model.parameters()).device)
        classifier = TextClassifier(
            self.model, self.tokenizer, self.family, precision=self.recipe.training.precision, device=device
        )
        return [result.label for result in classifier.stream(row.values["text"] for row in rows)]

    def save(self, folder: Path) -> None:
        self.family.save_with_head(self.model, folder)
        self.save_tokenizer(folder)

    def cache_key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.max_length(), *self._label_ids])

    def load_teacher(self, name: str) -> nn.Module:
        model, _ = checkpoints.load_classifier(self.teacher_folder(name))
        if model.head_config.labels != self.model.head_config.labels:
            raise ValueError(
                f"the teacher {name} has the labels {', '.join(model.head_config.labels)}, this model has "
                f"{', '.join(self.model.head_config.labels)}. Set objective.labels to the teacher's labels, in the "
                "teacher's order"
            )
        return model


def _labels(recipe: Recipe) -> tuple[str, ...]:
    objective: ClassificationObjective = recipe.objective
    if objective.labels is not None:
        return tuple(objective.labels)
    data = recipe.data
    records = open_records(data, data.train, ("text", "label"))
    labels = tuple(sorted({label_of(row) for row in records}))
    if len(labels) == 1:
        raise ValueError(
            f"{data.train}: all texts have the label {labels[0]!r}; classification needs two labels or more. Check "
            "data.columns.label"
        )
    return labels


TASK = TaskEntry(
    "classification", ClassificationObjective, ClassPredictions, ClassificationTask.from_recipe, encoder_conflicts
)
