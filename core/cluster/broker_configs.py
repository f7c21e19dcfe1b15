"""What the cluster says of brokers' configurations (KIP-226): read, change and write, until nobody came between."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..interfaces.coordination import (
    BadVersionError,
    Coordination,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from . import paths
from .nodes import ConfigNode

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From what is set to what is to be set; may raise to refuse."""
_ATTEMPTS = 10


def alter_broker_config(coordination: Coordination, broker_id: int | None, change: Change) -> None:
    """Of one broker; None: of all. `CoordinationUnavailableError` when others keep changing it too."""
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
