"""The service interface: a component that runs beside a broker, in its process: the audit's follower, a schema
registry, pages.

The broker starts its services in the order of `broker.services` once it serves, and stops them in the opposite order
while it still serves. All methods may be called from any thread but the event loop's. A service that raises in `start`
stops the broker; one that fails later reports it in `health`, and the broker continues. `start` has a minute and `stop`
half a minute: one that takes longer is logged, and the broker continues without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from ..records.codecs import CodecTable
from ..records.isolation import IsolationLevel
from ..records.partition import TopicPartition
from .codec import Buffer
from .coordination import Coordination
from .offsets import CommittedOffset

__all__ = [
    "AppendListener",
    "BrokerContext",
    "MirrorSource",
    "Service",
    "ServiceMetric",
    "ServiceRead",
    "SharedResource",
]


class SharedResource(Protocol):
    """What services of one broker have in common."""

    def close(self) -> None:
        """Called once, when the broker has stopped its services."""
        ...


R = TypeVar("R", bound=SharedResource)


class ServiceRead(NamedTuple):
    """Whole record batches, the first of which may begin before the requested offset. `end`: the offset up to which
    records can be read with the requested isolation. `topic_id` and `leader_epoch` are those of the log that was read.
    For a read with `READ_COMMITTED` the batches of aborted transactions are marked as control batches.
    """

    data: bytes
    high_watermark: int
    log_start_offset: int
    end: int
    topic_id: UUID | None = None
    leader_epoch: int = -1


class AppendListener(Protocol):
    """Called on the event loop after it has appended a client's batch, before the records are committed. Batches
    that a worker thread appends, and retries, are left out: a service reads those from the log. The broker serves no
    client meanwhile; a listener that raises is logged."""

    def __call__(
        self,
        partition: TopicPartition,
        batch: memoryview,
        base_offset: int,
        leader_epoch: int,
        log_append_time_ms: int,
        /,
    ) -> None:
        """`batch` is whole and its CRC checked, and is valid during the call only. `log_append_time_ms`: the time that
        the broker set as the timestamp of its records, -1 if it set none.
        """
        ...


@dataclass(frozen=True, slots=True)
class MirrorSource:
    """`topic_id`: of the topic at the source. `gaps`: the offsets, from the first up to the second, that the source had
    deleted before they were copied."""

    topic_id: UUID
    gaps: tuple[tuple[int, int], ...] = ()


class BrokerContext(Protocol):
    """The parts of a broker that its services may use. Blocking, thread-safe."""

    @property
    def host(self) -> str: ...

    @property
    def bootstrap_servers(self) -> str:
        """The broker's own listener: a service produces and consumes as any client does."""
        ...

    @property
    def codecs(self) -> CodecTable: ...

    @property
    def coordination(self) -> Coordination:
        """The broker's own; a service keeps small states there, below a path of its own."""
        ...

    def partitions(self) -> Mapping[TopicPartition, UUID | None]:
        """Returns the partitions that this broker leads now, with the ids of their topics. A partition that another
        broker has led is included once all records that were committed there are committed here."""
        ...

    def mirrored(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, MirrorSource | None]:
        """Returns the sources of the partitions that this broker leads as mirrors (docs/mirror.md); None for one whose
        source is not stored. Raises `CoordinationError`."""
        ...

    def set_aside(self, partition: TopicPartition, offset: int, end: int, leader_epoch: int) -> Buffer | None:
        """Returns what this broker has set aside when a mirror was cut (docs/mirror.md, M6): whole batches that contain
        the records of offsets [offset, end), as `read` returns those of committed transactions. None if they are not
        here, or the last of these records was of another leader epoch, that is of another history. Raises
        `KlammError`."""
        ...

    def read(
        self,
        partition: TopicPartition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> ServiceRead:
        """Reads from the local log, as far as `isolation` allows; returns at least one batch if there is any, and no
        data at an offset outside of the log, or if `max_bytes` is 0. Raises `KlammError` if the partition is no
        longer in `partitions`."""
        ...

    def on_append(self, listener: AppendListener) -> None:
        """Calls `listener` after each append from now on."""
        ...

    def epoch_end(self, partition: TopicPartition, leader_epoch: int) -> int:
        """Returns the end of the log's batches of this leader epoch, or of the last one before it; -1 for the epoch -1.
        A position of that epoch after this end belongs to another history: the log was cut, or restored from a backup.
        """
        ...

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        """Returns a service's stored positions, under a group id of its own; a partition without one is left out.
        Raises `CoordinationError` if the store cannot be read."""
        ...

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        leader_epochs: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        """Stores a service's positions in partitions that this broker leads in these leader epochs, those in which
        they were read. Returns the others, whose offsets are not stored, because another broker leads the partition
        by now, or this one in another epoch, or the topic is deleted. Raises `CoordinationError` if nothing can be
        stored now."""
        ...

    def ensure_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Creates the topic unless it exists, with `default.replication.factor` replicas. Raises `KlammError` if
        that is not possible now, for instance because too few brokers are live: try again."""
        ...

    def shared(self, name: str, make: Callable[[], R]) -> R:
        """Returns what the first caller with this name has made: one object for several services and validators."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    """One sample for the broker's Prometheus endpoint, printed as `klamm_NAME`. Samples of one name have the same `doc`
    and the same label names. `is_counter`: it only grows, and is printed as `klamm_NAME_total`."""

    name: str
    doc: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    is_counter: bool = False


class Service(Protocol):
    """One service of one broker."""

    def start(self) -> None:
        """Starts its threads and returns. Raises `KlammError` in one line if it cannot start."""
        ...

    def stop(self) -> None:
        """Finishes its current work within seconds and ends its threads. The broker still serves while this runs.
        Called once, even if `start` has raised or has not returned."""
        ...

    def health(self) -> str | None:
        """Returns None while the service works, else one line about its problem. Must return at once."""
        ...

    def metrics(self) -> Iterable[ServiceMetric]:
        """Returns the current samples, without waiting; called at each scrape."""
        ...
