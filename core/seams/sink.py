"""The sink seam: where a running `klamm sink` puts a group's records.

A sink that raises stops its task before the offsets are committed: what was not flushed is delivered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from klamm.core.records.record import ConsumerRecord


class Sink(Protocol):
    """Made once per task; called from one thread."""

    def open(self) -> None: ...

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """Take records of any of the task's partitions, in order within each."""
        ...

    def flush(self) -> None:
        """Returns when all that was written is durable; only then are the offsets committed."""
        ...

    def close(self) -> None: ...
