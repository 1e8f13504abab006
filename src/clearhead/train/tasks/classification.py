"""Classification: one label for each text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.data.records import Records, Row
from clearhead.io import hub
from clearhead.io.json import read_json
from clearhead.metrics.classification import classification_scores, label_of
from clearhead.models.freezing import freeze
from clearhead.models.heads import EncoderClassifier
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.recipe.errors import did_you_mean
from clearhead.train.recipe.recipe import ClassificationObjective, Recipe
from clearhead.train.tasks import initialize
from clearhead.train.tasks.augmentation import Ids
from clearhead.train.tasks.base import Batch, ClassPredictions, Example, lengths_mask, padded, padding_mask
from clearhead.train.tasks.encoder_base import EncoderTask


class ClassificationTask(EncoderTask[EncoderClassifier]):
    """Exactly one label is right.

    Equation: L = − Σ_n ln softmax(y_n)_{c_n}
    Source: Devlin et al. 2018, "BERT", Section 4.1

    Args:
        recipe: the run's.
        model: the encoder with its head.
        tokenizer: its tokenizer.
        family: whose folders it is written in.
    """

    fields = ("text", "label")
    scores = ("accuracy", "macro_f1")

    def __init__(self, recipe: Recipe, model: EncoderClassifier, tokenizer: Tokenizer, family: EncoderFamily) -> None:
        super().__init__(recipe, model, model.encoder, tokenizer, family)
        self._numbers = {label: number for number, label in enumerate(model.head_config.labels)}

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "ClassificationTask":
        """The task as training starts: a checkpoint's own head where its labels are those that are wanted."""
        body, family, tokenizer = initialize.encoder(recipe, folder, cls.fields, ("text",))
        labels = _labels(recipe)
        model = checkpoints.new_classifier(body, family, labels, "single_label_classification")
        if recipe.model.start is not None:
            found = hub.resolve_model(recipe.model.start)
            told = read_json(found / "config.json").get("id2label") or {}
            if tuple(told.values()) == labels:
                model, family = checkpoints.load_classifier(found)
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family)

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        texts = self.read(rows, "text")
        return [[{"text": ids, "label": self._number(row)}] for ids, row in zip(texts, rows, strict=True)]

    def _number(self, row: Row) -> int:
        label = label_of(row)
        if label not in self._numbers:
            raise ValueError(f"{row.location}: there is no label {label!r}{did_you_mean(label, list(self._numbers))}")
        return self._numbers[label]

    def collate(self, examples: Sequence[Example], draws: np.random.Generator, *, learning: bool) -> Batch:
        texts: Sequence[Ids] = [example["text"] for example in examples]
        if learning:
            texts = self.augmented(texts, draws)
        return Batch(
            {
                "text": padded(texts, self.plan.pad_id),
                "keep": lengths_mask([len(text) for text in texts]),
                "wanted": torch.tensor([int(example["label"]) for example in examples]),
            },
            count=len(examples),
            tokens=sum(len(text) for text in texts),
        )

    def guess(self, model: nn.Module, batch: Batch, *, masked: bool) -> ClassPredictions:
        assert isinstance(model, EncoderClassifier)
        hidden = model.encoder(batch["text"], padding_mask(batch["keep"], masked))
        return ClassPredictions(model.logits(hidden, batch["keep"]), batch["wanted"])

    def validate(self) -> dict[str, float]:
        from clearhead.pipelines.text_classifier import TextClassifier

        rows = self.held_out()
        device = str(next(self.model.parameters()).device)
        classifier = TextClassifier(
            self.model, self.tokenizer, self.family, precision=self.recipe.training.precision, device=device
        )
        found = [said.label for said in classifier.classify([row.values["text"] for row in rows])]
        scores = classification_scores(found, [label_of(row) for row in rows], labels=self.model.head_config.labels)
        return {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}

    def save(self, folder: Path) -> None:
        self.family.save_with_head(self.model, folder)
        self.save_tokenizer(folder)

    def key(self) -> str:
        return initialize.fingerprint(self.tokenizer, [self.limit(), *self._numbers])

    def teacher(self, name: str) -> nn.Module:
        model, _ = checkpoints.load_classifier(self.teachers_folder(name))
        if model.head_config.labels != self.model.head_config.labels:
            raise ValueError(
                f"the teacher {name} has the labels {', '.join(model.head_config.labels)}; this model has "
                f"{', '.join(self.model.head_config.labels)}: objective.labels can say them in the teacher's order"
            )
        return model


def _labels(recipe: Recipe) -> tuple[str, ...]:
    objective: ClassificationObjective = recipe.objective
    if objective.labels is not None:
        return tuple(objective.labels)
    data = recipe.data
    records = Records(data.train, fields=("text", "label"), columns=data.columns, encoding=data.encoding)
    return tuple(sorted({label_of(row) for row in records}))
