"""Runs the steps that an object's methods return at once, so that a test calls them as functions."""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

from klamm.core.cluster.tree.steps import run_steps
from klamm.core.interfaces.coordination import Coordination


class Blocking:
    """An object without I/O, such as a `Registration`, on a coordination. Its attributes are set on the object."""

    def __init__(self, coordination: Coordination, inner: Any) -> None:
        self.__dict__.update(inner=inner, coordination=coordination)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found
        call: Callable[..., Any] = found

        def run(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            return run_steps(self.coordination, result) if isinstance(result, GeneratorType) else result

        return run

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)
