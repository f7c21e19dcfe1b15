"""Appending what clients send most with the least work: the part of `PartitionLog` that takes a plain batch.

`records.plain_produce` has judged the batch by the rules of all topics; what is left are this topic's limits, and the
place in the log. Whatever would take more (a topic that opens its batches or stamps them, one that shows only what is
flushed, a retry of an idempotent producer, a new leader epoch, a new segment) goes to `append`. A test holds both
together.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from klamm.core.errors import StorageError
from klamm.core.log.parts import LogParts
from klamm.core.records.header import CRC_FROM, LENGTH_OVERHEAD, NO_PRODUCER_ID, BatchHeader
from klamm.core.records.plain_produce import PlainProduce

_FRONT: Final = Struct(">qii")
"""Base offset, batch length, leader epoch."""


class PlainAppend(LogParts):
    def append_plain(self, produce: PlainProduce, leader_epoch: int) -> int | None:
        """Store its batch, and show it to consumers, as without followers `append` and `advance_high_watermark` do but
        for `on_visible`: whoever waits is the caller's. Its base offset; None where nothing has happened and `append`
        is to take or to refuse it. `StorageError` and what `producer_state` says as there."""
        _, _, _, _, _, batch, count, first_ms, largest_ms, codec, producer, crc = produce
        size = len(batch)
        now_ms = self._clock()
        if (
            not self._takes_plain
            or not self._validator.within_limits(size, codec, first_ms, largest_ms, now_ms)
            or (crc >= 0 and crc32c(batch[CRC_FROM:]) != crc)
        ):
            return None
        validator = self._validator
        if validator.verifies(codec, first_ms, largest_ms) and not validator.bears_out(
            batch, count, codec, first_ms, largest_ms
        ):
            return None
        header = None if producer == NO_PRODUCER_ID else BatchHeader.parse(batch)
        with self._lock:
            base = self._end
            last = base + count - 1
            active = self._segments[-1]
            if (
                self._closed is not None
                or leader_epoch != self._epochs.latest
                or active.next_offset > base
                or not active.has_room(size, last, largest_ms, now_ms)
            ):
                return None
            if header is not None:
                if self._producers.check(header):
                    return None
                header = header.rebased(base, leader_epoch)
            _FRONT.pack_into(batch, 0, base, size - LENGTH_OVERHEAD, leader_epoch)
            try:
                active.append_next(batch, base, last, largest_ms)
            except StorageError as error:
                self._write_failed(active, error)
                raise
            if header is not None:
                self._producers.update(header, now_ms)
            self._end = self._replicated = last + 1
        return base
