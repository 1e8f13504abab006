"""A student learns from a teacher."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from clearhead.checkpoints import directory
from clearhead.run.generate import TextToText
from clearhead.text.records import Records
from clearhead.train.course import Advance
from clearhead.train.recipe import Recipe
from clearhead.train.run import Trained, train
from clearhead.train.tasks.text_to_text import fields_of, source_of

log = logging.getLogger(__name__)

_WINDOW = 512


def distill(recipe: Recipe, *, resume: bool = False, advance: Advance = lambda step, steps, told: None) -> Trained:
    """Trains a student on a teacher: on its probabilities and hidden states, or on the texts that it writes.

    Equation: L = (1 − w) CE + w T² KL(teacher ‖ student); sequence-level: CE on argmax_t P_teacher(t | s), by beams
    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network"; Kim and Rush 2016, "Sequence-Level
        Knowledge Distillation", Section 3

    Args:
        recipe: with regularize.distillation; its `sequence` says which way.
        resume, advance: as in `train`.

    Raises:
        ValueError: a recipe without a teacher, and as in `train`.
    """
    told = recipe.regularize.distillation
    if told is None:
        raise ValueError("regularize.distillation.teacher is missing: whom shall the student learn from?")
    if not told.sequence:
        return train(recipe, resume=resume, advance=advance)
    outputs = _Outputs(Path(recipe.output) / "data" / "teacher.jsonl", recipe)
    outputs.complete()
    data = recipe.data.model_copy(update={"train": str(outputs.path), "columns": None, "encoding": "utf-8"})
    regularize = recipe.regularize.model_copy(update={"distillation": None})
    return train(recipe.model_copy(update={"data": data, "regularize": regularize}), resume=resume, advance=advance)


@dataclass(frozen=True)
class _Outputs:
    """What the teacher writes for each source, in a file of the run's folder; goes on where it was interrupted.

    Args:
        path: the file.
        recipe: the student's.
    """

    path: Path
    recipe: Recipe

    def complete(self) -> None:
        """Makes the file whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        note, part = self.path.with_suffix(".json"), self.path.with_suffix(".part")
        if not note.is_file() or directory.read_json(note) != self._told():
            self.path.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            directory.write_json(note, self._told())
        if self.path.is_file():
            return
        done = _whole_lines(part)
        with part.open("ab") as file:
            for line in self._lines(done):
                file.write(line)
                file.flush()
        part.replace(self.path)

    def _told(self) -> dict[str, Any]:
        told = self.recipe.regularize.distillation
        assert told is not None
        objective = self.recipe.objective.model_dump(mode="json")
        note = {"teacher": told.teacher, "beam_size": told.beam_size, "of": self._rows().describe(), **objective}
        whole: dict[str, Any] = json.loads(json.dumps(note))
        return whole

    def _rows(self) -> Records:
        data = self.recipe.data
        return Records(data.train, fields=fields_of(data.train), columns=data.columns, encoding=data.encoding)

    def _lines(self, done: int) -> Iterator[bytes]:
        """The lines from one on: sources, as the student will be given them, with the teacher's texts."""
        told, objective = self.recipe.regularize.distillation, self.recipe.objective
        assert told is not None
        teacher = TextToText.from_pretrained(
            told.teacher, precision=self.recipe.training.precision, device=self.recipe.training.device
        )
        sources = (source_of(row.values) for row in islice(self._rows(), done, None))
        number = done
        while some := list(islice(sources, _WINDOW)):
            texts = teacher.generate(
                [objective.prefix + source for source in some],
                source_lang=objective.source_lang,
                target_lang=objective.target_lang,
                beam_size=told.beam_size,
                max_new_tokens=self.recipe.data.max_target_length,
            )
            for source, text in zip(some, texts, strict=True):
                yield (json.dumps({"source": source, "target": text}, ensure_ascii=False) + "\n").encode("utf-8")
            number += len(some)
            log.info("the teacher has written %d texts", number)


def _whole_lines(path: Path) -> int:
    """How many lines of a file are whole; one that was cut off in the middle is taken away."""
    if not path.is_file():
        return 0
    whole, size = 0, 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                whole, size = whole + 1, size + len(line)
    with path.open("rb+") as file:
        file.truncate(size)
    return whole
