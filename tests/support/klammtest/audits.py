"""An audit topic in memory: what auditors publish, in order, with publications that fail on demand."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from klamm.core.records.partition import TopicPartition
from klamm.core.seams.audit import AuditIdentity
from klamm.plugins.audit.event import AuditEvent, EventWindow, decode_event

FLIGHTS = TopicPartition("flights", 0)
WINDOW_MS = 600_000


class AuditTopic:
    """`klamm.core.seams.audit.Publish`; `events` are those stored. `fail` publications from now on are refused."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.fail = 0
        self.store_failed = False

    def __call__(self, key: bytes, value: bytes) -> Future[None]:
        future: Future[None] = Future()
        if self.fail > 0:
            self.fail -= 1
            if self.store_failed:
                self.events.append(decode_event(value))
            future.set_exception(TimeoutError("no acknowledgement"))
            return future
        self.events.append(decode_event(value))
        future.set_result(None)
        return future


def identity(tier: str, owner: str = "owner") -> AuditIdentity:
    return AuditIdentity(tier, owner, "host", "tests")


def event(tier: str, owner: str, begin: int, end: int, windows: dict[int, int], **more: Any) -> AuditEvent:
    """An event of partition 0 of `flights` (of none for producers); `windows` gives records by window number."""
    fields: dict[str, Any] = {
        "partition": None if tier == "producer" else 0,
        "topic": "flights",
        "window_ms": WINDOW_MS,
        "interval_ms": 1000 if tier == "producer" else 0,
        "final": tier == "producer",
    }
    attempted = tier == "producer"
    counts = tuple(
        EventWindow(number * WINDOW_MS, n, 10 * n, n if attempted else 0, 10 * n if attempted else 0)
        for number, n in windows.items()
    )
    return AuditEvent(
        tier=tier,
        owner=owner,
        host="host",
        application="tests",
        from_offset=begin,
        to_offset=end,
        windows=counts,
        **(fields | more),
    )
