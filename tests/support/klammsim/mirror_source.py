"""The source cluster of a mirrored partition, as a consumer sees it: one log, which elections may cut.

It answers as Apache Kafka does (`Partition.readRecords`): an epoch that it does not know, a position below its log
start and one above its end are OFFSET_OUT_OF_RANGE, without bounds.
"""

from __future__ import annotations

from random import Random
from uuid import UUID

from klamm.core.errors import ErrorCode
from klamm.core.mirror.partition_mirror import FirstBatch, MirrorAnswer, MirrorFetch
from klamm.core.replication.replica_fetch import EpochEndOffset

from .mirror_log import MirrorLog, Stored, packed

Key = tuple[UUID, int, int]
"""Topic id, leader epoch, offset: what names one record."""


class Source:
    """`committed` has every record that was ever below the high watermark, by its name; `lost` those that an unclean
    election has removed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.log = MirrorLog("source")
        self.topic_id = UUID(int=1)
        self.epoch = random.choice([0, 0, 5, 1000])
        self.log.lead(self.epoch)
        self.committed: dict[Key, int] = {}
        self.away = False
        self.unclean_elections = 0
        self.recreated = 0
        self._next_value = 1

    def continue_from(self, log: MirrorLog, epoch: int, next_value: int) -> None:
        """Serves another cluster's log, all of it committed, in this epoch."""
        self.log, self.epoch, self._next_value = log, epoch, next_value
        log.lead(epoch)
        log.advance_high_watermark(log.log_end_offset)
        self.committed = {(self.topic_id, each.epoch, each.offset): each.value for each in log.records}

    def produce(self, count: int) -> None:
        for _ in range(count):
            self.log.append(self._next_value, self.epoch)
            self._next_value += 1

    def commit(self, count: int | None = None) -> None:
        before = self.log.high_watermark
        self.log.advance_high_watermark(self.log.log_end_offset if count is None else before + count)
        for record in self.log.between(before, self.log.high_watermark):
            self.committed[self.topic_id, record.epoch, record.offset] = record.value

    def elect(self, *, unclean: bool) -> None:
        """Another replica leads: it has all committed records, or, unclean, lacks some."""
        first = self.log.log_start_offset if unclean else self.log.high_watermark
        self.unclean_elections += unclean
        end = self.random.randint(first, self.log.log_end_offset)
        self.log.follow(self.epoch)
        self.log.truncate_to(end, self.epoch)
        self.epoch += self.random.choice([1, 1, 1, 2, 7])
        self.log.lead(self.epoch)

    def delete_records(self) -> None:
        """Retention, which may pass the mirror."""
        self.log.advance_log_start(self.random.randint(self.log.log_start_offset, self.log.high_watermark))

    def recreate(self) -> None:
        """Deletes the topic and creates it again."""
        self.log = MirrorLog("source")
        self.topic_id = UUID(int=self.topic_id.int + 1)
        self.recreated += 1
        self.epoch = self.random.choice([0, self.epoch + 1])
        self.log.lead(self.epoch)
        self.produce(self.random.randint(0, 5))
        self.commit()

    def answer(self, fetch: MirrorFetch, topic_id: UUID | None) -> MirrorAnswer:
        """Answers a consumer's fetch of the topic with this id; with None, of whatever topic has the name."""
        log = self.log
        if topic_id not in (None, self.topic_id):
            return MirrorAnswer(ErrorCode.unknown_topic_id)
        if fetch.last_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(fetch.last_epoch)
            if epoch < 0 or fetch.offset < log.log_start_offset:
                return MirrorAnswer(ErrorCode.offset_out_of_range)
            if epoch < fetch.last_epoch or end < fetch.offset:
                return MirrorAnswer(diverging_epoch=EpochEndOffset(epoch, end))
        if not log.log_start_offset <= fetch.offset <= log.log_end_offset:
            return MirrorAnswer(ErrorCode.offset_out_of_range)
        found: list[Stored] = log.between(fetch.offset, log.high_watermark)[: self.random.randint(0, 4)]
        largest = found[-1].epoch if found else -1
        return MirrorAnswer(
            ErrorCode.none, None, log.high_watermark, log.log_start_offset, packed(found), largest,
            FirstBatch(*found[0][:2]) if found else None,
        )  # fmt: skip
