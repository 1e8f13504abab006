"""Two-way tables between foreign tensor names and ours, as data.

A row maps a foreign name, or several that are stacked, to one of ours; ``{}`` stands for the number of a layer::

    "encoder.layer.{}.output.dense.weight": "layers.{}.feedforward.out.weight"
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Rows = Mapping[str | tuple[str, ...], str]


@dataclass(frozen=True)
class ParameterNames:
    """How a family's tensors are called.

    Args:
        rows: foreign name -> our name. A tuple of foreign names is stacked along the first axis into one of ours,
            each part as tall as the others.
        left_aside: regular expressions of foreign names that a file may hold and that the model does not compute
            with: buffers that follow from the config, and heads.
    """

    rows: Rows
    left_aside: Sequence[str] = ()

    @cached_property
    def _by_ours(self) -> dict[str, tuple[str, ...]]:
        return {ours: (name,) if isinstance(name, str) else name for name, ours in self.rows.items()}

    def foreign(self, ours: str) -> tuple[str, ...]:
        """The foreign names of one of our tensors, in the order in which they are stacked."""
        numbers = re.findall(r"\.(\d+)\.", ours)
        names = self._by_ours.get(re.sub(r"\.\d+\.", ".{}.", ours))
        assert names is not None, f"the table has no row for {ours}"
        return tuple(name.format(*numbers) for name in names)

    def to_ours(
        self, tensors: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]], where: str
    ) -> dict[str, Tensor]:
        """A file's tensors under our names.

        Args:
            tensors: the file's tensors.
            wanted: our names and their shapes.
            where: the file, for messages.

        Raises:
            ValueError: a tensor that is missing, unexpected or misshapen, by name.
        """
        left = dict(tensors)
        ours: dict[str, Tensor] = {}
        missing: list[str] = []
        for name, shape in wanted.items():
            names = self.foreign(name)
            missing += [part for part in names if part not in left]
            if missing:
                continue
            parts = [left.pop(part) for part in names]
            part_shape = (shape[0] // len(parts), *shape[1:])
            for part, tensor in zip(names, parts, strict=True):
                if tuple(tensor.shape) != part_shape:
                    raise ValueError(
                        f"{where}: tensor {part} has shape {tuple(tensor.shape)}, "
                        f"but the model's config.json asks for {part_shape}"
                    )
                if not tensor.is_floating_point():
                    raise ValueError(f"{where}: tensor {part} holds {tensor.dtype}; floating-point numbers are wanted")
                if not tensor.isfinite().all():
                    raise ValueError(f"{where}: tensor {part} holds NaN or infinity")
            ours[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
        if missing:
            raise ValueError(f"{where}: {_listed(missing)} missing")
        unexpected = [name for name in left if not self._is_left_aside(name)]
        if unexpected:
            raise ValueError(f"{where}: {_listed(unexpected)} unexpected: nothing in this model would use it")
        return ours

    def to_foreign(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors under the family's names."""
        foreign: dict[str, Tensor] = {}
        for ours, tensor in tensors.items():
            names = self.foreign(ours)
            parts = tensor.chunk(len(names))
            foreign |= {name: part.contiguous() for name, part in zip(names, parts, strict=True)}
        return foreign

    def left_aside_in(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """The names of a file's tensors that the model leaves aside."""
        return [name for name in tensors if self._is_left_aside(name)]

    def _is_left_aside(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.left_aside)


def with_bias(rows: Rows) -> dict[str | tuple[str, ...], str]:
    """The rows of modules with a weight and a bias each, from the names of the modules."""
    both: dict[str | tuple[str, ...], str] = {}
    for foreign, ours in rows.items():
        for part in ("weight", "bias"):
            if isinstance(foreign, str):
                both[f"{foreign}.{part}"] = f"{ours}.{part}"
            else:
                both[tuple(f"{name}.{part}" for name in foreign)] = f"{ours}.{part}"
    return both


def _listed(names: Sequence[str]) -> str:
    """Up to three names, and how many more there are."""
    more = f" and {len(names) - 3} more are" if len(names) > 3 else (" is" if len(names) == 1 else " are")
    return f"tensor{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"
