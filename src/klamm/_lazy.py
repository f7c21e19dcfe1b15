"""Attributes of a module that are imported on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

__all__ = ["lazy_attributes"]


def lazy_attributes(module: str, names: Mapping[str, Iterable[str]]) -> Callable[[str], object]:
    """Returns the `__getattr__` of `module`. `names`: by the module that defines them, the names to import from there.

    A submodule is named by its own path: `"klamm.errors": ("errors",)`.
    """
    found_in = {name: source for source, own in names.items() for name in own}

    def __getattr__(name: str) -> object:
        if name not in found_in:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source = import_module(found_in[name])
        value: object = source if found_in[name] == f"{module}.{name}" else getattr(source, name)
        setattr(sys.modules[module], name, value)  # the next access is an ordinary one
        return value

    return __getattr__
