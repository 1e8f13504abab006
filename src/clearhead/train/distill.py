"""A student learns from a teacher."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from clearhead.checkpoints import directory
from clearhead.files import alone, whole_file
from clearhead.run.generate import TextToText
from clearhead.text.records import Records
from clearhead.train.course import Advance
from clearhead.train.reading import differences
from clearhead.train.recipe import Files, Recipe
from clearhead.train.run import Trained, check_folder, train
from clearhead.train.shelf import STATE
from clearhead.train.tasks.text_to_text import fields_of, source_of, target_of

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
    folder = Path(recipe.output)
    outputs = _Outputs(folder / "data" / "teacher.jsonl", recipe)
    began = (folder / STATE).is_file()
    # interrupted while the teacher wrote, a run has no checkpoint yet: it goes on with the texts
    resume = resume and (began or not outputs.note.is_file())
    check_folder(recipe, resume)  # before the teacher's work, not after it
    outputs.complete(again=not began)
    changes: dict[str, Any] = {"train": str(outputs.path), "columns": None, "encoding": "utf-8"}
    if recipe.data.validation is not None:
        # columns and encoding are said for both, and the teacher's file has its own
        changes["validation"] = str(outputs.path.with_name("held-out.jsonl"))
        with whole_file(outputs.path.with_name("held-out.jsonl")) as file:
            for row in _rows(recipe, recipe.data.validation):
                file.write(_line(source_of(row.values), target_of(row.values)))
    data = recipe.data.model_copy(update=changes)
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

    @property
    def note(self) -> Path:
        """The file that says which texts these are."""
        return self.path.with_suffix(".json")

    def complete(self, *, again: bool = True) -> None:
        """Makes the file whole.

        Args:
            again: whether texts of another teacher, search or data make room for these.

        Raises:
            ValueError: there are others, and they have to stay.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with alone(self.path):  # of several processes one writes, and the others find it written
            self._agree(again)
            if self.path.is_file():
                return
            part = self.path.with_suffix(".part")
            done = _whole_lines(part)
            with part.open("ab") as file:
                for line in self._lines(done):
                    file.write(line)
                    file.flush()
            part.replace(self.path)

    def _agree(self, again: bool) -> None:
        held = directory.read_json(self.note) if self.note.is_file() else {}
        told = self._told()
        if held == told:
            return
        if again:
            for path in (self.path, self.path.with_suffix(".part")):
                path.unlink(missing_ok=True)
            directory.write_json(self.note, told)
            return
        # where the sources lie may differ: what the teacher wrote is compared by the run itself
        different = differences({**held, "of": None}, {**told, "of": None})
        if different:
            raise ValueError(
                f"the run in {self.recipe.output} learns other texts of a teacher and cannot be gone on with: "
                f"{'; '.join(different)}"
            )

    def _told(self) -> dict[str, Any]:
        told = self.recipe.regularize.distillation
        assert told is not None
        objective = self.recipe.objective.model_dump(mode="json")
        search = [told.beam_size, self.recipe.data.max_target_length]
        note = {
            "teacher": told.teacher,
            "search": search,
            "of": _rows(self.recipe, self.recipe.data.train).describe(),
            "objective": objective,
        }
        whole: dict[str, Any] = json.loads(json.dumps(note))
        return whole

    def _lines(self, done: int) -> Iterator[bytes]:
        """The lines from one on: sources, as the student will be given them, with the teacher's texts."""
        told, objective = self.recipe.regularize.distillation, self.recipe.objective
        assert told is not None
        teacher = TextToText.from_pretrained(
            told.teacher, precision=self.recipe.training.precision, device=self.recipe.training.device
        )
        sources = (source_of(row.values) for row in islice(_rows(self.recipe, self.recipe.data.train), done, None))
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
                yield _line(source, text)
            number += len(some)
            log.info("the teacher has written %d texts", number)


def _rows(recipe: Recipe, files: Files) -> Records:
    return Records(files, fields=fields_of(files), columns=recipe.data.columns, encoding=recipe.data.encoding)


def _line(source: str, target: str) -> bytes:
    return (json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n").encode("utf-8")


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
