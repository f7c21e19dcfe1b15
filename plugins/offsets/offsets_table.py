"""One partition of `__consumer_offsets` as a table in memory: the offsets and the groups whose records it holds.

Each method catches up with the partition's leader first (`klamm.core.client.reader.topic_table`), so it sees every
commit that was acknowledged before, whichever broker or client made it and whoever leads the partition now.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from klamm import ClusterClient
from klamm.core.client.reader.topic_table import TopicTable
from klamm.core.groups.records.contents import OffsetsContents
from klamm.core.groups.records.stored_group import StoredGroup
from klamm.plugin import CommittedOffset, TopicPartition

MAX_GAP_S: Final = 3600.0
"""Well below `delete.retention.ms`: after a longer gap compaction may have removed tombstones that the table has not
read."""


class OffsetsTable:
    """Thread-safe; one method at a time reads the partition."""

    def __init__(
        self, client: ClusterClient, tp: TopicPartition, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tp = tp
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._contents = OffsetsContents()
        self._table = TopicTable(client, self._contents, timeout_s=timeout_s, max_gap_s=MAX_GAP_S, clock=clock)

    def offsets(self, group: str, at_least: int = 0) -> dict[TopicPartition, CommittedOffset]:
        """Returns the group's present offsets; `at_least` is the end of the caller's own last append."""
        with self._lock:
            self._catch_up(at_least)
            return dict(self._contents.offsets.get(group, {}))

    def groups(self, at_least: int = 0) -> list[str]:
        """Returns the names of the groups that have offsets."""
        with self._lock:
            self._catch_up(at_least)
            return list(self._contents.offsets)

    def states(self, at_least: int = 0) -> dict[str, StoredGroup]:
        """Returns the states of classic groups, by name."""
        with self._lock:
            self._catch_up(at_least)
            return dict(self._contents.states)

    def _catch_up(self, at_least: int) -> None:
        deadline_s = self._clock() + self._timeout_s
        self._table.catch_up([self._tp], {self._tp: at_least}, deadline_s=deadline_s)
