"""Commands in processes of their own that can be killed for real; the libraries are imported once for all of them."""

import importlib.util
import io
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "clearhead.cli.main",
        "clearhead.metrics.bleu",
        "clearhead.pipelines.question_answerer",
        "clearhead.corpus.encode",
        "clearhead.pipelines.summarizer",
        "clearhead.pipelines.text_classifier",
        "clearhead.inspection.lint.checkpoint",
        "clearhead.inspection.report.html",
        "clearhead.inspection.verify.verify",
        "clearhead.train.trainer",
        "clearhead.train.tasks.text_to_text",
        "torch.utils.tensorboard",
    ]
)


def start(*arguments, said, hook=None, place=None, stdin=os.devnull, cwd=None):
    """Starts `clearhead` with arguments; what it says on standard error goes into the file `said`, and on standard
    output into that file's name with `.out`."""
    here = (str(said), str(stdin), str(cwd or Path.cwd()), dict(os.environ))
    process = CONTEXT.Process(target=_run, args=([str(argument) for argument in arguments], here, hook, place))
    process.start()
    return process


def run(*arguments, said, **options):
    """Runs `clearhead`; gives its status (negative: the signal that ended it) and what it said on standard error."""
    return _end(start(*arguments, said=said, **options)), Path(said).read_bytes().decode()


def run_together(*arguments, said, hooks=(None, None)):
    """Runs `clearhead` in several processes that train together, as `torchrun` starts them; gives for each its status
    and what it said on standard error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [Path(f"{said}-{rank}") for rank in range(len(hooks))]
    started = [
        start(*arguments, said=file, hook=hook, place=(rank, len(hooks), port))
        for rank, (hook, file) in enumerate(zip(hooks, files, strict=True))
    ]
    return [(_end(process), file.read_text()) for process, file in zip(started, files, strict=True)]


def _end(process):
    process.join(240)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("it goes on and on")
    return process.exitcode


def _run(arguments, here, hook, place):
    said, stdin, cwd, environment = here
    os.environ.clear()
    os.environ.update(environment)
    if place is not None:
        rank, world, port = place
        names = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        os.environ.update({name: str(value) for name, value in names.items()})
    for stream, path in ((2, said), (1, f"{said}.out")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    os.chdir(cwd)
    import torch

    from clearhead.cli.main import main

    torch.set_num_threads(1)
    if hook is not None:
        hook()
    sys.argv = ["clearhead", *arguments]
    main()


def kill():
    """What no program can answer."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(seconds):
    """At any moment."""
    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()


def at_batch(number, action=kill):
    """Before a batch is computed."""
    from clearhead.train.loop.lightning_module import TrainingModule

    _before(TrainingModule, "training_step", lambda module, micro_batch, index: micro_batch.index == number, action)


def at_state(step, action=kill):
    """The weights of a step are written, the state that names them is not."""
    from clearhead.train.loop.checkpointing import AtomicCheckpointIO

    _before(
        AtomicCheckpointIO,
        "save_checkpoint",
        lambda self, checkpoint, *rest, **options: _step(checkpoint) == step,
        action,
    )


def in_state(step):
    """Half of a state is written."""
    from clearhead.train.loop import checkpointing

    save = checkpointing.torch.save

    def half(checkpoint, file):
        if _step(checkpoint) == step:
            whole = io.BytesIO()
            save(checkpoint, whole)
            file.write(whole.getvalue()[: whole.tell() // 2])
            file.flush()
            kill()
        save(checkpoint, file)

    checkpointing.torch.save = half


def in_validation(number):
    """In the validation of this number, from 1 on."""
    from clearhead.train.tasks.text_to_text import TextToTextTask

    _before(TextToTextTask, "validate", _at(number), kill)


def in_store():
    """Some examples are written, the store is not whole."""
    from clearhead.train.data.writer import DatasetWriter

    _before(DatasetWriter, "finish", lambda *rest: True, kill)


def before_model():
    """All steps are done, the model is not in its folder."""
    from clearhead.train.tasks.text_to_text import TextToTextTask

    _before(TextToTextTask, "save", lambda *rest: True, kill)


def after_save(step, action=kill):
    """A checkpoint is whole, those that it replaces are still there."""
    from clearhead.train.loop.checkpointing import CheckpointManager

    _before(CheckpointManager, "prune", lambda manager: manager.last[-1:] == [step], action)


def signalled(number, sent):
    """A signal to this process while it computes a batch."""
    at_batch(number, lambda: os.kill(os.getpid(), sent))


def signalled_twice(number):
    """Two Ctrl-C, a while apart."""

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)

    at_batch(number, twice)


def full_from(step):
    """From a step's checkpoint on, no file gets any longer than 2,000 bytes: a disk that is full."""
    from clearhead.train.loop.checkpointing import CheckpointManager

    _before(CheckpointManager, "save", lambda manager, model, now, **rest: now == step, fill)


def full_journal(number):
    """Full in the validation of this number: the first file that does not fit is the picture of the curves."""
    from clearhead.train.tasks.text_to_text import TextToTextTask

    _before(TextToTextTask, "validate", _at(number), fill)


def full_state(step):
    """The weights of a step fit, its state does not."""
    at_state(step, fill)


def fill():
    """No file of this process gets any longer than 2,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


def lack(*names):
    """These packages are not installed."""
    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name in names else found(name, *rest)


def save_wrongly():
    """What an encoder writes is not what was loaded."""
    import torch

    from clearhead import TextEncoder

    right = TextEncoder.save_pretrained

    def save(encoder, folder):
        weights = next(encoder.model.parameters())
        with torch.no_grad():
            weights.mul_(1.01)
            right(encoder, folder)
            weights.div_(1.01)

    TextEncoder.save_pretrained = save


def poison(number):
    """A batch whose loss is no number."""
    from clearhead.train.loop.lightning_module import TrainingModule

    loss = TrainingModule._loss

    def poisoned(self, batch):
        return loss(self, batch) * (float("nan") if self._current.index == number else 1.0)

    TrainingModule._loss = poisoned


def _before(owner, name, when, action):
    real = getattr(owner, name)

    def hooked(*arguments, **options):
        if when(*arguments, **options):
            action()
        return real(*arguments, **options)

    setattr(owner, name, hooked)


def _at(number):
    calls = iter(range(1, 10**6))
    return lambda *rest: next(calls) == number


def _step(checkpoint):
    return next(iter(checkpoint["callbacks"].values()))["step"]
