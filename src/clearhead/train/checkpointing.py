"""The checkpoints of a run: the weights that are kept, and the state from which it goes on."""

from collections.abc import Iterable, Mapping, Sequence
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
from clearhead.io.pickle import read_pickle

FORMAT = 1
"""Of what state.ckpt holds; a run is only resumed from its own."""


STATE = Path("checkpoints") / "state.ckpt"
"""In a run's folder: from where it goes on."""

_PARTS = ("pytorch-lightning_version", "state_dict", "callbacks", "optimizer_states", "lr_schedulers", "loops")


class WholeCheckpoints(TorchCheckpointIO):
    """Lightning's checkpoints, written whole or not at all and read without running a pickle's code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        with _Saying(Path(path)), atomic_file(path) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_state(Path(path))


class CheckpointManager:
    """A run's folder of checkpoints: ``state.ckpt`` and the weights of some steps.

    New weights are written before the state that names them, and old ones are removed after it: whatever moment the
    run is ended in, there is a state whose weights are all there.

    Args:
        run: the run's folder.
        keep_last: how many last ones are kept.
    """

    def __init__(self, run: Path, keep_last: int) -> None:
        self.state, self._keep_last = run / STATE, keep_last
        self.folder = self.state.parent
        self.last: list[int] = []
        self.best: int | None = None
        self.passing: int | None = None

    def weights(self, step: int) -> Path:
        """The file with the weights of a step."""
        return self.folder / f"step-{step:08d}.safetensors"

    def write(self, model: nn.Module, step: int, *, best: bool, passing: bool = False) -> None:
        """Writes the weights of a step, and notes them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.weights(step)
        with _Saying(path), atomic_file(path) as file:
            file.write(save({name: tensor.detach().cpu().contiguous() for name, tensor in _named(model).items()}))
        self.note(step, best=best, passing=passing)

    def note(self, step: int, *, best: bool, passing: bool = False) -> None:
        """Takes a step's weights among those that are kept.

        Args:
            step: the step.
            best: whether no others are better.
            passing: kept only until the run goes on: without the stop they would not be there, nor be averaged.
        """
        if passing:
            self.passing = step
            return
        self.last = [*(kept for kept in self.last if kept != step), step][-self._keep_last :]
        if best:
            self.best = step

    def tidy(self) -> None:
        """Removes weights that are not kept, and what was left of files whose writing was ended in the middle."""
        kept = {self.weights(step) for step in self.kept()}
        for path in self.folder.glob("step-*.safetensors"):
            if path not in kept:
                path.unlink()
        for folder in (self.folder, self.folder.parent):
            for path in folder.glob(".*.part"):
                with suppress(FileNotFoundError):
                    path.unlink()

    def kept(self) -> list[int]:
        """The steps whose weights are kept."""
        return sorted({*self.last, *(step for step in (self.best, self.passing) if step is not None)})

    def newest(self) -> list[int]:
        """The last step whose weights are kept; [] where there are none."""
        return self.kept()[-1:]

    def load(self, model: nn.Module, steps: Sequence[int]) -> None:
        """Gives a model the weights of a step, or the average of several.

        Equation: w = Σ_i w_i / n
        Source: Section 6.1 of "Attention Is All You Need"

        Raises:
            ValueError: a file of weights that is damaged or belongs to another model.
        """
        parameters, total = _named(model), dict[str, Tensor]()
        for step in steps:
            for name, tensor in _read_weights(self.weights(step), parameters).items():
                total[name] = tensor.double() + total.get(name, 0.0)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(total[name] / len(steps))


def read_state(path: Path) -> dict[str, Any]:
    """What a checkpoint holds.

    Raises:
        ValueError: a checkpoint that is broken, or of another version of the format.
    """
    advice = "Restore the file from a backup, or start a new run with another output"
    try:
        state: object = read_pickle(path, advice)
    except FileNotFoundError:
        raise ValueError(f"there is no checkpoint {path} to go on from") from None
    told = state.get("clearhead") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(told, Mapping):
        raise ValueError(f"{path} is not a checkpoint of clearhead")
    if told.get("format") != FORMAT:
        raise ValueError(
            f"{path} is of format {told.get('format')}, written by clearhead {told.get('version')}; "
            f"this is clearhead {__version__}, whose format is {FORMAT}: go on with the version that began it"
        )
    for part in _PARTS:
        if part not in state:
            raise ValueError(f"{path} is damaged: it has no {part}. {advice}")
    return state


def _read_weights(path: Path, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file of weights.

    Raises:
        ValueError: the file is damaged, or lacks a parameter or has it in another shape.
    """
    advice = "Restore the file from a copy, or train again with another output"
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}. {advice}") from None
    for name, parameter in parameters.items():
        if name not in tensors:
            raise ValueError(f"{path} has no tensor {name}, which the model needs. {advice}")
        found, expected = tuple(tensors[name].shape), tuple(parameter.shape)
        if found != expected:
            raise ValueError(f"{path}: tensor {name} has shape {found}; the model needs {expected}. {advice}")
    return tensors


def is_finite(parameters: Iterable[Tensor]) -> bool:
    """Whether no number is infinite or none at all."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)


def _named(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


class _Saying:
    """Says which file could not be written; what stood there before is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # torch's own writer fails once more, in other words, when it closes what a full disk did not take
        found = error
        while isinstance(found, RuntimeError):
            found = found.__context__
        if isinstance(found, OSError):
            reason = f"the checkpoint could not be written ({found.strerror}); the one before is whole"
            raise OSError(found.errno, reason, str(self._path)) from None
