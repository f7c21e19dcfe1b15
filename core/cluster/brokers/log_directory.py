"""The coordination's record of a broker's log directory, `/brokers/log_dirs/<id>`.

With it a broker detects that its directory was restored from an older backup.

Every write is conditional on the version that this process has last read or written. So, of two processes with one
broker id, the displaced one cannot record its own directory in place of the other's.
"""

from __future__ import annotations

from ...errors import CoordinationError
from ...interfaces.coordination import BadVersionError, Coordination, NodeExistsError, NoNodeError
from ...records.partition import TopicPartition
from ..tree import paths
from ..tree.nodes import LogDirectoryNode


class LogDirectoryRecord:
    """Blocking. Call `read`, then `record_start`."""

    def __init__(self, coordination: Coordination, broker_id: int) -> None:
        self._coordination = coordination
        self._path = paths.log_directory(broker_id)
        self._node = LogDirectoryNode()
        self._version: int | None = None

    def read(self) -> LogDirectoryNode:
        try:
            data, stat = self._coordination.get(self._path)
        except NoNodeError:
            return self._node
        self._node, self._version = LogDirectoryNode.decode(self._path, data), stat.version
        return self._node

    def created(self, tp: TopicPartition) -> int:
        """Returns the creation id of a partition, which is comparable with broker epochs; -1 if the partition does not
        exist."""
        stat = self._coordination.exists(paths.partition_state(*tp))
        return -1 if stat is None else stat.creation_id

    def record_start(self, broker_epoch: int, *, complete: bool = True) -> None:
        """Records that this broker has opened its partitions under this registration; `complete`: every one of them."""
        last_complete = broker_epoch if complete else self._node.last_complete_start
        self._write(LogDirectoryNode(last_start=broker_epoch, last_complete_start=last_complete))

    def _write(self, node: LogDirectoryNode) -> None:
        try:
            if self._version is None:
                stat = self._coordination.create(self._path, node.encode(), make_parents=True)
            else:
                stat = self._coordination.set(self._path, node.encode(), self._version)
        except (NodeExistsError, NoNodeError, BadVersionError) as error:
            raise CoordinationError(
                f"{self._path} was changed by another process with this broker's id, or the coordination was restored: "
                f"{error}"
            ) from error
        self._node, self._version = node, stat.version
