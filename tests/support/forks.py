"""Run commands in forked processes, and inject faults; the libraries are imported only once."""

import importlib.util
import io
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported, so before the command itself can set it
# Windows has no fork: each command imports the libraries again
CONTEXT = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
CONTEXT.set_forkserver_preload(
    [
        "clearhead.cli.main",
        "clearhead.metrics.bleu",
        "clearhead.pipelines.question_answerer",
        "clearhead.corpus.encode",
        "clearhead.pipelines.summarizer",
        "clearhead.pipelines.text_classifier",
        "clearhead.retrieval.index",
        "clearhead.inspection.lint.checkpoint",
        "clearhead.inspection.report.html",
        "clearhead.inspection.verify.verify",
        "clearhead.train.trainer",
        "clearhead.train.tasks.text_to_text",
        "clearhead.train.loop.tensorboard_events",
    ]
)


def start(*arguments, log, hook=None, process_group=None, stdin=os.devnull, cwd=None):
    """Start `clearhead`; standard error goes to the file `log`, standard output to the same name with `.out`."""
    context = (str(log), str(stdin), str(cwd or Path.cwd()), dict(os.environ))
    process = CONTEXT.Process(
        target=_run, args=([str(argument) for argument in arguments], context, hook, process_group)
    )
    process.start()
    return process


def run(*arguments, log, **options):
    """Run `clearhead`; return its status (negative for a signal) and its standard error."""
    return _end(start(*arguments, log=log, **options)), Path(log).read_bytes().decode()


def run_together(*arguments, log, hooks=(None, None)):
    """Run `clearhead` in a process group, like `torchrun`; return the status and standard error of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logs = [Path(f"{log}-{rank}") for rank in range(len(hooks))]
    started = [
        start(*arguments, log=log_file, hook=hook, process_group=(rank, len(hooks), port))
        for rank, (hook, log_file) in enumerate(zip(hooks, logs, strict=True))
    ]
    return [(_end(process), log_file.read_text()) for process, log_file in zip(started, logs, strict=True)]


def _end(process):
    process.join(240)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("the process did not end within 240 s")
    return process.exitcode


def _run(arguments, context, hook, process_group):
    log, stdin, cwd, environment = context
    os.environ.clear()
    os.environ.update(environment)
    if process_group is not None:
        rank, world, port = process_group
        names = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        os.environ.update({name: str(value) for name, value in names.items()})
    for stream, path in ((2, log), (1, f"{log}.out")):
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
    """Send SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(seconds):
    """Kill this process after a delay."""
    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()


def before_batch(number, action=kill):
    """Run an action before a batch is computed."""
    from clearhead.train.loop.lightning_module import TrainingModule

    _before(TrainingModule, "training_step", lambda module, micro_batch, index: micro_batch.index == number, action)


def before_state(step, action=kill):
    """Run an action after the weights of a step are written, before its state is."""
    from clearhead.train.loop.checkpointing import AtomicCheckpointIO

    _before(
        AtomicCheckpointIO,
        "save_checkpoint",
        lambda self, checkpoint, *rest, **options: _step(checkpoint) == step,
        action,
    )


def kill_during_state(step):
    """Kill this process when half of a state is written."""
    from clearhead.train.loop import checkpointing

    save = checkpointing.torch.save

    def save_half(checkpoint, file):
        if _step(checkpoint) == step:
            buffer = io.BytesIO()
            save(checkpoint, buffer)
            file.write(buffer.getvalue()[: buffer.tell() // 2])
            file.flush()
            kill()
        save(checkpoint, file)

    checkpointing.torch.save = save_half


def kill_in_validation(number):
    """Kill this process in a validation, counted from 1."""
    from clearhead.train.tasks.text_to_text import TextToTextTask

    _before(TextToTextTask, "validate", _at(number), kill)


def kill_in_dataset():
    """Kill this process when the dataset is partly written."""
    from clearhead.train.data.writer import DatasetWriter

    _before(DatasetWriter, "finish", lambda *rest: True, kill)


def kill_before_model():
    """Kill this process after the last step, before the model is saved."""
    from clearhead.train.tasks.text_to_text import TextToTextTask

    _before(TextToTextTask, "save", lambda *rest: True, kill)


def after_checkpoint(step, action=kill):
    """Run an action after a checkpoint is written, before old ones are deleted."""
    from clearhead.train.loop.checkpointing import CheckpointManager

    _before(CheckpointManager, "prune", lambda manager: manager.last[-1:] == [step], action)


def send_signal_at_batch(number, signal_number):
    """Send a signal to this process before a batch."""
    before_batch(number, lambda: os.kill(os.getpid(), signal_number))


def interrupt_twice(number):
    """Send SIGINT twice, 1.5 s apart."""

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)

    before_batch(number, twice)


def fill_disk_from_checkpoint(step):
    """Simulate a full disk from the checkpoint of a step on."""
    from clearhead.train.loop.checkpointing import CheckpointManager

    _before(CheckpointManager, "save", lambda manager, model, now, **rest: now == step, fill_disk)


def fill_disk_in_validation(number):
    """Simulate a full disk in a validation; the first file that fails is the plot of the metrics."""
    from clearhead.train.tasks.text_to_text import TextToTextTask

    _before(TextToTextTask, "validate", _at(number), fill_disk)


def fill_disk_before_state(step):
    """Simulate a full disk after the weights of a step, before its state."""
    before_state(step, fill_disk)


def fill_disk():
    """Simulate a full disk: limit the files of this process to 2,000 bytes."""
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


def hide_packages(*names):
    """Simulate that packages are not installed."""
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name in names else find_spec(name, *rest)


def save_wrong_weights():
    """Save other weights than those that were loaded."""
    import torch

    from clearhead import TextEncoder

    save_pretrained = TextEncoder.save_pretrained

    def save(encoder, folder):
        weights = next(encoder.model.parameters())
        with torch.no_grad():
            weights.mul_(1.01)
            save_pretrained(encoder, folder)
            weights.div_(1.01)

    TextEncoder.save_pretrained = save


def nan_loss_at_batch(number):
    """Make the loss of a batch NaN."""
    from clearhead.train.loop.lightning_module import TrainingModule

    loss = TrainingModule._loss

    def poisoned(self, batch):
        return loss(self, batch) * (float("nan") if self._current.index == number else 1.0)

    TrainingModule._loss = poisoned


def _before(owner, name, condition, action):
    real = getattr(owner, name)

    def hooked(*arguments, **options):
        if condition(*arguments, **options):
            action()
        return real(*arguments, **options)

    setattr(owner, name, hooked)


def _at(number):
    calls = iter(range(1, 10**6))
    return lambda *rest: next(calls) == number


def _step(checkpoint):
    return next(iter(checkpoint["callbacks"].values()))["step"]
