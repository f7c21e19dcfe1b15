"""The Produce request that clients send most, and its response: one batch for one partition (v3 to v8).

Read field by field, a request of few bytes cost more than storing its batch. So the fields around the names are read and
written in one piece each. Everything else (several partitions, a transactional id, acks=0, flexible versions, anything
odd) is `None` here, and `produce` reads it and says what is wrong.

A test holds both against `produce`, for every version.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

_PRODUCE = 0
_FIRST, _LAST = 3, 8
_HEADER = struct.Struct(">hhih")
_BEFORE_TOPIC = struct.Struct(">hhiih")
_AFTER_TOPIC = struct.Struct(">iii")


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
        if api_key != _PRODUCE or not _FIRST <= version <= _LAST:
            return None
        at = _HEADER.size + max(client, 0)
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
    except (struct.error, UnicodeDecodeError):
        return None


def write_one_produced(
    request: OneBatch, base_offset: int, log_append_time_ms: int, log_start_offset: int, throttle_ms: int = 0
) -> bytes:
    """The whole frame of the response where all went well."""
    topic = request.topic.encode()
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
