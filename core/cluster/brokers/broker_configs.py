"""Dynamic broker configurations in the coordination (KIP-226), changed by conditional writes that are repeated on
conflict."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...interfaces.coordination import (
    BadVersionError,
    Coordination,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from ..tree import paths
from ..tree.nodes import ConfigNode

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Returns the new configuration for the present one; raises to refuse the change."""
_ATTEMPTS = 10


def alter_broker_config(coordination: Coordination, broker_id: int | None, change: Change) -> None:
    """Changes the configuration of one broker, or of all (None). Raises `CoordinationUnavailableError` if concurrent
    changes win every attempt."""
    path = paths.broker_config(broker_id)
    for _ in range(_ATTEMPTS):
        try:
            data, stat = coordination.get(path)
        except NoNodeError:
            node = ConfigNode(config=dict(change({})))
            try:
                coordination.create(path, node.encode(), make_parents=True)
            except NodeExistsError:
                continue
            return
        node = ConfigNode(config=dict(change(ConfigNode.decode(path, data).config)))
        try:
            coordination.set(path, node.encode(), stat.version)
        except (BadVersionError, NoNodeError):
            continue
        return
    raise CoordinationUnavailableError(f"{path} kept changing")
