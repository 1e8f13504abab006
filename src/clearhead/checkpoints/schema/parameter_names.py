"""Two-way tables between foreign tensor names and ours, as data.

A row maps one foreign name, or several stacked ones, to one of ours. ``{}`` is the number of a layer::

    "encoder.layer.{}.output.dense.weight": "layers.{}.feedforward.out.weight"
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from clearhead.choices import did_you_mean

Rows = Mapping[str | tuple[str, ...], str]


@dataclass(frozen=True)
class ParameterNames:
    """Tensor names of a family.

    Args:
        rows: foreign name -> our name. Several foreign tensors of equal height are stacked along the first axis.
        ignored: regular expressions of foreign names that a file may contain and the model does not use: buffers that
            follow from the config, and heads.
        family: the model type of the family, for messages.
        swapped: our names whose two halves have the other order in a file: the gate last.
        shares: our name -> the relative heights of the foreign tensors that are stacked in it; equal heights without
            an entry.
        group_layers: layers in a group, for names with two ``{}``: the number of a group, and of a layer in it. 0 for
            names with one number.
    """

    rows: Rows
    ignored: Sequence[str] = ()
    family: str = ""
    swapped: frozenset[str] = frozenset()
    shares: Mapping[str, Sequence[int]] = field(default_factory=dict)
    group_layers: int = 0

    @cached_property
    def _by_ours(self) -> dict[str, tuple[str, ...]]:
        return {ours: (name,) if isinstance(name, str) else name for name, ours in self.rows.items()}

    def foreign_names(self, ours: str) -> tuple[str, ...]:
        """Return the foreign names of one of our tensors, in the order in which they are stacked.

        Raises:
            ValueError: the table has no row for the tensor. The message names the family and the closest row.
        """
        numbers = re.findall(r"\.(\d+)\.", ours)
        row = _row(ours)
        names = self._by_ours.get(row)
        if names is None:
            owner = f" of the family {self.family!r}" if self.family else ""
            raise ValueError(
                f"the parameter table{owner} has no row for {row}; add one{did_you_mean(row, list(self._by_ours))}"
            )
        if self.group_layers:
            numbers = [str(part) for number in numbers for part in divmod(int(number), self.group_layers)]
        return tuple(name.format(*numbers) for name in names)

    def to_ours(
        self, tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], source: str
    ) -> dict[str, Tensor]:
        """Return the tensors of a file under our names.

        Args:
            tensors: the tensors of the file.
            expected: our names and their shapes.
            source: the path of the file, for messages.

        Raises:
            ValueError: a tensor is missing, unexpected, misshapen, not floating-point or not finite; the message names
                the tensor.
        """
        remaining = dict(tensors)
        ours: dict[str, Tensor] = {}
        missing: list[str] = []
        for name, shape in expected.items():
            names = self.foreign_names(name)
            missing += [part for part in names if part not in remaining]
            if missing:
                continue
            parts = [remaining.pop(part) for part in names]
            for part, tensor, height in zip(names, parts, self._heights(name, shape[0], len(names)), strict=True):
                _check_tensor(tensor, part, (height, *shape[1:]), source)
            ours[name] = self._swap(name, parts[0] if len(parts) == 1 else torch.cat(parts))
        if missing:
            raise ValueError(f"{source}: {_list_tensors(missing)} missing")
        unexpected = [name for name in remaining if not self._is_ignored(name)]
        if unexpected:
            raise ValueError(f"{source}: {_list_tensors(unexpected)} unexpected: no part of this model uses it")
        return ours

    def to_foreign(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our tensors under the names of the family."""
        foreign: dict[str, Tensor] = {}
        for ours, tensor in tensors.items():
            names = self.foreign_names(ours)
            parts = torch.split(self._swap(ours, tensor), self._heights(ours, tensor.shape[0], len(names)))
            foreign |= {name: part.contiguous() for name, part in zip(names, parts, strict=True)}
        return foreign

    def ignored_in(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return the names of a file's tensors that the model does not use."""
        return [name for name in tensors if self._is_ignored(name)]

    def count_in(self, names: Iterable[str]) -> int:
        """Return how many of the names of a file's tensors have a row."""
        foreign = {part for row in self._by_ours.values() for part in row}
        return sum(_row(name) in foreign for name in names)

    def _swap(self, ours: str, tensor: Tensor) -> Tensor:
        return torch.cat(tensor.chunk(2)[::-1]) if _row(ours) in self.swapped else tensor

    def _heights(self, ours: str, height: int, parts: int) -> list[int]:
        """Return the heights of the foreign tensors in one of ours."""
        shares = self.shares.get(_row(ours), (1,) * parts)
        return [height * share // sum(shares) for share in shares]

    def _is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


def _row(ours: str) -> str:
    """Return one of our names with ``{}`` for the numbers of layers."""
    return re.sub(r"\.\d+\.", ".{}.", ours)


def with_bias(rows: Rows) -> dict[str | tuple[str, ...], str]:
    """Return rows for the weight and the bias of modules, from rows with the names of the modules."""
    both: dict[str | tuple[str, ...], str] = {}
    for foreign, ours in rows.items():
        for part in ("weight", "bias"):
            if isinstance(foreign, str):
                both[f"{foreign}.{part}"] = f"{ours}.{part}"
            else:
                both[tuple(f"{name}.{part}" for name in foreign)] = f"{ours}.{part}"
    return both


def _check_tensor(tensor: Tensor, name: str, shape: tuple[int, ...], source: str) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{source}: tensor {name} has shape {tuple(tensor.shape)}, but the model's config.json asks for {shape}"
        )
    if not tensor.is_floating_point():
        raise ValueError(f"{source}: tensor {name} has dtype {tensor.dtype}; expected floating-point numbers")
    if not tensor.isfinite().all():
        raise ValueError(f"{source}: tensor {name} contains NaN or infinity")


def _list_tensors(names: Sequence[str]) -> str:
    """Return up to three names and the number of the others, with a verb."""
    more = f" and {len(names) - 3} more are" if len(names) > 3 else (" is" if len(names) == 1 else " are")
    return f"tensor{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"
