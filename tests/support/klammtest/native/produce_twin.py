"""The fast path of Produce in Python, with the same values and bytes as the compiled module's: its judge.

The fields around the names are read and written in one piece each. A test compares them with `request` and `response`,
and with the compiled module, for every version.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from klamm.core.errors import ProtocolError
from klamm.core.protocol.bounds_check import read_uvarint
from klamm.core.protocol.produce.request import FLEXIBLE_FROM, TOPIC_IDS_FROM, FastProduceRequest
from klamm.core.records.checked_batch import CheckedBatch
from klamm.core.records.header import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, NO_PRODUCER_ID, Buffer, crc_of

_PRODUCE: Final = 0
_FIRST, _LAST = 3, 13
_HEADER = struct.Struct(">hhih")
_BEFORE_TOPIC = struct.Struct(">hhiih")
_AFTER_TOPIC = struct.Struct(">iii")
_COMPACT_BEFORE_TOPIC = struct.Struct(">BBhiB")  # no tags, null, acks, time-out, 1 topic
_COMPACT_AFTER_TOPIC = struct.Struct(">Bi")
_NO_TAGS = b"\0\0\0"  # of the partition, the topic, the request
_ONE = 2  # compact arrays and strings say one more than their length
_LONGEST_COMPACT: Final = 126
"""The most bytes of a name whose length takes one byte."""
_LONGEST_TOPIC: Final = 255
_ID: Final = 16

MOST_BYTES: Final = 512 * 1024
"""A larger batch is not checked here."""
CHECKED_BYTES: Final = 4096
"""The CRC of a larger batch is checked at the append, which has a faster function for it."""
_KAFKAS_CODECS: Final = 5

_Parts = tuple[int, int, bytes, int, memoryview]
"""Acks, time-out in ms, name or id of the topic, partition, batch."""


def read_fast_produce_request(frame: Buffer, /) -> FastProduceRequest | None:
    """Reads a frame, without its length; returns None if the request or its batch has another form, or is wrong in any
    way.

    The batch is a view into the frame.
    """
    view = memoryview(frame)
    try:
        api_key, version, correlation_id, client = _HEADER.unpack_from(view)
        if api_key != _PRODUCE or not _FIRST <= version <= _LAST:
            return None
        at = _HEADER.size + max(client, 0)
        by_id = version >= TOPIC_IDS_FROM
        parts = _read_compact(view, at, by_id) if version >= FLEXIBLE_FROM else _read_legacy(view, at)
        if parts is None:
            return None
        acks, timeout_ms, topic, partition, batch = parts
        client_id = str(view[_HEADER.size : at], "utf-8")
        checked = check_batch(batch)
        if acks not in (1, -1) or checked is None:
            return None
        asked = topic if by_id else topic.decode()
        return version, correlation_id, client_id, acks, timeout_ms, asked, partition, checked
    except (struct.error, UnicodeDecodeError, IndexError, ProtocolError):
        return None


def _read_legacy(view: memoryview, at: int) -> _Parts | None:
    """Reads from the end of the client id on; raises if the frame is too short."""
    transactional, acks, timeout_ms, topics, name = _BEFORE_TOPIC.unpack_from(view, at)
    topic_at = at + _BEFORE_TOPIC.size
    topic_end = topic_at + name
    if transactional != -1 or topics != 1 or name <= 0:
        return None
    partitions, partition, size = _AFTER_TOPIC.unpack_from(view, topic_end)
    start = topic_end + _AFTER_TOPIC.size
    if partitions != 1 or size < 0 or start + size > len(view):
        return None
    return acks, timeout_ms, bytes(view[topic_at:topic_end]), partition, view[start : start + size]


def _read_compact(view: memoryview, at: int, by_id: bool) -> _Parts | None:
    """Reads a flexible version, as `_read_legacy` does."""
    tags, transactional, acks, timeout_ms, topics = _COMPACT_BEFORE_TOPIC.unpack_from(view, at)
    topic_at, size_of_topic = at + _COMPACT_BEFORE_TOPIC.size, _ID
    if not by_id:
        size_of_topic = view[topic_at] - 1
        topic_at += 1
    if tags or transactional or topics != _ONE or not 0 < size_of_topic <= _LONGEST_COMPACT:
        return None
    topic_end = topic_at + size_of_topic
    partitions, partition = _COMPACT_AFTER_TOPIC.unpack_from(view, topic_end)
    size, start = read_uvarint(view, topic_end + _COMPACT_AFTER_TOPIC.size)
    end = start + size - 1
    if partitions != _ONE or not size or view[end : end + 3] != _NO_TAGS:
        return None
    return acks, timeout_ms, bytes(view[topic_at:topic_end]), partition, view[start:end]


def write_fast_produce_response(
    version: int,
    topic: str | bytes,
    correlation_id: int,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
    throttle_ms: int,
    /,
) -> bytes:
    """Returns the whole frame of the response to a stored batch, with the topic's name or the 16 bytes of its id.

    Raises `ValueError` for values that do not fit into one.
    """
    by_id, flexible = version >= TOPIC_IDS_FROM, version >= FLEXIBLE_FROM
    name = topic.encode() if isinstance(topic, str) else topic
    longest = _LONGEST_COMPACT if flexible else _LONGEST_TOPIC
    wrong_topic = by_id == isinstance(topic, str) or len(name) > longest or (by_id and len(name) != _ID)
    if not _FIRST <= version <= _LAST or wrong_topic:
        raise ValueError(_NO_RESPONSE)
    try:
        if flexible:
            compact = _compact_response(len(name), by_id)
            sized = (name,) if by_id else (len(name) + 1, name)
            return compact.pack(
                compact.size - 4, correlation_id, _ONE, *sized, _ONE, partition, 0, base_offset,
                log_append_time_ms, log_start_offset, 1, 0, throttle_ms,
            )  # fmt: skip
        form = _response(version, len(name))
        before = (form.size - 4, correlation_id, 1, len(name), name, 1, partition, 0, base_offset)
        if version < 5:
            return form.pack(*before, log_append_time_ms, throttle_ms)
        if version < 8:
            return form.pack(*before, log_append_time_ms, log_start_offset, throttle_ms)
        return form.pack(*before, log_append_time_ms, log_start_offset, 0, -1, throttle_ms)
    except struct.error as error:
        raise ValueError(_NO_RESPONSE) from error


_NO_RESPONSE: Final = "a version, a topic or a number that no Produce response holds"


@cache
def _response(version: int, topic_size: int) -> struct.Struct:
    """Length, correlation id, one topic and its name, one partition, its error, offset and times, throttle time."""
    start = "q" if version >= 5 else ""
    errors_of_records = "ih" if version >= 8 else ""
    return struct.Struct(f">iiih{topic_size}siihqq{start}{errors_of_records}i")


@cache
def _compact_response(topic_size: int, by_id: bool) -> struct.Struct:
    """As `_response`; the zeros between are sections without tagged fields."""
    return struct.Struct(f">iixB{'' if by_id else 'B'}{topic_size}sBihqqqBBxxix")


def check_batch(batch: memoryview) -> CheckedBatch | None:
    """Returns the checked fields of `batch`; None unless it is exactly one batch that breaks no rule: magic 2, as
    many records as its last offset delta requires, one of Kafka's codecs, neither transactional nor a control batch,
    a sequence if it has a producer id."""
    if not HEADER_SIZE <= len(batch) <= MOST_BYTES:
        return None
    fields = HEADER.unpack_from(batch)
    _, length, _, magic, crc, attributes, last_delta, first_ms, largest_ms, producer, _, sequence, count = fields
    ordinary = (
        magic == MAGIC
        and length + LENGTH_OVERHEAD == len(batch)
        and 1 <= count == last_delta + 1
        and 0 <= attributes < _KAFKAS_CODECS
        and (producer >= 0 <= sequence or producer == NO_PRODUCER_ID <= sequence)
    )
    if not ordinary:
        return None
    if len(batch) <= CHECKED_BYTES:
        if crc_of(batch, 0, len(batch)) != crc:
            return None
        crc = -1
    return batch, count, first_ms, largest_ms, attributes, producer, crc
