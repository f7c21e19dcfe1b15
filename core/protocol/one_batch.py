"""The Produce request that clients send most, and its response: one batch for one partition (v3 to v9).

Read field by field, a small request cost more than storing its batch. So the fields around the names are read and
written in one piece each. Everything else (several partitions, a transactional id, acks=0, tagged fields, anything odd)
is `None` here, and `produce` reads it and says what is wrong.

A test holds both against `produce`, for every version.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

from ..errors import ProtocolError
from .bounds_check import read_uvarint

_PRODUCE = 0
_FIRST, _FLEXIBLE = 3, 9
_HEADER = struct.Struct(">hhih")
_BEFORE_TOPIC = struct.Struct(">hhiih")
_AFTER_TOPIC = struct.Struct(">iii")
_COMPACT_BEFORE_TOPIC = struct.Struct(">BBhiBB")  # no tags, null, acks, time-out, 1 topic, its length + 1
_COMPACT_AFTER_TOPIC = struct.Struct(">Bi")
_NO_TAGS = b"\0\0\0"  # of the partition, the topic, the request
_ONE = 2  # compact arrays and strings say one more than their length
_LONGEST_COMPACT = 126  # bytes of a name whose length takes one byte


class OneBatch(NamedTuple):
    """`records` is a view into the frame; `acks` is 1 or -1."""

    version: int
    correlation_id: int
    acks: int
    topic: str
    partition: int
    records: memoryview


def read_one_batch(frame: bytearray) -> OneBatch | None:
    """None where the frame is of another form, or not right in any way."""
    try:
        api_key, version, correlation_id, client = _HEADER.unpack_from(frame)
        if api_key != _PRODUCE or not _FIRST <= version <= _FLEXIBLE:
            return None
        at = _HEADER.size + max(client, 0)
        if version == _FLEXIBLE:
            return _read_compact(frame, at, correlation_id)
        transactional, acks, _, topics, name = _BEFORE_TOPIC.unpack_from(frame, at)
        topic_at = at + _BEFORE_TOPIC.size
        topic_end = topic_at + name
        partitions, partition, size = _AFTER_TOPIC.unpack_from(frame, topic_end)
        view = memoryview(frame)
        start = topic_end + _AFTER_TOPIC.size
        plain = transactional == -1 and acks in (1, -1) and topics == 1 and name > 0 and partitions == 1
        if not plain or size < 0 or start + size > len(frame):
            return None
        str(view[_HEADER.size : at], "utf-8")  # a client id that is not text is refused
        return OneBatch(
            version, correlation_id, acks, str(view[topic_at:topic_end], "utf-8"), partition, view[start : start + size]
        )
    except (struct.error, UnicodeDecodeError, IndexError, ProtocolError):
        return None


def _read_compact(frame: bytearray, at: int, correlation_id: int) -> OneBatch | None:
    """From the end of the client id on; raises where the frame ends before."""
    tags, transactional, acks, _, topics, name = _COMPACT_BEFORE_TOPIC.unpack_from(frame, at)
    topic_at = at + _COMPACT_BEFORE_TOPIC.size
    topic_end = topic_at + name - 1
    partitions, partition = _COMPACT_AFTER_TOPIC.unpack_from(frame, topic_end)
    start = topic_end + _COMPACT_AFTER_TOPIC.size
    size, more = frame[start], frame[start + 1]
    if size >= 128 > more:  # two bytes: a batch of 128 B to 16 KB, which is what comes most
        size, start = size & 127 | more << 7, start + 2
    else:
        size, start = read_uvarint(frame, start)
    end = start + size - 1
    plain = tags == transactional == 0 and acks in (1, -1) and topics == partitions == _ONE
    if not plain or not 1 < name <= _LONGEST_COMPACT + 1 or not size or frame[end : end + 3] != _NO_TAGS:
        return None
    frame[_HEADER.size : at].decode()  # a client id that is not text is refused
    topic = frame[topic_at:topic_end].decode()
    return OneBatch(_FLEXIBLE, correlation_id, acks, topic, partition, memoryview(frame)[start:end])


def write_one_produced(
    request: OneBatch, base_offset: int, log_append_time_ms: int, log_start_offset: int, throttle_ms: int = 0
) -> bytes:
    """The whole frame of the response where all went well."""
    topic = request.topic.encode()
    if request.version == _FLEXIBLE:
        compact = _compact_response(len(topic))
        size = compact.size - 4
        return compact.pack(
            size, request.correlation_id, _ONE, len(topic) + 1, topic, _ONE, request.partition, 0, base_offset,
            log_append_time_ms, log_start_offset, 1, 0, throttle_ms,
        )  # fmt: skip
    form = _response(request.version, len(topic))
    before = (form.size - 4, request.correlation_id, 1, len(topic), topic, 1, request.partition, 0, base_offset)
    if request.version < 5:
        return form.pack(*before, log_append_time_ms, throttle_ms)
    if request.version < 8:
        return form.pack(*before, log_append_time_ms, log_start_offset, throttle_ms)
    return form.pack(*before, log_append_time_ms, log_start_offset, 0, -1, throttle_ms)


@cache
def _response(version: int, topic_size: int) -> struct.Struct:
    """Length, correlation id, one topic and its name, one partition, its error, offset and times, throttle time."""
    start = "q" if version >= 5 else ""
    errors_of_records = "ih" if version >= 8 else ""
    return struct.Struct(f">iiih{topic_size}siihqq{start}{errors_of_records}i")


@cache
def _compact_response(topic_size: int) -> struct.Struct:
    """As `_response`; the zeros between are sections without tagged fields."""
    return struct.Struct(f">iixBB{topic_size}sBihqqqBBxxix")
