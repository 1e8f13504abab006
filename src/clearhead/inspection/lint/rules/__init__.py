"""Rules of the linter: one file for each rule or small family of rules."""

import functools
import importlib
import pkgutil


@functools.cache
def load_rules() -> None:
    """Import every file of this folder once, which registers its rules."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
