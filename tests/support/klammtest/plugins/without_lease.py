"""A plugin that plants a fault: a broker serves after its registration has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from klamm.core.broker.session.lease import Lease
from klamm.core.cluster.cluster import Cluster, OnDisplaced
from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.command import Command

_NEVER_NS = 2**62


def _kept(lease: Lease, name: str, value: Any) -> None:
    object.__setattr__(lease, name, _NEVER_NS if name == "deadline_ns" else value)


def _nobody_is_told(_: Cluster, __: OnDisplaced) -> None:
    return


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Returns no commands; the hook makes this module a plugin."""
    return []


setattr(Lease, "__setattr__", _kept)  # noqa: B010 - mypy takes an assignment for a mistake
setattr(Cluster, "on_displaced", _nobody_is_told)  # noqa: B010
