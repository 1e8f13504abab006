"""Checkpoints of a run: weights of selected steps, and the state for resuming."""

import contextlib
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from clearhead._version import __version__
from clearhead.io.atomic import atomic_file
from clearhead.io.hashed import has_content
from clearhead.io.pickle import read_pickle

FORMAT = 1
"""Version of the contents of state.ckpt; other versions cannot be resumed."""


STATE = Path("checkpoints") / "state.ckpt"
"""File in a run's folder with the state for resuming."""

_REQUIRED_KEYS = ("pytorch-lightning_version", "state_dict", "callbacks", "optimizer_states", "lr_schedulers", "loops")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning checkpoints that are written atomically and loaded without running pickle code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        with _explain_write_errors(Path(path)), atomic_file(path) as file:
            torch.save(_canonical(checkpoint), file)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_state(Path(path))


class CheckpointManager:
    """A run's folder of checkpoints: ``state.ckpt`` and the weights of some steps.

    New weights are written before the state that lists them, and old ones are removed after it. Whenever the run is
    killed, all weights that the state lists exist.

    Args:
        run: folder of the run.
        keep_last: number of most recent steps whose weights are kept.
    """

    def __init__(self, run: Path, keep_last: int) -> None:
        self.state_path, self._keep_last = run / STATE, keep_last
        self.folder = self.state_path.parent
        self.last: list[int] = []
        self.best: int | None = None
        self.temporary: int | None = None
        self.hashes: dict[int, str] = {}

    def weights_path(self, step: int) -> Path:
        """Return the file with the weights of a step."""
        return self.folder / f"step-{step:08d}.safetensors"

    def save(self, model: nn.Module, step: int, *, best: bool, temporary: bool = False) -> None:
        """Write the weights of a step and record the step."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.weights_path(step)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _parameters(model).items()}
        content = save(tensors)
        with _explain_write_errors(path), atomic_file(path) as file:
            file.write(content)
        self.hashes[step] = hashlib.sha256(content).hexdigest()
        self.record(step, best=best, temporary=temporary)

    def record(self, step: int, *, best: bool, temporary: bool = False) -> None:
        """Record that the weights of a step are kept.

        Args:
            step: the step.
            best: whether these are the best weights so far.
            temporary: keep the weights only until the run resumes. An uninterrupted run would not have saved them, so
                they are not averaged either.
        """
        if temporary:
            self.temporary = step
            return
        self.last = [*(kept for kept in self.last if kept != step), step][-self._keep_last :]
        if best:
            self.best = step

    def prune(self) -> None:
        """Remove obsolete weights and partial files of interrupted writes."""
        kept = {self.weights_path(step) for step in self.kept_steps()}
        for path in self.folder.glob("step-*.safetensors"):
            if path not in kept:
                path.unlink()
        for folder in (self.folder, self.folder.parent):
            for path in folder.glob(".*.part"):
                with suppress(FileNotFoundError):
                    path.unlink()

    def kept_steps(self) -> list[int]:
        """Return the steps whose weights are kept."""
        return sorted({*self.last, *(step for step in (self.best, self.temporary) if step is not None)})

    def latest(self) -> list[int]:
        """Return the last step whose weights are kept, or [] at the start of a run."""
        return self.kept_steps()[-1:]

    def kept_hashes(self) -> dict[int, str]:
        """Return the SHA-256 hash of each file of weights, by step."""
        return {step: self.hashes[step] for step in self.kept_steps() if step in self.hashes}

    def load(self, model: nn.Module, steps: Sequence[int]) -> None:
        """Load the weights of a step, or the average of several, into a model.

        Equation: w = Σ_i w_i / n
        Source: Section 6.1 of "Attention Is All You Need"

        Raises:
            ValueError: a file of weights that is damaged or belongs to another model.
        """
        parameters, total = _parameters(model), dict[str, Tensor]()
        for step in steps:
            for name, tensor in _read_weights(self.weights_path(step), parameters, self.hashes.get(step)).items():
                total[name] = tensor.double() + total.get(name, 0.0)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(total[name] / len(steps))


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a run.

    Raises:
        ValueError: a file that is missing, damaged, or of another format version.
    """
    advice = "Restore the file from a backup, or start a new run with another output"
    try:
        state: object = read_pickle(path, advice)
    except FileNotFoundError:
        raise ValueError(f"no checkpoint to resume from: {path} does not exist") from None
    identity = state.get("clearhead") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(identity, Mapping):
        raise ValueError(f"{path} is not a checkpoint of clearhead")
    if identity.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {identity.get('format')}, written by clearhead {identity.get('version')}; clearhead "
            f"{__version__} requires format {FORMAT}. Resume with the version that started the run"
        )
    for key in _REQUIRED_KEYS:
        if key not in state:
            raise ValueError(f"{path} is damaged: it has no {key}. {advice}")
    return state


def _read_weights(path: Path, parameters: Mapping[str, Tensor], sha256: str | None) -> dict[str, Tensor]:
    """Read the tensors of a file of weights.

    Args:
        path: the file.
        parameters: the parameters of the model.
        sha256: the hash of the file, if the state has it.

    Raises:
        ValueError: a damaged file, or a parameter that is missing or has another shape.
    """
    advice = "Restore the file from a copy, or train again with another output"
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated, or not a safetensors file: {error}. {advice}") from None
    for name, parameter in parameters.items():
        if name not in tensors:
            raise ValueError(f"{path} has no tensor {name}, which the model needs. {advice}")
        shape, expected = tuple(tensors[name].shape), tuple(parameter.shape)
        if shape != expected:
            raise ValueError(f"{path}: tensor {name} has shape {shape}; the model needs {expected}. {advice}")
    if sha256 is not None and not has_content(path, path.stat().st_size, sha256):
        raise ValueError(f"{path} is damaged: its hash is not the one in {STATE.name}. {advice}")
    return tensors


def is_finite(parameters: Iterable[Tensor]) -> bool:
    """Return whether no parameter contains NaN or infinity."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


@contextlib.contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    """Raise an OSError that names the file which could not be written; its previous version is intact."""
    try:
        yield
    except BaseException as error:
        # torch raises another error when it closes a file on a full disk
        cause: BaseException | None = error
        while isinstance(cause, RuntimeError):
            cause = cause.__context__
        if isinstance(cause, OSError):
            reason = f"could not write the checkpoint ({cause.strerror}); the previous checkpoint is intact"
            raise OSError(cause.errno, reason, str(path)) from None
        raise


def _canonical(value: Any) -> Any:
    """Return a state whose equal strings are one object, and whose containers are not shared.

    Pickle writes an object only once, and refers to it afterwards. Without this, the state of a resumed run would have
    the same contents as that of an uninterrupted run, but other bytes: strings of the code and strings of a file are
    different objects.
    """
    if type(value) is str:
        return sys.intern(value)
    if type(value) is dict:
        return {_canonical(key): _canonical(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_canonical, value))
    return value
