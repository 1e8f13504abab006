"""Distillation from a teacher's probabilities, hidden states and texts."""

import json
import math
import shutil

import pytest
import yaml
from support.command import refused, started
from support.data.training import trained_until
from support.data.training_data import SIZES, recipe, write_data
from support.models.overflow import change_weights

from clearhead import TextToText
from clearhead.pipelines.seq2seq.ensemble import combine
from clearhead.train.data.dataset import TokenizedDataset
from clearhead.train.distillation import _TeacherOutputs, distill
from clearhead.train.loop.checkpointing import STATE
from clearhead.train.trainer import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def teacher(data):
    """Teacher that was trained enough to generate different texts."""
    sections = {"training": {"steps": 60}, "data": {"batch_tokens": 2000}, "optimizer": {"learning_rate": 0.01}}
    return train(
        recipe(data, "text-to-text", output=data / "teacher", model=SIZES | {"num_layers": 1}, **sections)
    ).folder


def student(data, teacher, folder, **spec):
    settings = {"teacher": teacher if isinstance(teacher, list) else str(teacher), "beam_size": 2} | spec
    return recipe(
        *(data, "text-to-text", folder / "student"),
        held_out=True,
        data={"max_target_length": 20},
        model=SIZES | {"num_layers": 1},
        regularize={"distillation": settings},
    )


def written(spec, folder):
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(spec.model_dump(mode="json")), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("spec", [{"weight": 0.7}, {"weight": 0.0, "hidden_weight": 1.0}])
def test_teacher_changes_the_weights(data, teacher, tmp_path, spec):
    with_teacher = student(data, teacher, tmp_path, **spec)
    distilled = distill(with_teacher)
    alone = with_teacher.model_copy(
        update={
            "output": str(tmp_path / "alone"),
            "regularize": with_teacher.regularize.model_copy(update={"distillation": None}),
        }
    )
    assert distilled.finished
    assert distilled.scores["loss"] != train(alone).scores["loss"]


def test_a_student_without_a_teacher_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match=r"regularize.distillation.teacher is required"):
        distill(recipe(data, "text-to-text", tmp_path / "run"))


FROZEN = ("regularize.distillation=null", "model.freeze=[encoder, decoder, embeddings]")


@pytest.mark.slow
def test_errors_about_a_teacher_name_the_recipe(data, teacher, tmp_path):
    texts = written(student(data, teacher, tmp_path, sequence_level=True, beam_size=2), tmp_path)
    line = refused("distill", texts, "regularize.distillation.beam_size=400", "--quiet")
    assert f"{texts}: regularize.distillation: beam_size is 400; give at most" in line
    line = refused("distill", texts, "regularize.distillation.hidden_weight=1", "--quiet")
    assert f"{texts}: regularize.distillation.hidden_weight: the texts of a teacher have no hidden states" in line
    assert f"{texts}: training.device: device 'x'" in refused("distill", texts, "training.device=x", "--quiet")
    line = refused("distill", texts, "regularize.distillation.temperature=1e155", "--quiet")
    assert f"{texts}: regularize.distillation.temperature is '1e155': it should be less" in line
    assert f"{texts}: model.freeze leaves no" in refused("train", texts, *FROZEN, "--quiet")
    short = tmp_path / "short"
    shutil.copytree(teacher, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4}))
    tokens = written(student(data, short, tmp_path), tmp_path)
    line = refused("distill", tokens, "--quiet")
    assert f"{tokens}: regularize.distillation.teacher: the input is " in line


@pytest.mark.slow
def test_train_names_the_command_for_sequence_level_distillation(data, teacher, tmp_path):
    path = written(student(data, teacher, tmp_path, sequence_level=True), tmp_path)
    message = f"{path}: regularize.distillation.sequence_level requires `clearhead distill`"
    assert message in refused("train", path)


def _lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_student_trains_on_texts_of_its_teacher(data, teacher, tmp_path):
    path = written(student(data, teacher, tmp_path, sequence_level=True), tmp_path)
    status, out, err = started("distill", path)
    assert (status, out.split()[0]) == (0, str(tmp_path / "student")), err
    generated = tmp_path / "student" / "data" / "teacher.jsonl"
    sources = (data / "a.en").read_text(encoding="utf-8").splitlines()
    model = TextToText.from_pretrained(teacher, precision="float32", device="cpu")
    expected = model.generate(sources, beam_size=2, max_new_tokens=20)
    assert len(set(expected)) > 5
    assert _lines(generated) == [{"source": one, "target": two} for one, two in zip(sources, expected, strict=True)]
    assert "validation: 32 examples" in err


@pytest.fixture(scope="module")
def teachers(teacher, tmp_path_factory):
    """Two teachers with different weights."""
    other = tmp_path_factory.mktemp("teachers") / "other"
    other_teacher(teacher, other)
    change_weights(other, lambda tensors: tensors.update({name: 0.7 * tensor for name, tensor in tensors.items()}))
    return [str(teacher), str(other)]


@pytest.mark.slow
def test_student_trains_on_texts_of_an_ensemble(data, teachers, tmp_path):
    assert distill(student(data, teachers, tmp_path, sequence_level=True)).finished
    generated = [row["target"] for row in _lines(tmp_path / "student" / "data" / "teacher.jsonl")]
    sources = (data / "a.en").read_text(encoding="utf-8").splitlines()
    models = [TextToText.from_pretrained(folder, precision="float32", device="cpu") for folder in teachers]
    alone = [model.generate(sources, beam_size=2, max_new_tokens=20) for model in models]
    assert generated == combine(models).generate(sources, beam_size=2, max_new_tokens=20)
    assert generated not in alone


@pytest.mark.slow
def test_texts_of_an_ensemble_depend_on_the_weights_of_all(data, teachers, tmp_path, monkeypatch):
    one, other = teachers
    change = other_teacher(other, tmp_path / "other")
    outputs = _TeacherOutputs(
        tmp_path / "a" / "teacher.jsonl",
        student(data, [one, str(tmp_path / "other")], tmp_path, sequence_level=True),
    )
    interrupt_after_window(outputs, monkeypatch)
    change()
    with pytest.raises(ValueError, match=r"holds texts of other weights of .*teacher and .*other; remove it and"):
        outputs.complete()


@pytest.mark.slow
def test_run_with_several_teachers_resumes_with_the_same_ones_only(data, teachers, tmp_path):
    one, other = teachers
    change = other_teacher(other, tmp_path / "other")
    spec = student(data, [one, str(tmp_path / "other")], tmp_path)
    spec = spec.model_copy(update={"validation": spec.validation.model_copy(update={"every": 1})})
    trained_until(spec, lambda step: step == 3)
    change()
    with pytest.raises(ValueError, match="has other weights now; resuming requires"):
        train(spec, resume=True)
    change()
    assert train(spec, resume=True).finished


def interrupt_after_window(outputs, monkeypatch):
    """Write the first 11 texts of a teacher, and interrupt the next window; return the list of windows."""
    monkeypatch.setattr("clearhead.train.distillation._WINDOW", 11)
    generate, windows = TextToText.generate, []

    def interrupt(*arguments, **options):
        windows.append(arguments)
        if len(windows) == 2:
            raise KeyboardInterrupt
        return generate(*arguments, **options)

    monkeypatch.setattr(TextToText, "generate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        outputs.complete()
    return windows


@pytest.mark.slow
def test_interrupted_texts_continue_to_the_same_file(data, teacher, tmp_path, monkeypatch):
    whole, cut = (
        _TeacherOutputs(tmp_path / name / "teacher.jsonl", student(data, teacher, tmp_path, sequence_level=True))
        for name in ("a", "b")
    )
    whole.complete()
    cut.path.parent.mkdir()
    interrupt_after_window(cut, monkeypatch)
    part = cut.path.with_suffix(".part")
    written = part.read_bytes()
    assert written.count(b"\n") == 11
    part.write_bytes(bytes(len(written)))
    with pytest.raises(ValueError, match=r"teacher\.part does not match teacher\.progress\.json"):
        cut.complete()
    part.write_bytes(written + b"half a line")
    (cut.path.parent / ".teacher.progress.json.abcdefgh.part").touch()  # of a killed process
    cut.complete()
    assert cut.path.read_bytes() == whole.path.read_bytes()
    assert sorted(path.name for path in cut.path.parent.iterdir()) == ["teacher.json", "teacher.jsonl"]


@pytest.mark.parametrize(
    "change",
    [
        *({"lines": value} for value in (100, True, "11", -3, 10**30, math.inf)),
        {"size": -1},
        {"size": 5},
        {"teacher": 7},
    ],
)
def test_damaged_progress_is_refused(data, teacher, tmp_path, monkeypatch, change):
    outputs = _TeacherOutputs(tmp_path / "a" / "teacher.jsonl", student(data, teacher, tmp_path, sequence_level=True))
    interrupt_after_window(outputs, monkeypatch)
    path = outputs.path.with_suffix(".progress.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"teacher\.part does not match teacher\.progress\.json; remove both"):
        outputs.complete()


@pytest.mark.slow
def test_run_does_not_resume_on_texts_of_another_teacher(data, teacher, tmp_path):
    assert distill(student(data, teacher, tmp_path, sequence_level=True)).finished
    path = tmp_path / "student" / "data" / "teacher.jsonl"
    before = path.stat().st_mtime_ns
    with pytest.raises(ValueError, match=r"uses other texts of a teacher .*: search: \[2, 20\] became \[3, 20\]"):
        distill(student(data, teacher, tmp_path, sequence_level=True, beam_size=3), resume=True)
    with pytest.raises(ValueError, match="already contains a run"):
        distill(student(data, teacher, tmp_path, sequence_level=True, beam_size=3))
    assert path.stat().st_mtime_ns == before
    assert distill(student(data, teacher, tmp_path, sequence_level=True), resume=True).finished


def test_texts_of_another_search_are_generated_again(data, teacher, tmp_path):
    path = tmp_path / "a" / "teacher.jsonl"
    _TeacherOutputs(path, student(data, teacher, tmp_path, sequence_level=True)).complete()
    path.write_text("")
    path.with_suffix(".progress.json").touch()  # of a process that was killed after the rename
    _TeacherOutputs(path, student(data, teacher, tmp_path, sequence_level=True)).complete()
    assert path.read_text() == ""
    assert sorted(file.name for file in path.parent.iterdir()) == ["teacher.json", "teacher.jsonl"]
    _TeacherOutputs(path, student(data, teacher, tmp_path, sequence_level=True, beam_size=3)).complete()
    assert len(_lines(path)) == 32


@pytest.mark.slow
def test_existing_run_keeps_its_texts(data, teacher, tmp_path):
    spec = student(data, teacher, tmp_path, sequence_level=True)
    assert distill(spec, resume=True).finished  # nothing to resume: a new run
    path = tmp_path / "student" / "data" / "teacher.jsonl"
    before = path.stat().st_mtime_ns
    other = student(data, teacher, tmp_path, sequence_level=True, beam_size=3)
    with pytest.raises(ValueError, match="already contains a run"):
        distill(other)
    with pytest.raises(ValueError, match=r"cannot be resumed: search: \[2, 20\] became \[3, 20\]"):
        distill(other, resume=True)
    assert path.stat().st_mtime_ns == before
    assert distill(spec, resume=True).finished


@pytest.mark.slow
def test_run_resumes_after_an_interruption_of_its_teacher(data, teacher, tmp_path, monkeypatch):
    spec = student(data, teacher, tmp_path, sequence_level=True)

    def interrupted(outputs, teacher, done):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_TeacherOutputs, "_generate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            distill(spec)
    assert distill(spec, resume=True).finished


@pytest.mark.slow
def test_held_out_columns_are_read_by_their_names(data, teacher, tmp_path):
    """The teacher's file uses the names of the fields, not those of the data's columns."""
    pairs = zip((data / "a.en").open(encoding="utf-8"), (data / "a.de").open(encoding="utf-8"), strict=True)
    rows = "".join(f"{one.strip()}\t{two}" for one, two in pairs)
    (tmp_path / "pairs.tsv").write_text("en\tde\n" + rows, encoding="utf-8")
    spec = student(data, teacher, tmp_path, sequence_level=True)
    files = {
        "train": str(tmp_path / "pairs.tsv"),
        "validation": str(tmp_path / "pairs.tsv"),
        "columns": {"source": "en", "target": "de"},
    }
    spec = spec.model_copy(update={"data": spec.data.model_copy(update=files)})
    distill(spec)
    assert len(TokenizedDataset(tmp_path / "student" / "data" / "validation")) == 32
    held_out = _lines(tmp_path / "student" / "data" / "held-out.jsonl")
    assert [row["target"] for row in held_out] == (data / "a.de").read_text(encoding="utf-8").splitlines()


def other_teacher(teacher, folder):
    """Copy a teacher to a folder, and return a function that changes the weights of the copy."""
    shutil.copytree(teacher, folder)

    def change():
        change_weights(folder, lambda tensors: tensors.update({name: -tensor for name, tensor in tensors.items()}))

    return change


@pytest.mark.slow
def test_run_does_not_resume_with_other_weights_of_its_teacher(data, teacher, tmp_path):
    change = other_teacher(teacher, tmp_path / "teacher")
    spec = student(data, tmp_path / "teacher", tmp_path)
    often = {"validation": spec.validation.model_copy(update={"every": 1})}
    spec = spec.model_copy(update=often)
    trained_until(spec, lambda step: step == 3)
    assert (tmp_path / "student" / STATE).exists()
    change()
    with pytest.raises(ValueError, match="teacher of the run in .*student has other weights now; resuming requires"):
        train(spec, resume=True)
    change()
    assert train(spec, resume=True).finished


def test_texts_do_not_continue_with_other_weights_of_the_teacher(data, teacher, tmp_path, monkeypatch):
    change = other_teacher(teacher, tmp_path / "teacher")
    outputs = _TeacherOutputs(
        tmp_path / "a" / "teacher.jsonl", student(data, tmp_path / "teacher", tmp_path, sequence_level=True)
    )
    windows = interrupt_after_window(outputs, monkeypatch)
    change()
    with pytest.raises(ValueError, match=r"teacher\.part holds texts of other weights of .*teacher; remove it and"):
        outputs.complete()
    change()
    outputs.complete()
    assert len(windows) == 4
    assert len(_lines(outputs.path)) == 32
