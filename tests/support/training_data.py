"""Small data to train on, recipes for it, and tasks that stand ready for a step."""

import random
from types import SimpleNamespace

import numpy as np
import torch

from clearhead.data.records import Records
from clearhead.tokenizers.bpe import train_bpe
from clearhead.train import trainer
from clearhead.train.loop.lightning_module import TrainingModule
from clearhead.train.recipe.load import parse_recipe
from clearhead.train.tasks.registry import create_task

WORDS = {
    "red": "rot",
    "green": "grün",
    "blue": "blau",
    "old": "alt",
    "new": "neu",
    "small": "klein",
    "big": "groß",
    "dog": "hund",
    "cat": "katze",
    "bird": "vogel",
    "tree": "baum",
    "house": "haus",
    "river": "fluss",
}
SIZES = {"d_model": 16, "ffn_hidden": 32, "num_heads": 2, "num_layers": 2}


def write_data(folder, examples=32):
    """Files for every task, and two tokenizers: a.en, a.de; a.tsv (text, label); p.tsv (first, second, score); q.jsonl
    (question, context, answer, answer_start); seq2seq/, encoder/."""
    draws = random.Random(0)
    texts = [[draws.choice(list(WORDS)) for _ in range(draws.randint(2, 6))] for _ in range(examples)]
    lines = [" ".join(text) for text in texts]
    other = [" ".join(WORDS[word] for word in text) for text in texts]
    (folder / "a.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "a.de").write_text("".join(f"{line}\n" for line in other), encoding="utf-8")
    labelled = (f"{line}\t{'short' if len(line.split()) < 4 else 'long'}\n" for line in lines)
    (folder / "a.tsv").write_text("".join(labelled), encoding="utf-8")
    scored = (f"{one}\t{two}\t{number % 6}\n" for number, (one, two) in enumerate(zip(lines, other, strict=True)))
    (folder / "p.tsv").write_text("".join(scored), encoding="utf-8")
    asked = (f"{text[-1]}\t{' '.join(text)}\t{text[0]}\t0\n" for text in texts)
    (folder / "q.tsv").write_text("".join(asked), encoding="utf-8")
    for layout, name in (("encoder-decoder", "seq2seq"), ("encoder", "encoder")):
        (folder / name).mkdir()
        train_bpe(lines + other, vocab_size=320, architecture=layout).save(folder / name, None)
    return folder


FILES = {
    "text-to-text": {"source": "a.en", "target": "a.de"},
    "masked-language-model": "a.en",
    "classification": "a.tsv",
    "sentence-embeddings": "p.tsv",
    "span-answers": "q.tsv",
}


def recipe(folder, task, output="run", *, held_out=False, **sections):
    """A recipe for the files of `write_data`, without any regulariser that is not asked for.

    Args:
        folder: with the files.
        task: what is learned.
        output: the run's folder.
        held_out: whether the training data are also what is validated on.
        sections: what is said beside that.
    """
    files = FILES[task]
    train = {field: str(folder / file) for field, file in files.items()} if isinstance(files, dict) else None
    name = "seq2seq" if task == "text-to-text" else "encoder"
    if task == "sentence-embeddings":
        sections = {"objective": {"loss": "regression"}, **sections}
    told = {
        "task": task,
        "output": str(output),
        "data": {"train": train or str(folder / files), "batch_tokens": 400} | sections.pop("data", {}),
        "training": {"steps": 4, "precision": "float32", "device": "cpu"} | sections.pop("training", {}),
        "optimizer": {"learning_rate": 0.003, "schedule": "constant"} | sections.pop("optimizer", {}),
        "regularize": {"dropout": False, "gradient_clipping": False} | sections.pop("regularize", {}),
    }
    if held_out:
        told["data"]["validation"] = told["data"]["train"]
    if not {"init_from", "init_encoder_from", "init_decoder_from"} & set(sections.get("model", {})):
        told["tokenizer"] = {"path": str(folder / name)}
        sections["model"] = SIZES | sections.get("model", {})
    return parse_recipe(told | sections, "the recipe")


def ready(told, folder):
    """A learner as its first step finds it, with all examples of its data.

    Gives:
        (learner, examples)
    """
    torch.manual_seed(told.seed)
    task = create_task(told, folder)
    teacher = trainer.load_teacher(task, told)
    trainer.prepare_for_training(task.model, told)
    learner = TrainingModule(task, told, 4, teacher)
    learner._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=1)
    records = Records(told.data.train, fields=task.fields)
    examples = [example for found in task.examples(list(records)) for example in found]
    return learner, [{key: _array(value) for key, value in example.items()} for example in examples]


def _array(value):
    return value if isinstance(value, int | float) else np.asarray(value)


def batch_of(learner, examples, training=False, seed=0):
    """Some examples as the task puts them together."""
    return learner.task.collate(examples, np.random.default_rng(seed), training=training)
