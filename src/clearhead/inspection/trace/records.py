"""Records of a forward pass: steps with an equation, a named shape and statistics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.equations import equation_of
from clearhead.io.json import finite_or_none

NamedShape = tuple[tuple[str, int], ...]
_CHUNK = 2**18
"""Elements in each chunk of the statistics."""


@dataclass(frozen=True)
class Statistics:
    """Mean, standard deviation, minimum and maximum of the finite elements of a result."""

    mean: float
    std: float
    min: float
    max: float


@dataclass(frozen=True)
class Step:
    """One step of a forward pass.

    Args:
        path: path in the model.
        operation: name of the operation.
        equation: the formula from the docstring of the equation.
        shape: named dimensions of the result, such as (("B", 1), ("H", 8), ("Lq", 6), ("Lk", 6)).
        dtype: dtype of the result, such as "float32".
        parameters: number of trainable parameters that the step uses.
        values: statistics of the result, if requested.

    >>> import torch
    >>> from clearhead import EncoderLayer, trace
    >>> trace(EncoderLayer(8, 16, 2, 0.1), torch.zeros(1, 3, 8)).steps[0].shape
    (('B', 1), ('L', 3), ('3D', 24))
    """

    path: str
    operation: str
    equation: str
    shape: NamedShape
    dtype: str
    parameters: int
    values: Statistics | None = None

    @property
    def named_shape(self) -> str:
        """The shape as text: [B=1, H=8, Lq=6, Lk=6]."""
        return "[" + ", ".join(f"{name}={size}" for name, size in self.shape) + "]"

    def as_dict(self) -> dict[str, Any]:
        """Return the step as JSON values, with "values" if the step has statistics; NaN and infinity are None."""
        data: dict[str, Any] = {
            "path": self.path,
            "operation": self.operation,
            "equation": self.equation,
            "shape": [[name, size] for name, size in self.shape],
            "dtype": self.dtype,
            "parameters": self.parameters,
        }
        if self.values is not None:
            data["values"] = {name: finite_or_none(value) for name, value in vars(self.values).items()}
        return data


@dataclass(frozen=True)
class Trace:
    """The steps of one forward pass in order, and the output of the model.

    `str` returns a table of the steps.

    >>> import torch
    >>> from clearhead import EncoderLayer, trace
    >>> trace(EncoderLayer(8, 16, 2, 0.1), torch.zeros(1, 3, 8)).output.shape
    torch.Size([1, 3, 8])
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

    def _repr_html_(self) -> str:
        """Return the steps as a table, for notebooks."""
        return _html_table(self.steps)


def _html_table(steps: Sequence[Step]) -> str:
    """Return the steps as an HTML table that scrolls."""
    names = ["step", "path", "shape", "equation"]
    names += ["mean", "std", "min", "max"] if any(step.values for step in steps) else []
    rows = []
    for number, step in enumerate(steps, 1):
        cells = [f"{number}. {step.operation}", step.path, step.named_shape, step.equation]
        if len(names) > len(cells):
            cells += [f"{value:.3g}" for value in vars(step.values).values()] if step.values else [""] * 4
        rows.append("".join(f'<td style="text-align:left;white-space:nowrap">{escape(cell)}</td>' for cell in cells))
    header = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in names)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        '<div style="overflow:auto;max-height:420px"><table>'
        f'<caption style="text-align:left">{len(steps)} steps</caption>'
        f"<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>"
    )


@dataclass(frozen=True)
class Operation:
    """A kind of step.

    Args:
        name: name of the operation.
        source: function or class whose docstring states the equation.
        dimensions: names of the result's dimensions, separated by blanks.
        note: text after the equation, such as the value of a symbol.
        case: the case that applies, such as "cls", of a docstring with one equation for each: "mean: ...; cls: ...".
    """

    name: str
    source: object
    dimensions: str
    note: str = ""
    case: str = ""

    @property
    def equation(self) -> str:
        """The equation of the docstring, or that of the case, without the note."""
        equation = equation_of(self.source)
        return dict(one.split(": ", 1) for one in equation.split("; "))[self.case] if self.case else equation


class Recorder:
    """Collector of the steps of a forward pass.

    Args:
        values: whether to compute statistics of each result.
    """

    def __init__(self, values: bool) -> None:
        self.values = values
        self.steps: list[Step] = []
        self._counted: set[int] = set()

    def detach(self, x: Tensor) -> Tensor:
        """Return a tensor for further computation: detached, and without data if no statistics are requested."""
        return x.detach() if self.values else x.detach().to("meta")

    def record(self, path: str, operation: Operation, result: Tensor, module: nn.Module | None = None) -> None:
        """Add a step.

        Args:
            path: path in the model.
            operation: the kind of step.
            result: the result of the step.
            module: the module that computed it, if it has weights.
        """
        # a submodule may run without a batch dimension, or with additional dimensions first
        names = operation.dimensions.split()
        additional = result.ndim - len(names)
        names = [f"N{number}" for number in range(1, additional + 1)] + names[max(0, -additional) :]
        equation = operation.equation
        if module is not None and getattr(module, "bias", module) is None:  # the bias is the last term
            equation = equation.rpartition(" + ")[0]
        self.steps.append(
            Step(
                path=path,
                operation=operation.name,
                equation=equation + operation.note,
                shape=tuple(zip(names, result.shape, strict=True)),
                dtype=str(result.dtype).removeprefix("torch."),
                parameters=0 if module is None else self._count_parameters(module),
                values=_statistics(result) if self.values else None,
            )
        )

    def _count_parameters(self, module: nn.Module) -> int:
        """Count the parameters that no earlier step counted, so that tied weights count once."""
        new = [parameter for parameter in module.parameters() if id(parameter) not in self._counted]
        self._counted.update(map(id, new))
        return sum(parameter.numel() for parameter in new)


def join_path(path: str, name: str) -> str:
    """Return the path of a submodule."""
    return f"{path}.{name}" if path else name


def _statistics(result: Tensor) -> Statistics | None:
    """Compute the statistics in chunks, because the scores of a long text take gigabytes."""
    count, mean, squares, low, high = 0, 0.0, 0.0, math.inf, -math.inf
    for chunk in torch.split(result.detach().flatten(), _CHUNK):
        values = chunk.float()
        if not values.numel():
            continue
        lowest, highest = (float(extreme) for extreme in values.aminmax())  # NaN if an element is NaN
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            values = values[values.isfinite()]
            if not values.numel():
                continue
            lowest, highest = (float(extreme) for extreme in values.aminmax())
        new, chunk_mean = values.numel(), float(values.mean())
        count, difference = count + new, chunk_mean - mean
        mean += difference * new / count
        squares += float((values - chunk_mean).square_().sum()) + difference**2 * new * (count - new) / count
        low, high = min(low, lowest), max(high, highest)
    return Statistics(mean, math.sqrt(squares / count), low, high) if count else None
