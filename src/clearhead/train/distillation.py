"""A student learns from a teacher."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from clearhead.data.records import Records
from clearhead.io.atomic import HashedFile, atomic_file, has_content
from clearhead.io.json import read_json, write_json
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.device import choose_device
from clearhead.train.callback import Advance
from clearhead.train.checkpointing import STATE
from clearhead.train.distributed.process_group import ProcessGroup
from clearhead.train.recipe.load import differences
from clearhead.train.recipe.recipe import Files, Recipe
from clearhead.train.tasks.text_to_text import fields_of, source_of, target_of
from clearhead.train.trainer import TrainingResult, check_folder, run_lock, train, train_locked

log = logging.getLogger(__name__)

_WINDOW = 512


def distill(
    recipe: Recipe, *, resume: bool = False, advance: Advance = lambda step, steps, told: None
) -> TrainingResult:
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
    with run_lock(recipe):
        return _sequence_level(recipe, resume, advance)


def _sequence_level(recipe: Recipe, resume: bool, advance: Advance) -> TrainingResult:
    """Let the teacher write its texts, and train the student on them."""
    folder = Path(recipe.output)
    outputs = _Outputs(folder / "data" / "teacher.jsonl", recipe)
    held_out = outputs.path.with_name("held-out.jsonl")
    began = (folder / STATE).is_file()
    # interrupted while the teacher wrote, a run has no checkpoint yet: it continues with the texts
    resume = resume and (began or not outputs.note.is_file())
    check_folder(recipe, resume)  # before the teacher's work, not after it
    world = ProcessGroup(choose_device(recipe.training.device).type)
    with world.first():
        if world.rank == 0:
            outputs.complete(again=not began)
            if recipe.data.validation is not None:
                with atomic_file(held_out) as file:
                    for row in _rows(recipe, recipe.data.validation):
                        file.write(_line(source_of(row.values), target_of(row.values)))
    changes: dict[str, Any] = {"train": str(outputs.path), "columns": None, "encoding": "utf-8"}
    if recipe.data.validation is not None:
        # columns and encoding hold for both files, and the teacher's file has its own
        changes["validation"] = str(held_out)
    data = recipe.data.model_copy(update=changes)
    regularize = recipe.regularize.model_copy(update={"distillation": None})
    student = recipe.model_copy(update={"data": data, "regularize": regularize})
    return train_locked(student, resume=resume, advance=advance)


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
        self._agree(again)
        if self.path.is_file():
            return
        part, progress = self.path.with_suffix(".part"), self.path.with_suffix(".progress.json")
        done, size = _written(part, progress)
        file = HashedFile(part, size)
        try:
            for lines in self._lines(done):
                file.write(b"".join(lines))
                done += len(lines)
                write_json(progress, {"lines": done, "size": file.sync(), "sha256": file.sha256})
                log.info("the teacher has written %d texts", done)
        finally:
            file.close()
        part.replace(self.path)
        progress.unlink(missing_ok=True)

    def _agree(self, again: bool) -> None:
        held = read_json(self.note) if self.note.is_file() else {}
        told = self._told()
        if held == told:
            return
        if again:
            for path in (self.path, self.path.with_suffix(".part"), self.path.with_suffix(".progress.json")):
                path.unlink(missing_ok=True)
            write_json(self.note, told)
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

    def _lines(self, done: int) -> Iterator[list[bytes]]:
        """Yield windows of lines after the first `done`: a source as the student gets it, with the teacher's text."""
        told, objective = self.recipe.regularize.distillation, self.recipe.objective
        assert told is not None
        teacher = TextToText.from_pretrained(
            told.teacher, precision=self.recipe.training.precision, device=self.recipe.training.device
        )
        sources = (source_of(row.values) for row in islice(_rows(self.recipe, self.recipe.data.train), done, None))
        while some := list(islice(sources, _WINDOW)):
            texts = teacher.generate(
                [objective.prefix + source for source in some],
                source_lang=objective.source_lang,
                target_lang=objective.target_lang,
                beam_size=told.beam_size,
                max_new_tokens=self.recipe.data.max_target_length,
            )
            yield [_line(source, text) for source, text in zip(some, texts, strict=True)]


def _rows(recipe: Recipe, files: Files) -> Records:
    return Records(files, fields=fields_of(files), columns=recipe.data.columns, encoding=recipe.data.encoding)


def _line(source: str, target: str) -> bytes:
    return (json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n").encode("utf-8")


def _written(part: Path, progress: Path) -> tuple[int, int]:
    """Return the lines and bytes that an interrupted run of the teacher has written; zeros if there was none.

    Raises:
        ValueError: the part file does not hold what the progress file describes.
    """
    if not progress.is_file():
        return 0, 0
    try:
        data = read_json(progress)
        lines, size = int(data["lines"]), int(data["size"])
        if has_content(part, size, data["sha256"]):
            return lines, size
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{part} does not hold the texts that {progress.name} describes; remove both to start again")
