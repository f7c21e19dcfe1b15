"""The consumer that users see: `poll`, `poll_arrow`, or streams; positions, commits, groups."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...config.settings import Settings, load_settings
from ...errors import ConfigError, KlammError
from ...groups.membership.member import GroupMember, Owned
from ...interfaces.offsets import CommittedOffset
from ...interfaces.sink import LogCut, RecordBatch
from ...records.partition import TopicPartition
from ...records.record import ConsumerRecord
from ..errors import ClientClosedError
from ..factory import open_client
from ..network.backoff import Backoff
from ..network.request_router import Network
from ..typed import SharedCoordination, TypedValues
from .audit import ConsumerAudit
from .commits import CommitPolicy, Commits, RebalanceListener
from .delivery import BuiltRecords, Decoding, Delivery, Run
from .fetcher import Fetcher, FetchHooks
from .membership import SoleMember, make_member, patience_s
from .positions import Positions, TopicPartitionState
from .streams import RecordStream
from .values import Interception, RecordConverter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_BATCHES", "POLL_S", "Consumer"]

_log = logging.getLogger(__name__)

POLL_S = 1.0
_FOREVER_S = 3600.0
"""The length, in seconds, of one wait of an iterator, which then waits again."""
MAX_BATCHES = 500
"""The most batches that one `poll_batches` returns unless the caller gives a limit."""


class Consumer:
    """Reads topics, alone or as a member of a group.

    `config` is a YAML file, a mapping of the same shape, or `Settings`, of which the `consumer` section and each
    topic's `schema` and `serde` are used. `group` replaces `group.id`. With `topics` it joins the group at once;
    otherwise call `subscribe`, `streams` or `assign`. Use it as a context manager, or `close` it. `poll`, `poll_arrow`
    and `seek` are for one thread at a time; each stream is for a thread of its own.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Any] | Settings,
        *,
        group: str | None = None,
        topics: Iterable[str] = (),
        listener: RebalanceListener | None = None,
        network: Network | None = None,
    ) -> None:
        """Raises `UnknownTopicError` for a topic that does not exist; `BrokerError` INCONSISTENT_GROUP_PROTOCOL for a
        group whose members use the other protocol.
        """
        settings = config if isinstance(config, Settings) else load_settings(config)
        options = settings.consumer
        self._settings = settings
        self._options = options
        self._group = options.group_id if group is None else group
        self._client = open_client(
            settings,
            "consumer",
            bootstrap_servers=options.bootstrap_servers,
            client_id=options.client_id,
            request_timeout_s=options.request_timeout_ms / 1000,
            network=network
            or Network(retry=Backoff(options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000)),
        )
        self._coordination = SharedCoordination(settings)
        self._values = TypedValues(
            settings, options.bootstrap_servers, self._coordination, options.request_timeout_ms / 1000
        )
        self._positions = Positions()
        self._converter = RecordConverter(self._values)
        interceptors = settings.make_consumer_interceptors()
        self._interception = Interception(interceptors)
        self._audit = ConsumerAudit(
            settings.make_audit(),
            self._client,
            self._group or options.client_id,
            options.client_id,
            self._positions.epoch,
            _wall_ms,
        )
        self._commits = Commits(self._positions, self._audit, interceptors, self._commit_policy(), listener)
        self._fetcher = Fetcher(self._client, self._positions, options, FetchHooks(self._stored, self._audit.start))
        self._decoding = Decoding(self._client.codecs, options.decompressed_max_bytes)
        self._delivery = self._make_delivery(lambda _: True)
        self._member: GroupMember | None = None
        self._sole: SoleMember | None = None
        self._streaming = False
        self._polled_at = time.monotonic()
        self._polling = 0
        self._counting = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        self._fetcher.start()
        if topics:
            self._or_close(lambda: self.subscribe(topics))

    def _commit_policy(self) -> CommitPolicy:
        options = self._options
        return CommitPolicy(
            options.enable_auto_commit and bool(self._group),
            options.auto_commit_interval_ms / 1000,
            patience_s(self._settings),
            _wall_ms,
        )

    def _make_delivery(self, mine: Any) -> Delivery:
        return Delivery(self._positions, self._decoding, mine, self._audit.prepare)

    # What to read

    def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group for these topics; can be called once."""
        if isinstance(topics, str):
            raise ConfigError(f"topics are a list of names: [{topics!r}], not {topics!r}")
        self._join(dict.fromkeys(topics, 1))

    def streams(self, counts: Mapping[str, int]) -> dict[str, list[RecordStream]]:
        """Joins the group with the given number of streams for each topic (the paper's createMessageStreams); each
        stream owns partitions as a separate member would."""
        if not isinstance(counts, Mapping):
            raise ConfigError(f"streams are numbers by topic, as in {{'trips': 2}}, not {counts!r}")
        self._join(counts)
        self._streaming = True
        return {topic: [self._stream(topic, number) for number in range(n)] for topic, n in counts.items()}

    def _stream(self, topic: str, number: int) -> RecordStream:
        def mine(state: TopicPartitionState) -> bool:
            return state.stream == number and state.partition.topic == topic

        delivery = self._make_delivery(mine)

        def take() -> list[ConsumerRecord]:
            return self._take(delivery, 1, None)

        return RecordStream(topic, number, take, delivery.come_back)

    def _join(self, subscription: Mapping[str, int]) -> None:
        if not self._group:
            raise ConfigError("consumer.group.id is needed to subscribe; without a group use assign(...)")
        if self._member is not None:
            raise ConfigError("this consumer has subscribed or assigned already; use another for other topics")
        if not subscription or min(subscription.values()) < 1:
            raise ConfigError(f"a subscription needs topics, and at least one stream of each: {dict(subscription)}")
        for topic in subscription:
            self._client.topic(topic)
        member = make_member(
            self._settings,
            self._group,
            subscription,
            self._commits,
            client=self._client,
            coordination=self._coordination,
            idle_s=self._idle_s,
        )
        self._follow(member)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, without a group protocol; may be called again. Offsets are stored if there is
        a `group.id`.
        """
        if self._member is not None and self._sole is None:
            raise ConfigError("this consumer has subscribed; use another one to assign partitions by hand")
        wanted = [TopicPartition(*p) for p in partitions]
        self._client.by_leader(wanted)  # raises if one does not exist
        if not self._group:
            gone = self._positions.states.keys() - set(wanted)
            self._commits.on_lost(gone)
            self._commits.on_assigned([Owned(p, 0, -1) for p in wanted if p not in self._positions.states])
            return
        if self._sole is None:
            self._sole = SoleMember(self._client, self._group, self._commits)
            self._follow(self._sole)
        self._sole.assign(wanted)

    def _follow(self, member: GroupMember) -> None:
        self._member = member
        self._commits.follow(member)
        member.start()

    def assignment(self) -> set[TopicPartition]:
        """Returns the partitions that this consumer reads now."""
        with self._positions.lock:
            return set(self._positions.states)

    # Reading

    def poll(self, timeout_s: float = POLL_S, max_records: int | None = None) -> list[ConsumerRecord]:
        """Returns up to `max_records` (`max.poll.records`) records, in order within each partition; [] if none arrived
        within `timeout_s`. Calling `poll` marks the records it returned before as processed.

        `UnreadableBatchError` (a `CorruptRecordError`) or `UnreadableRecordError` (a `SchemaError`) name topic,
        partition and offset; the position stays before the record, and `seek(partition, error.next_offset)` skips it.
        Raises `NoOffsetError` if no offset is stored and `auto.offset.reset` is none.
        """
        self._check_polling()
        self._delivery.come_back()
        return self._take(self._delivery, _limit("max_records", max_records, self._options.max_poll_records), timeout_s)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yields records without end, in order within each partition; blocks while there is none, and ends when the
        consumer is closed.

        Asking for the next record marks the one before as processed, so that leaving the loop commits the records
        whose iteration has ended. Errors are those of `poll`; a new loop continues where the last one stopped.
        """
        self._check_polling()
        while True:
            try:
                yield from self.poll(_FOREVER_S, 1)
            except ClientClosedError:
                return

    def poll_arrow(self, timeout_s: float = POLL_S, max_records: int | None = None) -> pa.Table:
        """Polls as `poll` does, and returns a table of one topic's records; it has no rows if none arrived.

        Columns are key, value, topic, partition, offset, timestamp, timestampType and headers, as in Spark's Kafka
        source; `value` is decoded if the topic has a serde. Up to 131,072 rows unless `max_records` is given. Needs
        pyarrow (the extra `arrow`).
        """
        from .arrow import MAX_ROWS, ArrowConverter, ArrowReader

        self._check_polling()
        self._delivery.come_back()
        converter = ArrowConverter(self._values, self._converter)
        read = ArrowReader(self._decoding, self._delivery.read_one).read
        limit = _limit("max_records", max_records, MAX_ROWS)
        with self._polled(self._delivery):
            return self._delivery.take(limit, timeout_s, converter.convert, converter.table, one_topic=True, read=read)

    def poll_batches(self, timeout_s: float = POLL_S, max_batches: int | None = None) -> list[RecordBatch]:
        """Polls as `poll` does, and returns whole record batches as the log stores them: they are not decompressed or
        decoded, and interceptors do not see them.

        Up to 500 batches unless `max_batches` is given. An audit that counts the topic decodes them for itself. Not for
        a consumer that also polls records.
        """
        from .batches import BatchReader, convert_batch, joined

        self._check_polling()
        self._delivery.come_back()
        read = BatchReader(self._decoding).read
        limit = _limit("max_batches", max_batches, MAX_BATCHES)
        with self._polled(self._delivery):
            return self._delivery.take(limit, timeout_s, convert_batch, joined, read=read)

    def _take(self, delivery: Delivery, limit: int, timeout_s: float | None) -> list[ConsumerRecord]:
        with self._polled(delivery):
            return delivery.take(limit, timeout_s, self._converter.convert, self._records)

    def _records(self, runs: Sequence[Run[list[ConsumerRecord]]]) -> BuiltRecords[list[ConsumerRecord]]:
        records = [record for _, run in runs for record in run]
        return BuiltRecords(self._interception.on_consume(records) if records else records, len(runs))

    @contextmanager
    def _polled(self, delivery: Delivery) -> Iterator[None]:
        """Carries out one take. An error raised inside, even an interrupt after the take, leaves the records for the
        next call."""
        try:
            with self._counting:
                self._polling += 1
            try:
                yield
            finally:
                with self._counting:
                    self._polling -= 1
                    self._polled_at = time.monotonic()
        except BaseException:
            delivery.take_back()
            raise

    def _check_polling(self) -> None:
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        if self._streaming:
            raise ConfigError("this consumer has streams; read those, or use another consumer to poll")
        if self._member is None and not self.assignment():
            raise ConfigError("nothing to read: give the consumer topics, or call subscribe, streams or assign")

    def _idle_s(self) -> float:
        """Returns the seconds since the application last asked for records; 0 while it waits for them."""
        return 0.0 if self._polling else time.monotonic() - self._polled_at

    # Positions

    def position(self, partition: TopicPartition, timeout_s: float = 30.0) -> int:
        """Returns the offset of the next record to be returned; waits until it is known."""
        with self._positions.lock:
            state = self._positions.state(partition)
            self._positions.lock.wait_for(lambda: state.position is not None or state.gone, timeout_s)
            if state.position is None:
                raise KlammError(f"the position of {partition} is not known yet")
            return state.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continues the partition at this offset."""
        if not isinstance(offset, int) or offset < 0:
            raise KlammError(f"cannot seek {partition} to {offset!r}: offsets are numbers that begin at 0")
        with self._positions.changing():
            state = self._positions.state(partition)
            known = state.position is not None
            state.move(offset, state.epoch_before(offset))
        if not known and self._audit.counts(partition):
            stored = self._audit_from(partition)
            self._audit.start({partition: offset if stored is None else stored}, [partition] if stored is None else ())
        self._audit.seek(partition, offset)

    def _audit_from(self, partition: TopicPartition) -> int | None:
        """Returns the offset at which the audit's ranges continue after a seek that precedes any read.

        It is the group's stored offset, so that records read again below it are a replay, and records skipped above it
        are missing; None where there is none, or it is unknown.
        """
        try:
            stored = self._stored([partition]).get(partition)
        except KlammError as error:
            _log.warning("audit of %s continues where the application seeks: %s", partition, error)
            return None
        return None if stored is None else stored.offset

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Returns no records of these partitions until `resume`."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        with self._positions.changing():
            for partition in partitions:
                state = self._positions.state(partition)
                state.paused = paused
                # nothing was fetched while it was paused, so a new topic of the same name would not have been noticed
                state.check = True

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Returns the group's stored offsets; partitions without one are left out."""
        return dict(self._stored([TopicPartition(*p) for p in partitions]))

    def _stored(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        wanted = list(partitions)
        if self._member is None or not wanted:
            return {}
        return self._member.committed(wanted)

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Stores offsets and waits until they are stored.

        None stores the offsets after all returned records, which marks these as processed. Raises `LostOwnershipError`
        if a partition now belongs to another member; nothing was then stored.
        """
        if offsets is not None:
            self._commits.commit(dict(offsets))
            return
        if not self._streaming:
            self._delivery.come_back()
        self._commits.commit_all()

    def enable_cuts(self) -> None:
        """Enables `cuts`; call it before the first read. If a log is found to be cut below the position, no record
        of the partition is returned or committed by `commit()` until the application calls `cut_known`."""
        self._positions.tells_cuts = True

    def cuts(self) -> list[LogCut]:
        """Returns the cuts that wait for `cut_known`."""
        return self._positions.cuts()

    def cut_known(self, cut: LogCut) -> None:
        self._positions.cut_known(cut)

    def metrics(self) -> dict[str, int]:
        """Returns counts since the consumer was made; `lag`: offsets up to the high watermark, or up to the last
        stable offset for `read_committed`, that the positions have not passed; markers of transactions count.
        """
        with self._positions.lock:
            states = list(self._positions.states.values())
            lag = sum(max(0, s.end - s.position) for s in states if s.position is not None)
        return {
            "lag": lag,
            "rebalances": self._commits.rebalances,
            "audit_errors": self._audit.errors,
            "interceptor_errors": self._interception.errors + self._commits.interceptor_errors,
        }

    # The end

    def close(self) -> None:
        """Commits the returned records (with `enable.auto.commit`), leaves the group and stops. May be called twice."""
        self._close(done=True)

    def _close(self, *, done: bool) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if done and not self._streaming:
            self._delivery.come_back()
        self._positions.close()
        self._commits.close()
        if self._member is not None:
            self._member.close()
        self._audit.close()
        self._client.close()
        self._fetcher.close()
        self._values.close()
        self._coordination.close()

    def _or_close(self, do: Any) -> None:
        try:
            do()
        except BaseException:
            self._close(done=False)
            raise

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes. After an error the records last returned do not count as processed."""
        self._close(done=error is None)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _limit(name: str, asked: int | None, default: int) -> int:
    """Returns `asked`, or the default for None; raises `ConfigError` below 1, with which nothing could be returned."""
    if asked is None:
        return default
    if asked < 1:
        raise ConfigError(f"{name} is {asked!r}; it is 1 or more, or None for {default}")
    return asked
