"""Registry of checkpoint families, filled by the modules of `clearhead.checkpoints.families`."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar, runtime_checkable

_FAMILIES = "clearhead.checkpoints.families"


@runtime_checkable
class _Named(Protocol):
    """A family; its model type is the key in the registry."""

    @property
    def model_type(self) -> str: ...


Family = TypeVar("Family", bound=_Named)


class FamilyRegistry(Mapping[str, Family]):
    """Families by model type, such as "bert", in alphabetical order.

    The first look-up imports all modules of `checkpoints.families`.

    >>> from clearhead.checkpoints import ENCODER_FAMILIES
    >>> ENCODER_FAMILIES["bert"].architecture
    'BertModel'
    """

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._complete = False

    def register(self, family: Family) -> Family:
        """Add a family and return it.

        Raises:
            ValueError: another family has the same model type.
        """
        if self._families.setdefault(family.model_type, family) is not family:
            raise ValueError(f"two families have the model type {family.model_type!r}; rename one of them")
        return family

    def __getitem__(self, model_type: str) -> Family:
        self._discover()
        return self._families[model_type]

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._families))

    def __len__(self) -> int:
        self._discover()
        return len(self._families)

    def _discover(self) -> None:
        if not self._complete:
            package = importlib.import_module(_FAMILIES)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{_FAMILIES}.{module.name}")
            self._complete = True
