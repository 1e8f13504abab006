"""Small training data, recipes for it, and modules that are ready for a training step."""

import random
from types import SimpleNamespace

import numpy as np
import torch

from clearhead import Seq2Seq, Seq2SeqConfig
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
    """Write files for every task and two tokenizers: a.en, a.de; a.tsv (text, label); p.tsv (first, second, score); r.tsv
    (query, document, label); q.tsv (question, context, answer, answer_start); seq2seq/, encoder/."""
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
    documents = [(text[0], other[number + (number % 2)]) for number, text in enumerate(texts[:-1])]
    judged = (f"{word}\t{document}\t{int(WORDS[word] in document.split())}\n" for word, document in documents)
    (folder / "r.tsv").write_text("".join(judged), encoding="utf-8")
    questions = (f"{text[-1]}\t{' '.join(text)}\t{text[0]}\t0\n" for text in texts)
    (folder / "q.tsv").write_text("".join(questions), encoding="utf-8")
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
    "reranking": "r.tsv",
}


def recipe(folder, task, output="run", *, held_out=False, **sections):
    """Return a recipe for the files of `write_data`, without regularizers unless the sections have them.

    Args:
        folder: folder of the files.
        task: name of the task.
        output: folder of the run.
        held_out: whether to validate on the training data.
        sections: other keys of the recipe.
    """
    files = FILES[task]
    train = {field: str(folder / file) for field, file in files.items()} if isinstance(files, dict) else None
    name = "seq2seq" if task == "text-to-text" else "encoder"
    if task == "sentence-embeddings":
        sections = {"objective": {"loss": "regression"}, **sections}
    spec = {
        "task": task,
        "output": str(output),
        "data": {"train": train or str(folder / files), "batch_tokens": 400} | sections.pop("data", {}),
        "training": {"steps": 4, "precision": "float32", "device": "cpu"} | sections.pop("training", {}),
        "optimizer": {"learning_rate": 0.003, "schedule": "constant"} | sections.pop("optimizer", {}),
        "regularize": {"dropout": False, "gradient_clipping": False} | sections.pop("regularize", {}),
    }
    if held_out:
        spec["data"]["validation"] = spec["data"]["train"]
    if not {"init_from", "init_encoder_from", "init_decoder_from"} & set(sections.get("model", {})):
        spec["tokenizer"] = {"path": str(folder / name)}
        sections["model"] = SIZES | sections.get("model", {})
    return parse_recipe(spec | sections, "the recipe")


def ready(spec, folder):
    """Return a training module before its first step, and all examples of its data.

    Returns:
        (module, examples)
    """
    torch.manual_seed(spec.seed)
    task = create_task(spec, folder)
    teachers = trainer.load_teachers(task, spec)
    trainer.prepare_for_training(task.model, spec)
    module = TrainingModule(task, spec, 4, teachers)
    module._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=1)
    records = Records(spec.data.train, fields=task.fields)
    examples = [example for chunk in task.examples(list(records)) for example in chunk]
    return module, [{key: _array(value) for key, value in example.items()} for example in examples]


def _array(value):
    return value if isinstance(value, int | float) else np.asarray(value)


def batch_of(module, examples, training=False, seed=0):
    """Return the task's batch of some examples."""
    return module.task.collate(examples, np.random.default_rng(seed), training=training)


def module_of(data, task="text-to-text", *, model=None, **regularizers):
    """Return a training module with regularizers, and the examples of its data."""
    return ready(recipe(data, task, regularize=regularizers, model=model or {}), data / "run")


def logits_of(prediction):
    """Return the logits of all targets."""
    return prediction.output(prediction.hidden_ND) if hasattr(prediction, "hidden_ND") else prediction.logits_NC


def predict(module, batch, mask_padding=True):
    """Return the predictions of the module's model."""
    return module.task.predict(module.model, batch, mask_padding=mask_padding)


def kl(one, other):
    """Return KL(softmax(one) ‖ softmax(other)), summed over the rows."""
    log_p, log_q = torch.log_softmax(one.double(), -1), torch.log_softmax(other.double(), -1)
    return (log_p.exp() * (log_p - log_q)).sum()


def save_teacher(data, folder, task="text-to-text", seed=9, **model):
    """Save a model of this seed, with weights so large that its predictions differ; return its folder."""
    module, _ = ready(recipe(data, task, model=model, seed=seed), data / "run")
    with torch.no_grad():
        for parameter in module.model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    module.task.save(folder / "teacher")
    return folder / "teacher"


def small_seq2seq(**changes):
    """Return an encoder–decoder with three layers on each side."""
    sizes = {"vocab_size": 50, "d_model": 16, "ffn_hidden": 32, "num_heads": 2, "num_layers": 3}
    return Seq2Seq(Seq2SeqConfig(**(sizes | changes)))
