"""Dynamic broker configurations in the coordination (KIP-226), changed by conditional writes that are repeated on
conflict."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...interfaces.coordination import (
    BadVersionError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    Set,
)
from ..tree import paths
from ..tree.nodes import ConfigNode
from ..tree.steps import Steps, create_below, find, transact

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Takes the present configuration and returns the new one; raises to refuse the change."""
_ATTEMPTS = 10


def alter_broker_config(broker_id: int | None, change: Change) -> Steps[None]:
    """Changes the configuration of one broker, or of all (None). Raises `CoordinationUnavailableError` if concurrent
    changes win every attempt."""
    path = paths.broker_config(broker_id)
    for _ in range(_ATTEMPTS):
        found = yield from find(path)
        before = {} if found is None else ConfigNode.decode(path, found[0]).config
        node = ConfigNode(config=dict(change(before)))
        try:
            if found is None:
                yield from create_below(path, node.encode())
            else:
                yield from transact(Set(path, node.encode(), found[1].version))
        except (BadVersionError, NoNodeError, NodeExistsError):
            continue
        return
    raise CoordinationUnavailableError(f"{path} kept changing")
