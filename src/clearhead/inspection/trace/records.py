"""What a trace tells: steps, each with its equation, its named shape, its values."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.equations import equation_of

Named = tuple[tuple[str, int], ...]
_PART = 2**18
"""Numbers whose statistics are taken at once."""


@dataclass(frozen=True)
class Statistics:
    """Mean, standard deviation and extremes of a step's numbers that are finite."""

    mean: float
    std: float
    min: float
    max: float


@dataclass(frozen=True)
class Step:
    """One step of a forward pass.

    Args:
        path: where in the model.
        operation: what is done, in the field's words.
        equation: its formula, as the equation's own file states it.
        shape: the result's dimensions by name, such as (("B", 1), ("H", 8), ("Lq", 6), ("Lk", 6)).
        dtype: the result's numbers, such as "float32".
        parameters: how many trained numbers the step uses.
        values: statistics of the result, where they were asked for.
    """

    path: str
    operation: str
    equation: str
    shape: Named
    dtype: str
    parameters: int
    values: Statistics | None = None

    @property
    def named_shape(self) -> str:
        """The shape as people write it: [B=1, H=8, Lq=6, Lk=6]."""
        return "[" + ", ".join(f"{name}={size}" for name, size in self.shape) + "]"

    def as_dict(self) -> dict[str, Any]:
        """The step as plain JSON values; "values" is there where statistics were asked for."""
        data: dict[str, Any] = {
            "path": self.path,
            "operation": self.operation,
            "equation": self.equation,
            "shape": [[name, size] for name, size in self.shape],
            "dtype": self.dtype,
            "parameters": self.parameters,
        }
        if self.values is not None:
            data["values"] = vars(self.values)
        return data


@dataclass(frozen=True)
class Trace:
    """The steps of one forward pass in order, and what the model returned.

    `str` gives them as a table.
    """

    steps: tuple[Step, ...]
    output: Any

    def __str__(self) -> str:
        rows = [(step.path, step.operation, step.named_shape, step.equation) for step in self.steps]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in rows
        )


@dataclass(frozen=True)
class Operation:
    """What all steps of a kind have in common.

    Args:
        operation: what is done.
        states: the function or class whose docstring states the equation.
        names: the names of the result's dimensions, as one string.
        note: what the equation leaves open, such as the value of a letter.
    """

    operation: str
    states: object
    names: str
    note: str = ""


class Recorder:
    """Gathers the steps of a forward pass.

    Args:
        values: whether each step is told with statistics of its numbers.
    """

    def __init__(self, values: bool) -> None:
        self.values = values
        self.steps: list[Step] = []
        self._counted: set[int] = set()

    def seen(self, result: Tensor) -> Tensor:
        """What was observed, to compute with: its shape alone where no values are asked for."""
        return result.detach() if self.values else result.detach().to("meta")

    def tell(self, path: str, kind: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        """Adds a step.

        Args:
            path: where in the model.
            kind: what was done.
            result: what came out.
            module: what did it, if it has weights.
        """
        # a part that is called by itself may come without a batch, or with more dimensions before its own
        labels = kind.names.split()
        missing = result.ndim - len(labels)
        labels = [f"N{number}" for number in range(1, missing + 1)] + labels[max(0, -missing) :]
        equation = equation_of(kind.states)
        if module is not None and getattr(module, "bias", module) is None:  # the bias is each equation's last term
            equation = equation.rpartition(" + ")[0]
        self.steps.append(
            Step(
                path=path,
                operation=kind.operation,
                equation=equation + kind.note,
                shape=tuple(zip(labels, result.shape, strict=True)),
                dtype=str(result.dtype).removeprefix("torch."),
                parameters=0 if module is None else self._count(module),
                values=_statistics(result) if self.values else None,
            )
        )

    def _count(self, module: nn.Module) -> int:
        """The module's trained numbers that no step before has counted: tied ones are one."""
        new = [parameter for parameter in module.parameters() if id(parameter) not in self._counted]
        self._counted.update(map(id, new))
        return sum(parameter.numel() for parameter in new)


def dotted(path: str, name: str) -> str:
    """The path of a part."""
    return f"{path}.{name}" if path else name


def _statistics(result: Tensor) -> Statistics | None:
    """Over some numbers at a time: those of a long text's scores are gigabytes, and each copy would be as many."""
    count, mean, squares, low, high = 0, 0.0, 0.0, math.inf, -math.inf
    for part in torch.split(result.detach().flatten(), _PART):
        numbers = part.float()
        if not numbers.numel():
            continue
        lowest, highest = (float(one) for one in numbers.aminmax())  # NaN where one of them is
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            numbers = numbers[numbers.isfinite()]
            if not numbers.numel():
                continue
            lowest, highest = (float(one) for one in numbers.aminmax())
        new, middle = numbers.numel(), float(numbers.mean())
        count, ahead = count + new, middle - mean
        mean += ahead * new / count
        squares += float((numbers - middle).square_().sum()) + ahead**2 * new * (count - new) / count
        low, high = min(low, lowest), max(high, highest)
    return Statistics(mean, math.sqrt(squares / count), low, high) if count else None
