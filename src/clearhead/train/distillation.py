"""Train a student on one or several teachers."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from clearhead.data.records import Records
from clearhead.io.atomic import atomic_file, remove_leftovers
from clearhead.io.hashed import HashedFile, has_content
from clearhead.io.json import read_json, write_json
from clearhead.io.safetensors import weights_hash
from clearhead.pipelines.seq2seq.ensemble import combine
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.device import choose_device
from clearhead.train.data.files import open_records
from clearhead.train.distributed.process_group import ProcessGroup
from clearhead.train.loop.callback import OnStep
from clearhead.train.loop.checkpointing import STATE
from clearhead.train.loop.resume import check_folder
from clearhead.train.recipe.errors import RecipeError, named
from clearhead.train.recipe.load import describe_differences
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import Files
from clearhead.train.regularizers.distillation import Distillation
from clearhead.train.tasks.text_to_text import row_fields, source_text, target_text
from clearhead.train.trainer import TrainingResult, ignore_step, run_lock, train, train_locked

log = logging.getLogger(__name__)

_WINDOW = 512


def distill(recipe: Recipe, *, resume: bool = False, on_step: OnStep = ignore_step) -> TrainingResult:
    """Train a student on a teacher's probabilities and hidden states, or on the texts that the teacher generates.

    Equation: L = (1 − w) CE + w T² KL(teacher ‖ student); sequence-level: CE on argmax_t P_teacher(t | s), by beams
    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network"; Kim and Rush 2016, "Sequence-Level
        Knowledge Distillation", Section 3

    Args:
        recipe: a recipe with regularize.distillation; its key `sequence_level` selects the method.
        resume, on_step: as in `train`.

    Raises:
        ValueError: a recipe without a teacher, or as in `train`.
    """
    settings = recipe.regularize.distillation
    if settings is None:
        raise RecipeError("regularize.distillation.teacher is required")
    if not settings.sequence_level:
        return train(recipe, resume=resume, on_step=on_step)
    with run_lock(recipe):
        return _train_on_teacher_texts(recipe, resume, on_step)


def _train_on_teacher_texts(recipe: Recipe, resume: bool, on_step: OnStep) -> TrainingResult:
    """Generate the teacher's texts, and train the student on them."""
    folder = Path(recipe.output)
    outputs = _TeacherOutputs(folder / "data" / "teacher.jsonl", recipe)
    held_out = outputs.path.with_name("held-out.jsonl")
    started = (folder / STATE).is_file()
    check_folder(recipe, resume)  # before the teacher's work, not after it
    with named("training.device"):
        processes = ProcessGroup(choose_device(recipe.training.device).type)
    with processes.rank_zero_first():
        if processes.rank == 0:
            outputs.complete(replace=not started)
            if recipe.data.validation is not None:
                with atomic_file(held_out) as file:
                    for row in _records(recipe, recipe.data.validation):
                        file.write(_json_line(source_text(row.values), target_text(row.values)))
    return train_locked(_student_recipe(recipe, outputs.path, held_out), resume=resume, on_step=on_step)


def _student_recipe(recipe: Recipe, train: Path, held_out: Path) -> Recipe:
    """Return the recipe of a training on the teacher's texts."""
    changes: dict[str, Any] = {"train": str(train), "columns": None, "encoding": "utf-8"}
    if recipe.data.validation is not None:
        # columns and encoding apply to both files, and those of the teacher's file are fixed
        changes["validation"] = str(held_out)
    data = recipe.data.model_copy(update=changes)
    regularize = recipe.regularize.model_copy(update={"distillation": None})
    return recipe.model_copy(update={"data": data, "regularize": regularize})


@dataclass(frozen=True)
class _TeacherOutputs:
    """The teacher's text for each source, in a file of the run's folder; an interrupted file is continued.

    Args:
        path: the file.
        recipe: the student's recipe.
    """

    path: Path
    recipe: Recipe

    @property
    def _settings(self) -> Distillation:
        settings: Distillation = self.recipe.regularize.distillation
        return settings

    @property
    def key_file(self) -> Path:
        """File that describes how the texts were generated."""
        return self.path.with_suffix(".json")

    def complete(self, *, replace: bool = True) -> None:
        """Generate the texts that the file does not contain yet.

        Args:
            replace: whether texts of another teacher, search or dataset are replaced.

        Raises:
            ValueError: the file contains other texts, and `replace` is false.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._check_key(replace)
        part, progress = self.path.with_suffix(".part"), self.path.with_suffix(".progress.json")
        for written in (self.key_file, progress):
            remove_leftovers(written)
        if self.path.is_file():
            progress.unlink(missing_ok=True)  # of a run that was killed before it could
            return
        num_lines, size, former = _read_progress(part, progress)
        teacher, weights = self._load_teacher()
        if former not in (None, weights):
            raise ValueError(
                f"{part} holds texts of other weights of {' and '.join(self._settings.teachers)}; "
                f"remove it and {progress.name} to start again"
            )
        file = HashedFile(part, size)
        try:
            for lines in self._generate(teacher, num_lines):
                file.write(b"".join(lines))
                num_lines += len(lines)
                done = {"lines": num_lines, "size": file.sync(), "sha256": file.sha256, "teacher": weights}
                write_json(progress, done)
                log.info("the teacher has generated %d texts", num_lines)
        finally:
            file.close()
        part.replace(self.path)
        progress.unlink(missing_ok=True)

    def _check_key(self, replace: bool) -> None:
        saved = read_json(self.key_file) if self.key_file.is_file() else {}
        key = self._key()
        if saved == key:
            return
        if replace:
            for path in (self.path, self.path.with_suffix(".part"), self.path.with_suffix(".progress.json")):
                path.unlink(missing_ok=True)
            write_json(self.key_file, key)
            return
        # the path of the sources may differ: the run itself compares the texts
        differences = describe_differences({**saved, "of": None}, {**key, "of": None})
        if differences:
            raise ValueError(
                f"the run in {self.recipe.output} uses other texts of a teacher and cannot be resumed: "
                f"{'; '.join(differences)}"
            )

    def _key(self) -> dict[str, Any]:
        settings = self._settings
        key = {
            "teacher": settings.teacher,
            "search": [settings.beam_size, self.recipe.data.max_target_length],
            "of": _records(self.recipe, self.recipe.data.train).describe(),
            "objective": self.recipe.objective.model_dump(mode="json"),
        }
        as_json: dict[str, Any] = json.loads(json.dumps(key))
        return as_json

    def _load_teacher(self) -> tuple[TextToText, str]:
        """Return the teacher, or the ensemble of several, and hashes of their weights."""
        training = self.recipe.training
        with named("regularize.distillation.teacher"):
            teachers = [
                TextToText.from_pretrained(name, precision=training.precision, device=training.device)
                for name in self._settings.teachers
            ]
            weights = "+".join(weights_hash(teacher.model.state_dict()) for teacher in teachers)
            return combine(teachers), weights

    def _generate(self, teacher: TextToText, num_done: int) -> Iterator[list[bytes]]:
        """Yield windows of lines after the first `num_done`: each has a source and the teacher's text."""
        settings, objective = self._settings, self.recipe.objective
        rows = islice(_records(self.recipe, self.recipe.data.train), num_done, None)
        sources = (source_text(row.values) for row in rows)
        while window := list(islice(sources, _WINDOW)):
            with named("regularize.distillation"):
                texts = teacher.generate(
                    [objective.prefix + source for source in window],
                    source_lang=objective.source_lang,
                    target_lang=objective.target_lang,
                    beam_size=settings.beam_size,
                    max_new_tokens=self.recipe.data.max_target_length,
                )
            yield [_json_line(source, text) for source, text in zip(window, texts, strict=True)]


def _records(recipe: Recipe, files: Files) -> Records:
    return open_records(recipe.data, files, row_fields(files))


def _json_line(source: str, target: str) -> bytes:
    return (json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n").encode("utf-8")


def _read_progress(part: Path, progress: Path) -> tuple[int, int, str | None]:
    """Return the lines and bytes that an interrupted run of the teacher wrote, and the hash of the teacher's weights.

    Zeros and None if there was none.

    Raises:
        ValueError: the progress file does not match the part file.
    """
    if not progress.is_file():
        return 0, 0, None
    try:
        data = read_json(progress)
        lines, size, former = data["lines"], data["size"], data["teacher"]
        if type(lines) is type(size) is int and size >= 0 and has_content(part, size, data["sha256"]):
            with part.open("rb") as file:
                if file.read(size).count(b"\n") == lines and isinstance(former, str):
                    return lines, size, former
    except (ValueError, KeyError):
        pass
    raise ValueError(f"{part} does not match {progress.name}; remove both to start again")
