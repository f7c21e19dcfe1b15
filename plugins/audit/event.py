"""Audit events: what one tier counted in one range, and their bytes.

One event holds *all* windows of its range, because for one key only one event counts: a range that is counted again
after a crash may end at another offset and cover other windows, and its new event must replace the old one entirely.

Key: JSON of [tier, owner, topic, topic id, partition, from, replay, cut], so that any tool can read it. `replay` and
`cut` are part of the key: a replay may begin exactly where a counted range began, and must not replace it, nor may what
a mirror has lost replace what it has copied there since. The topic id is part of it: offset 0 of a topic that was
deleted and created again is another offset. Value: Avro single-object encoding (C3 01,
CRC-64-AVRO of the schema, body), so that an event names its own schema. fastavro is imported with the first event, so
that a process without an audit does not load it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from klamm.plugin import AuditIdentity, LoadOrigin, SchemaError

PRODUCER, BROKER, MIRROR, CONSUMER, HADOOP = TIERS = ("producer", "broker", "mirror", "consumer", "hadoop")
SETTLEMENT = "settlement"
"""The `tier` of an event by which a user settles counts that cannot be proved."""

FOREIGN = ""
"""The `source` of records of clients that do not audit."""

UNATTRIBUTED = "?"
"""The `source` of records of an audited producer whose identity is unknown."""


class EventWindow(NamedTuple):
    """Records of one window; `size` in bytes. For producers `records` are the acknowledged. `source`: at the broker
    and the mirror tier, the producer of these records."""

    start_ms: int
    records: int
    size: int
    attempted: int = 0
    attempted_size: int = 0
    source: str = FOREIGN


class EventKey(NamedTuple):
    tier: str
    owner: str
    topic: str
    topic_id: str
    partition: int | None
    from_offset: int
    replay: bool
    cut: bool


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
    reset: bool = False
    lossy: bool = False
    final: bool = False
    interval_ms: int = 0
    sequence: int = 0
    time_ms: int = 0
    topic_id: str = ""
    epoch: int = -1
    quiet: bool = False
    origin: str = ""
    cut: bool = False
    note: str = ""
    lake: str = ""
    directory: str = ""
    replaces: tuple[str, ...] = ()
    load: int | None = None
    job: str = ""
    stored_ms: int = -1
    """When the audit topic stored the event, by its record's timestamp; -1 if it was not read from there."""

    @property
    def key(self) -> EventKey:
        topic = (self.topic, self.topic_id, self.partition)
        return EventKey(self.tier, self.owner, *topic, self.from_offset, self.replay, self.cut)

    @property
    def seen_ms(self) -> int:
        """The time at which the event was sent, by the clock of the audit topic if that is known."""
        return self.stored_ms if self.stored_ms >= 0 else self.time_ms

    @property
    def ends(self) -> bool:
        """True for the event that ends a group or a lake: it has no partition."""
        return self.tier in (CONSUMER, HADOOP) and self.partition is None

    @property
    def begins(self) -> bool:
        """True for an event without offsets: it states where an owner begins."""
        return self.from_offset == self.to_offset

    def encode(self) -> tuple[bytes, bytes]:
        """Returns the key and the value of the record in the audit topic."""
        from fastavro import schemaless_writer

        schema, prefix = _schema()
        out = io.BytesIO()
        out.write(prefix)
        schemaless_writer(out, schema, self._as_avro())
        return json.dumps(self.key, separators=(",", ":")).encode(), out.getvalue()

    def _as_avro(self) -> dict[str, Any]:
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},  # most have the schema's names
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
        load: LoadOrigin | None = None,
        **fields: Any,
    ) -> AuditEvent:
        """Returns an event. `place`: topic and partition; `span`: [from, to); `fields`: others of an `AuditEvent`. With
        an `origin` its tier is `mirror`."""
        who = self.who
        tier = MIRROR if fields.get("origin") else who.tier
        if load is not None:
            fields |= {"lake": load.lake, "directory": load.directory, "replaces": load.replaces}
            fields |= {"load": load.number, "job": load.job}
        self._made += 1
        return AuditEvent(
            tier=tier, owner=who.owner, host=who.host, application=who.application, topic=place[0], partition=place[1],
            from_offset=span[0], to_offset=span[1], window_ms=self.window_ms, windows=tuple(windows),
            sequence=self._made - 1, time_ms=self._clock_ms(), **fields,
        )  # fmt: skip


_WINDOW_FIELDS = ("start", "count", "bytes", "attempted", "attempted_bytes", "source")


def decode_event(value: bytes | None, stored_ms: int = -1) -> AuditEvent:
    """Decodes an event. Raises `SchemaError` in one line if the bytes are not an audit event of this version."""
    from fastavro import schemaless_reader

    schema, prefix = _schema()
    if not value or not value.startswith(prefix):
        raise SchemaError(f"not an audit event: expected bytes that begin with {prefix.hex()}")
    try:
        fields: Any = schemaless_reader(io.BytesIO(value[len(prefix) :]), schema, None)
    except (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise SchemaError(f"an audit event cannot be read: {error!r}") from error
    first, end, made = fields.pop("from"), fields.pop("to"), fields.pop("time")
    windows = tuple(EventWindow(*(window[name] for name in _WINDOW_FIELDS)) for window in fields.pop("windows"))
    event = AuditEvent(
        from_offset=first, to_offset=end, time_ms=made, windows=windows, stored_ms=stored_ms,
        replaces=tuple(fields.pop("replaces")), **fields,
    )  # fmt: skip
    if event.tier not in (*TIERS, SETTLEMENT) or end < first or event.window_ms <= 0:
        raise SchemaError(
            f"an audit event has contradictory fields: {event.key}, to {end}, window {event.window_ms} ms"
        )
    return event


@cache
def _schema() -> tuple[Any, bytes]:
    """Returns the parsed schema, and the first bytes of every value."""
    from fastavro import parse_schema
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    text = resources.files(__package__).joinpath("event.avsc").read_text()
    raw = json.loads(text)
    digest = bytes.fromhex(fingerprint(to_parsing_canonical_form(raw), "CRC-64-AVRO"))
    return parse_schema(raw), b"\xc3\x01" + digest
