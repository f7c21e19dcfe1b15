"""A sink at work: a group's records are written, flushed, and only then committed.

Rules:
- The sink is called from the thread that calls `run`, and from no other.
- Offsets are committed after `flush` has returned. A sink or a record that fails ends the run before that: unflushed
  records are delivered again.
- Topic ids are requested before the group is joined, and again before each flush. While they are the same, every record
  in between is of that topic. When a topic was deleted and created again, unflushed records may be of either: they are
  dropped with the sink, and the task starts again, which delivers the new topic's records again.
- If a log lost its end (a restored backup), the records written from it are flushed and the sink is notified, before
  later records are returned or committed.
- A record or batch that cannot be read ends the run, or is skipped (`on.bad.record`): it is quarantined first if that
  is configured, and the next commit stores the position after it. A batch whose CRC does not match always ends the run,
  since another replica's copy may be good.
- Revoked partitions are flushed and committed before they are released, if that takes no longer than `HANDOVER_S`;
  otherwise their new owner writes those records again, which an idempotent sink does not double.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from ...config.sections.consumer import ConsumerConfig
from ...config.settings import Settings
from ...errors import BrokerError, ErrorCode, KlammError
from ...faults import fault_point
from ...groups.membership.member import LostOwnershipError
from ...interfaces.sink import BadRecords, BatchSink, HistorySink, QuarantineSink, Sink, TopicIdSink
from ...records.codecs import UnsupportedCodecError
from ...records.decode import decode_batch
from ...records.header import crc_matches, iter_headers
from ...records.partition import TopicPartition
from ..cluster_client import LATEST, ClusterClient
from ..errors import ConnectionFailedError, SinkError, UnreadableBatchError, UnreadableRecordError
from ..factory import open_client
from ..typed import bootstrap_text
from .consumer import Consumer

HANDOVER_S = 10.0
POLL_S = 0.2
IDS_S = 5.0
"""Seconds that a flush waits for the brokers to return topic ids, before it is postponed."""
_log = logging.getLogger(__name__)


class _TopicReplacedError(KlammError):
    """A topic was deleted and created again."""


class _TopicsUnknownError(KlammError):
    """The brokers could not be asked whether the topics are the same."""


_Unreadable = UnreadableBatchError | UnreadableRecordError
T = TypeVar("T")


@dataclass
class SinkProgress:
    """The numbers of records written so far, of flushes that ended in a commit, and of skipped unreadable records or
    batches.
    """

    records: int = 0
    flushes: int = 0
    bad: int = 0


class SinkRunner:
    """One task of the sink `name`; further tasks, in other processes, share the work as a group."""

    def __init__(self, settings: Settings, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `ConfigError` if the file has no such sink, or its plugin cannot do what its section requires."""
        self._name = name
        self._options = settings.sink(name)
        self._settings = settings.with_(consumer=_consumer_config(settings, self._options.group_id))
        settings.check_sink(name)
        self._sink: Sink | BatchSink = settings.make_sink(name)
        self._clock = clock
        self._handover = _Handover()
        self._ids: dict[str, UUID] = {}
        self._unflushed = 0
        self._flushed_at = clock()
        self.progress = SinkProgress()

    def run(
        self,
        stop: threading.Event,
        *,
        once: bool = False,
        report: Callable[[SinkProgress], None] = lambda _: None,
    ) -> SinkProgress:
        """Runs until `stop` is set or, with `once`, until the group has read everything that was in the topics at
        the start. `report` is called after each round."""
        servers = bootstrap_text(self._settings.consumer)
        with open_client(self._settings, "sink", bootstrap_servers=servers) as client:
            while True:
                try:
                    return self._run(client, stop, once, report)
                except _TopicReplacedError as error:
                    _log.warning("%s; what was not flushed is dropped, and the task starts again", error)
                    self._sink = self._settings.make_sink(self._name)
                    self._handover = _Handover()
                    self._unflushed = 0

    def _run(
        self, client: ClusterClient, stop: threading.Event, once: bool, report: Callable[[SinkProgress], None]
    ) -> SinkProgress:
        self._ids = client.topic_ids(self._options.topics)
        targets = self._ends(client) if once else {}
        with self._calling("open"):
            self._sink.open()
        try:
            if self._ids and isinstance(self._sink, TopicIdSink):
                with self._calling("topic_ids"):
                    self._sink.topic_ids(self._ids)
            with Consumer(self._settings, listener=self._handover) as consumer:
                consumer.enable_cuts()
                try:
                    consumer.subscribe(self._options.topics)
                    complete = once and not targets
                    while not stop.is_set() and not complete:
                        idle = self._round(client, consumer)
                        complete = once and idle and self._reached(client, consumer, targets)
                        report(self.progress)
                    self._flush(client, consumer)
                finally:
                    self._handover.end()  # closing the consumer releases its partitions: nothing flushes them any more
        finally:
            with self._calling("close"):
                self._sink.close()
        return self.progress

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        """Adds the sink's name to errors that its methods raise."""
        try:
            yield
        except (Exception, SystemExit) as error:  # a third party's sink may raise anything
            raise SinkError(self._name, method, error) from error

    def _round(self, client: ClusterClient, consumer: Consumer) -> bool:
        """Makes one round; returns True if there was nothing to do."""
        handover = self._handover.asked()
        written, bad = self._take(consumer)
        if bad is not None:
            self._pass_over(client, consumer, bad)
        cut = self._tell_cuts(client, consumer)
        if self._unflushed and (handover or self._is_due()):
            self._flush_or_wait(client, consumer)
        if handover:
            self._handover.done()
        return not written and bad is None and not cut

    def _tell_cuts(self, client: ClusterClient, consumer: Consumer) -> bool:
        """Notifies the sink of cuts. Call it after the polled records are written: they were read before the cuts."""
        cuts = consumer.cuts()
        if not cuts:
            return False
        if self._unflushed:
            self._flush_or_wait(client, consumer)
        if not self._unflushed:
            for cut in cuts:
                if isinstance(self._sink, HistorySink):
                    with self._calling("log_cut"):
                        self._sink.log_cut(cut)
                consumer.cut_known(cut)
            self._commit(consumer)
        return True

    def _take(self, consumer: Consumer) -> tuple[int, _Unreadable | None]:
        """Writes the records of one poll; returns their number, and the error of a record or batch that could not be
        read."""
        sink = self._sink
        if isinstance(sink, BatchSink):
            batches, bad = self._poll(lambda: consumer.poll_batches(POLL_S))
            count = sum(batch.record_count for batch in batches)
            if batches:
                self._count(count)
                with self._calling("write_batches"):
                    sink.write_batches(batches)
        else:
            records, bad = self._poll(lambda: consumer.poll(POLL_S))
            count = len(records)
            if records:
                self._count(count)
                with self._calling("write"):
                    sink.write(records)
        self.progress.records += count
        return count, bad

    def _poll(self, poll: Callable[[], list[T]]) -> tuple[list[T], _Unreadable | None]:
        try:
            return poll(), None
        except (UnreadableBatchError, UnreadableRecordError) as error:
            if self._options.on_bad_record == "fail" or isinstance(error.__cause__, UnsupportedCodecError):
                raise
            return [], error

    def _pass_over(self, client: ClusterClient, consumer: Consumer, error: _Unreadable) -> None:
        bad = read_again(client, error)
        if isinstance(self._sink, QuarantineSink) and self._options.on_bad_record == "quarantine":
            with self._calling("quarantine"):
                self._sink.quarantine(bad)
        try:
            consumer.seek(bad.partition, bad.to_offset)
        except KlammError as lost:  # revoked meanwhile: its next owner finds the same
            _log.warning("%s", lost)
            return
        _log.warning("skipped (on.bad.record: %s): %s", self._options.on_bad_record, error)
        self._count(1)
        self.progress.bad += 1

    def _count(self, more: int) -> None:
        """Counts records that wait for the next flush."""
        if not self._unflushed:
            self._flushed_at = self._clock()
        self._unflushed += more

    def _is_due(self) -> bool:
        late = self._clock() - self._flushed_at >= self._options.flush_interval_ms / 1000
        return late or self._unflushed >= self._options.flush_records

    def _flush_or_wait(self, client: ClusterClient, consumer: Consumer) -> None:
        try:
            self._flush(client, consumer)
        except _TopicsUnknownError as error:  # while the brokers are unavailable no records arrive either
            _log.warning("not flushed yet: %s", error)

    def _flush(self, client: ClusterClient, consumer: Consumer) -> None:
        if self._unflushed:
            self._check_topics(client)
            with self._calling("flush"):
                self._sink.flush()
            fault_point("sink.flushed")
            self._unflushed = 0
            self.progress.flushes += 1
        self._commit(consumer)

    @staticmethod
    def _commit(consumer: Consumer) -> None:
        try:
            consumer.commit()
        except LostOwnershipError as error:  # another member has them, and writes from the last commit on
            _log.warning("%s", error)

    def _check_topics(self, client: ClusterClient) -> None:
        """Checks that the records written since the start belong to the topics whose ids the sink was given."""
        if not self._ids:
            return
        try:
            now = client.topic_ids(self._options.topics, timeout_s=IDS_S)
        except (ConnectionFailedError, BrokerError) as error:
            raise _TopicsUnknownError(f"the ids of the topics are not known: {error}") from error
        replaced = [topic for topic, found in now.items() if self._ids.get(topic, found) != found]
        if replaced:
            raise _TopicReplacedError(f"deleted and created again: topic {', '.join(replaced)}")

    def _ends(self, client: ClusterClient) -> dict[TopicPartition, int]:
        """Returns the present ends of the partitions that have records."""
        partitions = [tp for topic in self._options.topics for tp in client.partitions(topic)]
        ends = client.list_offsets(dict.fromkeys(partitions, LATEST), isolation=self._settings.consumer.isolation)
        return {tp: end for tp, (end, _) in ends.items() if end > 0}

    def _reached(self, client: ClusterClient, consumer: Consumer, targets: dict[TopicPartition, int]) -> bool:
        """Returns how far the group has read: this task's partitions by their position, those of other members by
        their commits."""
        if self._unflushed:
            self._flush_or_wait(client, consumer)
        stored = consumer.committed(targets)
        if not all(tp in stored and stored[tp].offset >= end for tp, end in targets.items()):
            return False
        # Where the log was cut below what is stored, the member that owns the partition finds out, and commits the cut.
        epochs = {tp: stored[tp].leader_epoch for tp in targets if stored[tp].leader_epoch >= 0}
        try:
            ends = client.leader_epoch_ends(epochs) if epochs else {}
        except BrokerError as error:
            if error.code is not ErrorCode.unsupported_version:
                raise
            return True
        return all(end.cut(stored[tp].offset) is None for tp, end in ends.items())


def read_again(client: ClusterClient, error: _Unreadable) -> BadRecords:
    """Returns the bytes of a batch or record that could not be read, fetched from its leader again. Raises `error` if
    they are damaged, or if the offset after them is not known."""
    partition = error.partition

    def attempt(
        node_id: int, share: dict[TopicPartition, int], left_s: float
    ) -> dict[TopicPartition, bytes | ErrorCode]:
        del left_s
        answers = client.fetch(node_id, share)
        gone = (ErrorCode.none, ErrorCode.offset_out_of_range)
        return {tp: a.records if a.error in gone else a.error for tp, a in answers.items()}

    data = client.to_leaders({partition: error.offset}, attempt)[partition]
    is_batch, end = isinstance(error, UnreadableBatchError), error.next_offset
    if end is None:
        raise error
    for pos, header in iter_headers(data):
        if header.next_offset <= error.offset:
            continue
        if not crc_matches(data, pos, header):
            raise error
        if is_batch:
            raw = bytes(data[pos : pos + header.size])
            return BadRecords(partition, error.offset, end, str(error), value=raw, is_batch=True)
        records = decode_batch(data, pos, header, client.codecs, partition=partition)
        record = next((r for r in records if r.offset == error.offset), None)
        if record is not None:
            return BadRecords(partition, error.offset, end, str(error), record.key, record.value)
    return BadRecords(partition, error.offset, end, str(error), is_batch=is_batch)  # deleted meanwhile


class _Handover:
    """Lets the group's thread wait until the sink's thread has flushed the partitions that are revoked."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._idle = threading.Event()
        self._ended = False

    def asked(self) -> bool:
        return self._wanted.is_set()

    def done(self) -> None:
        self._wanted.clear()
        self._idle.set()

    def end(self) -> None:
        """Ends all waits, since the sink's thread has ended."""
        self._ended = True
        self.done()

    def on_assigned(self, partitions: Collection[TopicPartition]) -> None:  # noqa: ARG002  (the interface's name)
        return

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:  # noqa: ARG002
        self._idle.clear()
        self._wanted.set()
        if self._ended:
            return
        if not self._idle.wait(HANDOVER_S):
            _log.warning("the sink did not flush within %.0f s; records will be written again", HANDOVER_S)

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:  # noqa: ARG002
        return


def _consumer_config(settings: Settings, group: str) -> ConsumerConfig:
    """Returns the file's configuration, with the sink's group and explicit commits; reading starts at the beginning
    unless the file sets something else."""
    changes: dict[str, object] = {"group_id": group, "enable_auto_commit": False}
    if "auto_offset_reset" not in settings.consumer.model_fields_set:
        changes["auto_offset_reset"] = "earliest"
    return settings.consumer.model_copy(update=changes)
