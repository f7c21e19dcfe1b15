"""The nodes as a client last read or wrote them, so that it may write without reading first.

A mod revision names one state of a node. So a write that is planned on an outdated state fails its condition on the
mod revision, and is planned again on the state that is then read: a wrong guess costs time, never a wrong write.
Only an etcd that was restored from a backup uses revisions again: call `clear` when the connection was lost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from .nodes import StoredNode
from .transactions import EtcdSnapshot, EtcdTransaction, EtcdWrite

_MOST: Final = 8192
"""The number of nodes that are kept, the most recently used ones: about 2 MB."""


class KnownNodes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: OrderedDict[str, StoredNode] = OrderedDict()

    def clear(self) -> None:
        with self._lock:
            self._nodes.clear()

    def note(self, nodes: Mapping[str, StoredNode | None]) -> None:
        """Stores nodes as they were read; None for a path that does not exist."""
        with self._lock:
            for path, node in nodes.items():
                before = self._nodes.get(path)
                if node is None:
                    self._nodes.pop(path, None)
                elif before is None or before.mod_revision < node.mod_revision or before.version < 0:
                    self._nodes[path] = node
                    self._nodes.move_to_end(path)
            while len(self._nodes) > _MOST:
                self._nodes.popitem(last=False)

    def note_write(self, write: EtcdWrite) -> None:
        self.note({path: write.plan.stored(path, write.revision) for path in write.plan.touched})

    def guess(self, transaction: EtcdTransaction) -> EtcdSnapshot | None:
        """Returns the known nodes that the transaction depends on; None if too little is known. A path that is
        created is assumed to be missing unless it is known."""
        if transaction.deleted:  # whether they have children is not known
            return None
        created = set(transaction.created)
        found: dict[str, StoredNode | None] = {}
        with self._lock:
            for path in transaction.paths:
                node = self._nodes.get(path)
                if node is None and path not in created:
                    return None
                if node is not None and node.version < 0 and path in transaction.valued:
                    return None
                found[path] = node
        return EtcdSnapshot(0, found, {})
