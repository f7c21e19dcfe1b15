"""The offset-store seam: where groups keep their positions; one store per cluster serves both doors (design D6).

A store that raises refuses the commit or the fetch; the group goes on from its last stored offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from klamm.core.records.partition import TopicPartition
from klamm.core.seams.coordination import Check


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`offset` is the next to read. `commit_timestamp_ms` since the epoch; `leader_epoch` -1 when unknown."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1


class OffsetStore(Protocol):
    """Blocking and thread-safe. Made with the cluster's coordination."""

    needs_coordination: bool
    """Whether nothing can be stored or read while the coordination is away: callers are then told so at once."""

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        """Store all, or raise and store none. `guards` (a registry member's owner paths) hold in the same
        transaction: `BadVersionError` or `NoNodeError` when the owner has changed."""
        ...

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Those stored; `None` means every partition of the group. A partition without an offset is left out."""
        ...

    def delete(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Forget them; `None`: the whole group. What is not there is no error."""
        ...

    def groups(self) -> list[str]:
        """Groups with a stored offset, sorted."""
        ...

    def close(self) -> None:
        """Let connections of its own go; the coordination is not its own."""
        ...
