"""Audit events: what one tier counted in one range, and their bytes.

One event holds *all* windows of its range, because for one key the last event wins: a range that is counted again after
a crash may end elsewhere and fall into other windows, and its new event has to replace the old one whole.

Key: JSON of [tier, owner, topic, partition, from, replay], so that any tool can read it. `replay` is part of it:
a replay may begin exactly where a counted range began, and must not take its place.
Value: Avro single-object encoding (C3 01, CRC-64-AVRO of the schema, body), so that an event names its own schema.
fastavro is imported with the first event: a process that audits nothing does without.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from klamm.core.errors import SchemaError
from klamm.core.seams.audit import AuditIdentity

PRODUCER, BROKER, CONSUMER, MIRROR, HADOOP = TIERS = ("producer", "broker", "consumer", "mirror", "hadoop")


class EventWindow(NamedTuple):
    """Records of one window; `size` in bytes. For producers `records` are the acknowledged."""

    start_ms: int
    records: int
    size: int
    attempted: int = 0
    attempted_size: int = 0


class EventKey(NamedTuple):
    tier: str
    owner: str
    topic: str
    partition: int | None
    from_offset: int
    replay: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """The fields as `event.avsc` documents them."""

    tier: str
    owner: str
    host: str
    application: str
    topic: str
    partition: int | None
    from_offset: int
    to_offset: int
    window_ms: int
    windows: tuple[EventWindow, ...]
    replay: bool = False
    lossy: bool = False
    final: bool = False
    interval_ms: int = 0
    sequence: int = 0
    time_ms: int = 0

    @property
    def key(self) -> EventKey:
        return EventKey(self.tier, self.owner, self.topic, self.partition, self.from_offset, self.replay)

    def encode(self) -> tuple[bytes, bytes]:
        """The key and the value of the record in the audit topic."""
        from fastavro import schemaless_writer

        schema, prefix = _schema()
        out = io.BytesIO()
        out.write(prefix)
        schemaless_writer(out, schema, self._as_avro())
        return json.dumps(self.key, separators=(",", ":")).encode(), out.getvalue()

    def _as_avro(self) -> dict[str, Any]:
        names = ("tier", "owner", "host", "application", "topic", "partition", "window_ms", "replay", "lossy", "final")
        return {
            **{name: getattr(self, name) for name in (*names, "interval_ms", "sequence")},
            "from": self.from_offset,
            "to": self.to_offset,
            "windows": [dict(zip(_WINDOW_FIELDS, window, strict=True)) for window in self.windows],
            "time": self.time_ms,
        }


class EventSource:
    """Makes the events of one tier in one process, each with the next sequence number; not thread-safe."""

    def __init__(self, who: AuditIdentity, window_ms: int, clock_ms: Callable[[], int]) -> None:
        self.who = who
        self.window_ms = window_ms
        self._clock_ms = clock_ms
        self._made = 0

    def event(
        self,
        place: tuple[str, int | None],
        span: tuple[int, int],
        windows: Iterable[EventWindow],
        *,
        replay: bool = False,
        lossy: bool = False,
        final: bool = False,
        interval_ms: int = 0,
    ) -> AuditEvent:
        """`place`: topic and partition; `span`: [from, to)."""
        self._made += 1
        return AuditEvent(
            tier=self.who.tier,
            owner=self.who.owner,
            host=self.who.host,
            application=self.who.application,
            topic=place[0],
            partition=place[1],
            from_offset=span[0],
            to_offset=span[1],
            window_ms=self.window_ms,
            windows=tuple(windows),
            replay=replay,
            lossy=lossy,
            final=final,
            interval_ms=interval_ms,
            sequence=self._made - 1,
            time_ms=self._clock_ms(),
        )


_WINDOW_FIELDS = ("start", "count", "bytes", "attempted", "attempted_bytes")


def decode_event(value: bytes | None) -> AuditEvent:
    """`SchemaError` in one line when the bytes are no audit event of this version."""
    from fastavro import schemaless_reader

    schema, prefix = _schema()
    if not value or value[: len(prefix)] != prefix:
        raise SchemaError(f"not an audit event: expected bytes that begin with {prefix.hex()}")
    try:
        fields: Any = schemaless_reader(io.BytesIO(value[len(prefix) :]), schema, None)
    except (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise SchemaError(f"an audit event cannot be read: {error!r}") from error
    first, end, made = fields.pop("from"), fields.pop("to"), fields.pop("time")
    windows = tuple(EventWindow(*(window[name] for name in _WINDOW_FIELDS)) for window in fields.pop("windows"))
    event = AuditEvent(from_offset=first, to_offset=end, time_ms=made, windows=windows, **fields)
    if event.tier not in TIERS or end < first or event.window_ms <= 0:
        raise SchemaError(f"an audit event makes no sense: {event.key}, to {end}, window {event.window_ms} ms")
    return event


@cache
def _schema() -> tuple[Any, bytes]:
    """The parsed schema, and what every value begins with."""
    from fastavro import parse_schema
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    text = resources.files(__package__).joinpath("event.avsc").read_text()
    raw = json.loads(text)
    digest = bytes.fromhex(fingerprint(to_parsing_canonical_form(raw), "CRC-64-AVRO"))
    return parse_schema(raw), b"\xc3\x01" + digest
